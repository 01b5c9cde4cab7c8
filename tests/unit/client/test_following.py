"""A stream that breaks anywhere: no event is missing, none comes twice, and the pieces of text make the reply."""

from __future__ import annotations

import json

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import chordage
from support.scripted_fleet import BOTH, Driven, ScriptedFleet, problem


@pytest.fixture
def fleet():
    return ScriptedFleet()


@pytest.fixture(params=BOTH)
def client(request, fleet):
    return Driven(request.param, fleet)


def sse(kind, fact=None, step=1, **data):
    body = {**data, "kind": kind, "turn_id": "t1", "run_id": "r1", "step": step}
    lines = [f"id: {fact}"] * (fact is not None) + [f"event: {kind}", f"data: {json.dumps(body, ensure_ascii=False)}"]
    return "\n".join([*lines, "", ""]).encode()


def delta(text, offset, attempt=1, step=1):
    return sse("live.delta", step=step, attempt=attempt, offset=offset, text=text)


def thought(text, offset, attempt=1, step=1):
    return sse("live.reasoning", step=step, attempt=attempt, offset=offset, text=text)


def streamed(*parts, breaks=False):
    def body():
        yield from parts
        if breaks:
            raise httpx.ReadError("cut")

    async def abody():
        for part in body():
            yield part

    class Either(httpx.SyncByteStream, httpx.AsyncByteStream):
        def __iter__(self):
            return body()

        def __aiter__(self):
            return abody()

    return httpx.Response(200, headers={"Content-Type": "text/event-stream"}, stream=Either())


STARTED = sse("run.started", "1-1")
ENDED = sse("turn.ended", "9-1", disposition="answered")


def kinds(events):
    return [event.kind for event in events]


def text(events):
    """What a program shows that follows the two rules: append pieces, and begin anew after a reset."""
    said = ""
    for event in events:
        said = "" if event.kind == "live.reset" else said + event.text
    return said


def test_events_come_as_they_are_until_the_turn_ends(client, fleet):
    fleet.answers = [streamed(b"retry: 1000\n\n: ping\n\n", STARTED, ENDED, sse("run.started", "10-1"))]
    events = client.stream("t1")

    assert kinds(events) == ["run.started", "turn.ended"]
    assert (events[0].id, events[0].turn_id, events[1].data["disposition"]) == ("1-1", "t1", "answered")
    assert fleet.requests[0].headers["accept"] == "text/event-stream"
    assert str(fleet.requests[0].url) == "http://fleet.example/turns/t1/events?until=waiting"
    assert "last-event-id" not in fleet.requests[0].headers


def test_a_stream_ends_when_the_turn_waits_for_a_decision(client, fleet):
    fleet.answers = [streamed(STARTED, sse("turn.waiting", questions=[]))]
    assert kinds(client.stream("t1")) == ["run.started", "turn.waiting"]


def test_a_broken_stream_continues_behind_the_last_fact(client, fleet):
    fleet.answers = [
        streamed(STARTED, sse("tools.settled", "3-1")[:-5], breaks=True),
        streamed(STARTED, sse("tools.settled", "3-1"), ENDED),
    ]
    assert kinds(client.stream("t1")) == ["run.started", "tools.settled", "turn.ended"]
    assert fleet.requests[1].headers["last-event-id"] == "1-1"


def test_reasoning_goes_on_after_a_break_and_is_no_text(client, fleet):
    snapshot = sse("live.snapshot", step=1, attempt=1, text="Y", reasoning="so it is")
    replied = sse("model.replied", "2-1", step=1, text="Yes", reasoning="so it is")
    fleet.answers = [
        streamed(STARTED, thought("so ", 0), breaks=True),
        streamed(snapshot, thought("is", 6), delta("es", 1), replied, ENDED),
    ]
    events = client.stream("t1")

    assert [event.reasoning for event in events if event.kind == "live.reasoning"] == ["so ", "it is"]
    assert [event.text for event in events if event.text] == ["Y", "es"]
    assert "live.reset" not in kinds(events)


def test_a_stream_that_was_left_is_continued_by_an_id(client, fleet):
    fleet.answers = [streamed(ENDED)]
    client.stream("t1", after="3-1")
    assert fleet.requests[0].headers["last-event-id"] == "3-1"


def test_nothing_behind_the_last_event_is_the_end(client, fleet):
    fleet.answers = [streamed(STARTED, breaks=True), httpx.Response(204)]
    assert kinds(client.stream("t1")) == ["run.started"]
    assert len(fleet.requests) == 2


def test_a_stream_can_go_on_while_others_decide(client, fleet):
    fleet.answers = [streamed(STARTED, sse("turn.waiting", questions=[]), ENDED)]
    assert kinds(client.stream("t1", stop_at_questions=False)) == ["run.started", "turn.waiting", "turn.ended"]
    assert fleet.requests[0].url.query == b""


def test_the_end_of_a_message_that_joined_the_run_is_not_the_end_of_the_turn(client, fleet):
    fleet.answers = [streamed(STARTED, sse("turn.ended", "2-1", disposition="steered"), ENDED)]
    assert kinds(client.stream("t1")) == ["run.started", "turn.ended", "turn.ended"]


def test_an_end_without_a_last_event_is_a_break(client, fleet):
    fleet.answers = [streamed(STARTED), streamed(ENDED)]
    assert kinds(client.stream("t1")) == ["run.started", "turn.ended"]
    assert len(fleet.pauses) == 1


def test_a_stream_that_never_comes_is_given_up(client, fleet):
    fleet.answers = [httpx.ConnectError("no route")]
    with pytest.raises(chordage.Unavailable, match="cannot be reached"):
        client.stream("t1")
    assert len(fleet.requests) == 6


def test_each_event_gives_all_attempts_again(fleet):
    fleet.answers = [*(streamed(sse("tools.settled", f"{n}-1"), breaks=True) for n in range(1, 9)), streamed(ENDED)]
    assert len(Driven("sync", fleet, retries=1).stream("t1")) == 9


def test_a_refused_stream_is_an_exception(client, fleet):
    fleet.answers = [problem(404, "not_found", "there is no turn 't1'")]
    with pytest.raises(chordage.NotFound, match="no turn"):
        client.stream("t1")


def test_text_that_comes_again_after_a_break_is_passed_on_once(client, fleet):
    fleet.answers = [
        streamed(STARTED, delta("Hel", 0), delta("lo", 3), breaks=True),
        streamed(sse("live.snapshot", attempt=1, text="Hello wor"), delta("ld", 9), delta("ld", 9), ENDED),
    ]
    assert [event.text for event in client.stream("t1") if event.kind == "live.delta"] == ["Hel", "lo", " wor", "ld"]


def test_text_of_a_worker_that_died_is_taken_back(client, fleet):
    fleet.answers = [
        streamed(
            STARTED, delta("Hel", 0), sse("live.reset", attempt=2), delta("lo", 3, attempt=1),
            delta("Bye", 0, attempt=2), ENDED,
        )
    ]  # fmt: skip
    events = client.stream("t1")
    assert kinds(events) == ["run.started", "live.delta", "live.reset", "live.delta", "turn.ended"]
    assert text(events) == "Bye"


def test_a_reply_on_record_completes_its_text_or_replaces_it(client, fleet):
    fleet.answers = [
        streamed(STARTED, delta("Hel", 0), delta("o", 7), sse("model.replied", "2-1", text="Hello"), ENDED)
    ]
    assert text(client.stream("t1")) == "Hello"

    fleet.answers = [streamed(STARTED, delta("Hal", 0), sse("model.replied", "2-1", text="Hello"), ENDED)]
    assert text(client.stream("t1")) == "Hello"


def test_separators_inside_a_text_end_no_line(client, fleet):
    odd = "a\u2028b\x85c\x0bd\x1ce\r\n"
    fleet.answers = [streamed(delta(odd, 0), ENDED)]
    assert text(client.stream("t1")) == odd


def test_bytes_may_come_in_any_pieces(client, fleet):
    whole = STARTED + delta("Grüße", 0) + ENDED
    fleet.answers = [streamed(*(whole[place : place + 1] for place in range(len(whole))))]
    assert text(client.stream("t1")) == "Grüße"


def test_what_is_no_event_is_named(client, fleet):
    fleet.answers = [streamed(b"event: run.started\ndata: <html>\n\n")]
    with pytest.raises(chordage.Unavailable, match="no JSON"):
        client.stream("t1")


# A server whose run is told from the facts it has, and from what is live while a reader is connected

ATTEMPTS = st.lists(st.text(st.characters(codec="utf-8"), min_size=1, max_size=8), min_size=1, max_size=3)


@st.composite
def timelines(draw):
    """Replies, each after attempts of which the last is right: the events in the order in which they happen."""
    timeline, row = [], 1
    for step in range(1, draw(st.integers(1, 3)) + 1):
        attempts = draw(ATTEMPTS)
        for attempt, words in enumerate(attempts, 1):
            timeline.append(("reset", step, attempt, 0, ""))
            cut = draw(st.integers(0, len(words)))
            pieces = [words[:cut], words[cut:]] if attempt == len(attempts) else [words[:cut]]
            timeline.append(("thought", step, attempt, 0, f"so {words}"[: cut + 3]))
            timeline.append(("thought", step, attempt, cut + 3, f"so {words}"[cut + 3 :]))
            offset = 0
            for piece in pieces:
                timeline.append(("delta", step, attempt, offset, piece))
                offset += len(piece)
        timeline.append(("fact", step, f"{row}-1", 0, attempts[-1]))
        row += draw(st.integers(1, 3))
    return timeline


def event_bytes(event):
    kind, step, mark, offset, words = event
    if kind == "fact":
        return sse("model.replied", mark, step=step, text=words, reasoning=f"so {words}")
    if kind == "thought":
        return thought(words, offset, mark, step)
    if kind == "reset":
        return sse("live.reset", step=step, attempt=mark)
    return delta(words, offset, mark, step)


def connection(timeline, now, last_id):
    """What a reader gets that comes at the moment `now`."""
    seen = [event for event in timeline[:now] if event[0] == "fact"]
    missed = [event for event in seen if last_id is None or int(event[2].split("-")[0]) > int(last_id.split("-")[0])]
    live = None
    for kind, step, mark, offset, words in timeline[:now]:
        if kind == "fact":
            live = None
        elif kind == "reset":
            live = (step, mark, "", "")
        elif live is not None and kind == "thought":
            live = (step, mark, live[2], live[3][:offset] + words)
        elif live is not None:
            live = (step, mark, live[2][:offset] + words, live[3])
    parts = [event_bytes(event) for event in missed]
    if live is not None:
        reasoning = {"reasoning": live[3]} if live[3] else {}
        parts.append(sse("live.snapshot", step=live[0], attempt=live[1], text=live[2], **reasoning))
    return b"".join([*parts, *(event_bytes(event) for event in timeline[now:]), sse("turn.ended", "99-1")])


@settings(max_examples=150, deadline=None)
@given(timeline=timelines(), data=st.data())
def test_wherever_it_breaks_nothing_is_missing_and_nothing_comes_twice(timeline, data):
    fleet, moment = ScriptedFleet(), 0

    def connect(request):
        nonlocal moment
        moment = data.draw(st.integers(moment, len(timeline)))
        whole = connection(timeline, moment, request.headers.get("last-event-id"))
        if len(fleet.requests) > 5:
            return streamed(whole)
        cut = data.draw(st.integers(0, len(whole)))
        return streamed(whole[:cut], breaks=cut < len(whole))

    fleet.answers = [connect]
    events = Driven("sync", fleet, retries=20).stream("t1")

    facts = [event for event in events if event.id is not None]
    assert [event.id for event in facts] == [event[2] for event in timeline if event[0] == "fact"] + ["99-1"]
    said, reasoned = "", ""
    for event in events:
        if event.kind == "model.replied":
            assert (said, reasoned) == (event.data["text"], event.data["reasoning"])
            said, reasoned = "", ""
        assert not (said and event.reasoning), "reasoning comes before the text"
        is_void = event.kind == "live.reset"
        said, reasoned = ("", "") if is_void else (said + event.text, reasoned + event.reasoning)
