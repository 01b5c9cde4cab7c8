"""What is sent to a page that is open, and the text of a reply while it is written."""

from __future__ import annotations

import asyncio
import itertools
import re

import anyio
import pytest

from chordage.orchestrator.api.limits import StreamSlots
from chordage.orchestrator.console import live, live_text, pages
from chordage.orchestrator.console.live import OVER, LivePage, LiveParts, LiveStreams, changes, digest
from chordage.orchestrator.console.live_text import LiveText
from chordage.orchestrator.console.payloads import HIDDEN, without_payloads
from chordage.orchestrator.core.callers import Caller
from chordage.orchestrator.core.errors import TooManyRequests, Unavailable
from chordage.orchestrator.core.model import Usage
from chordage.orchestrator.core.run_events import RunEvent
from chordage.orchestrator.views.runs import InferenceStep, SteeredStep
from support.builders import NOON


def a_page(**given):
    return LivePage(**{"render": lambda _watch: LiveParts(parts={}), "key": "k", "target": "rows", **given})


def test_only_what_differs_is_sent():
    sent = changes({"a": "<p>1", "b": "<p>2", "c": "<p>3"}, {"a": "<p>1", "b": "<p>X", "d": "<p>4"}, a_page())

    assert 'hx-target="#a"' not in sent
    assert '<hx-partial hx-target="#b" hx-swap="outerMorph"><p>X</hx-partial>' in sent
    assert '<hx-partial hx-target="#c" hx-swap="delete">' in sent
    assert '<hx-upsert hx-target="#rows" key="data-order" sort><p>4</hx-upsert>' in sent
    assert changes({"a": "1"}, {"a": "1"}, a_page()) == ""


def test_parts_that_a_person_fills_in_are_left_alone():
    page = a_page(keeps="card-")

    assert changes({"card-1": "1", "head": "1"}, {"card-1": "2", "head": "1"}, page) == ""
    assert 'hx-target="#head"' in changes({"card-1": "1", "head": "1"}, {"card-1": "2", "head": "2"}, page)


def test_of_what_is_over_a_line_stays_if_the_page_has_one():
    closed = {"card-1": "<p id=card-1>It was denied."}

    sent = changes({"card-1": "1", "card-2": "2"}, {}, a_page(keeps="card-"), closed)

    assert '<hx-partial hx-target="#card-1" hx-swap="outerMorph"><p id=card-1>It was denied.</hx-partial>' in sent
    assert '<hx-partial hx-target="#card-2" hx-swap="delete">' in sent


def messages_of(page, known, count):
    async def read():
        messages = LiveStreams().messages(page, None, known)
        got = [await anext(messages) for _ in range(count)]
        await messages.aclose()
        return got

    return asyncio.run(read())


def test_a_page_that_is_up_to_date_gets_nothing_again():
    page = a_page(render=lambda _watch: LiveParts(parts={"a": "<p>1</p>"}, is_over=True))

    assert messages_of(page, digest({"a": "<p>1</p>"}), 2) == ["retry: 1000\n\n", OVER]
    assert "<p>1</p>" in messages_of(page, "old", 2)[1]


def test_each_line_of_a_part_is_a_line_of_the_message():
    page = a_page(render=lambda _watch: LiveParts(parts={"a": "<pre>x\n\ny\revent: z</pre>"}))

    (_, message) = messages_of(page, "", 2)

    assert re.fullmatch(r"(data: [^\r\n]*\n)+\n", message)


def test_all_who_look_at_a_page_learn_at_once_that_it_is_over():
    """They share renderings: the end is in what one of them rendered for all."""
    renderings = []

    def render(_watch):
        renderings.append(1)
        return LiveParts(parts={"a": "1"}, is_over=True)

    async def read():
        streams = LiveStreams()
        each = [streams.messages(a_page(render=render), None, digest({"a": "1"})) for _ in range(20)]
        return await asyncio.gather(*(_all_of(messages) for messages in each))

    assert asyncio.run(read()) == [["retry: 1000\n\n", OVER]] * 20
    assert len(renderings) == 1


async def _all_of(messages):
    return [message async for message in messages]


class Events:
    """Of one run, which says its first word once it is watched."""

    too_slow = TimeoutError

    def __init__(self):
        self.watched = []

    async def run_events(self, run_id):
        self.watched.append(run_id)
        yield a_delta("Hello", 0)
        await asyncio.Event().wait()


def test_the_page_of_a_queued_turn_watches_its_run_once_it_starts():
    def render(watch):
        return LiveParts(parts={"a": watch.texts[1].text if watch.texts else "-"}, run_id="r")

    async def read():
        events = Events()
        messages = LiveStreams().messages(a_page(render=render, run_id=None), events, "")
        told = [await anext(messages) for _ in range(3)]
        await messages.aclose()
        return told, events.watched

    told, watched = asyncio.run(read())

    assert "Hello" in told[2]
    assert watched == ["r"]


def test_the_page_of_a_run_at_rest_looks_again_when_its_rows_have_changed(monkeypatch):
    """Not once a second: five hundred pages would keep a processor busy with what stays as it was."""
    monkeypatch.setattr(live_text, "MARKED_EVERY", 0.01)
    monkeypatch.setattr(live, "EVERY", 0.01)
    monkeypatch.setattr(live, "AT_REST", 60.0)
    asked, shown = [], ["a"]

    def read(run_ids):
        asked.append(list(run_ids))
        if len(asked) == 5:
            shown[0] = "b"
        return {"r": shown[0]}

    def render(_watch):
        return LiveParts(parts={"a": shown[0]}, run_id="r", is_at_rest=True)

    async def follow():
        messages = LiveStreams(read).messages(a_page(render=render, run_id="r"), Events(), "")
        told = [await asyncio.wait_for(anext(messages), 120) for _ in range(3)]
        await messages.aclose()
        return told

    told = asyncio.run(follow())

    assert "b</hx-partial>" in told[2]
    assert asked[0] == ["r"]


def test_pages_look_for_themselves_while_marks_cannot_be_read(monkeypatch):
    monkeypatch.setattr(live, "EVERY", 0.01)
    monkeypatch.setattr(live, "SHARED_FOR", 0.0)
    monkeypatch.setattr(live, "AT_REST", 60.0)
    numbers = itertools.count()

    def read(_run_ids):
        raise Unavailable("no database")

    def render(_watch):
        return LiveParts(parts={"a": f"{next(numbers)}"}, run_id="r", is_at_rest=True)

    async def follow():
        messages = LiveStreams(read).messages(a_page(render=render, run_id="r"), Events(), "")
        told = [await asyncio.wait_for(anext(messages), 120) for _ in range(4)]
        await messages.aclose()
        return told

    assert len(set(asyncio.run(follow()))) == 4


def a_delta(text, offset, attempt=1, kind="live.delta"):
    return RunEvent(id=None, kind=kind, step=1, data={"attempt": attempt, "offset": offset, "text": text})


def taken(*events):
    text = LiveText()
    for event in events:
        text = text.taking(event)
    return text


def test_a_delta_counts_if_it_begins_where_the_text_ends():
    assert taken(a_delta("Hel", 0), a_delta("lo", 3), a_delta("lo", 3), a_delta("x", 9)).text == "Hello"


def test_a_snapshot_sets_the_text():
    assert (
        taken(a_delta("Hel", 0), a_delta("Hello wor", None, kind="live.snapshot"), a_delta("ld", 9)).text
        == "Hello world"
    )


def test_text_of_a_worker_that_died_is_kept_apart():
    text = taken(a_delta("Hel", 0), a_delta("", None, attempt=2, kind="live.reset"), a_delta("Bye", 0, attempt=2))

    assert (text.text, text.dropped) == ("Bye", ("Hel",))


def test_reasoning_is_shown_beside_the_text_and_lost_with_it():
    def a_thought(text, offset, attempt=1):
        return a_delta(text, offset, attempt, kind="live.reasoning")

    events = [a_thought("so ", 0), a_thought("it", 3), a_thought("it", 3), a_delta("Hel", 0)]
    text = taken(*events)
    assert (text.reasoning, text.text) == ("so it", "Hel")
    assert taken(*events, a_delta("", 0, kind="model.replied")).reasoning == ""
    lost = taken(*events[:2], a_delta("", None, attempt=2, kind="live.reset"))
    assert (lost.reasoning, lost.dropped) == ("", ("so it",))
    known = RunEvent(id=None, kind="live.snapshot", step=1, data={"attempt": 1, "text": "He", "reasoning": "so"})
    assert taken(known, a_thought(" it", 2)).reasoning == "so it"


def test_hostile_reasoning_is_text_in_a_closed_part_of_the_page():
    hostile = "</pre></details><script>alert(1)</script><img src=x onerror=alert(1)>"
    steps = pages._ENVIRONMENT.get_template("parts/steps.html").module

    html = str(steps.reasoning('r"1', hostile))

    assert "<script" not in html
    assert "<img" not in html
    assert html.startswith('<details class="reasoning" id="r&#34;1"><summary>Reasoning</summary><pre>&lt;/pre&gt;')


def test_a_reply_on_record_ends_the_live_text():
    assert taken(a_delta("Hel", 0), a_delta("", 0, kind="model.replied"), a_delta("late", 0)).text == ""


def test_texts_are_hidden_wherever_they_are():
    step = SteeredStep(number=1, at=NOON, turn_id="u", sender="owner", text="secret")

    shown = without_payloads({"a": [step], "b": (step,)})

    assert shown["a"][0].text == HIDDEN
    assert shown["b"][0].sender == "owner"
    assert "secret" not in repr(shown)


def test_reasoning_is_hidden_with_the_texts():
    step = InferenceStep(number=1, at=NOON, reasoning="secret", attempts=(), usage=Usage(), seconds=None)

    assert without_payloads(step).reasoning == HIDDEN


def test_a_reader_that_stops_loses_its_place_and_its_stream(monkeypatch):
    monkeypatch.setattr(live, "SEND_WITHIN", 0.01)
    slots, ended = StreamSlots(1), []

    async def messages():
        try:
            while True:
                yield "data: x\n\n"
        finally:
            ended.append(True)

    async def never(message=None):
        if message is None or message["type"] == "http.response.body":
            await anyio.sleep_forever()

    response = live.LiveStream(messages(), slots, Caller(id="k"))
    with pytest.raises(TooManyRequests):
        live.LiveStream(messages(), slots, Caller(id="k"))
    scope = {"type": "http", "path": "/x", "asgi": {"spec_version": "2.3"}}
    anyio.run(response, scope, never, never)

    slots.enter(Caller(id="k"))  # its place is free
    assert ended
