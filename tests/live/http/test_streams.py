"""Server-sent events over HTTP: what a follower gets, how it comes back, and what is refused before the first byte."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace

import httpx
import pytest

from chordage.orchestrator import stages, views
from chordage.orchestrator.api.services import keep
from chordage.orchestrator.api.streams import STREAMS_MAX
from chordage.orchestrator.core.callers import LOCAL, KeyScope
from chordage.orchestrator.core.errors import Unavailable
from chordage.orchestrator.core.run_events import position_of
from chordage.workers import web
from support.following import Sent, SilentStreams, everything, following
from support.web_server import PROBLEM, finish, served, server_with

pytestmark = pytest.mark.redis


def submitted(client: httpx.Client, text: str, **fields: object) -> str:
    turn_id: str = client.post("/turns", json={"text": text, **fields}).json()["turn_id"]
    return turn_id


def finished(client: httpx.Client, rt, text: str, **fields: object) -> str:
    turn_id = submitted(client, text, **fields)
    finish(rt, turn_id)
    return turn_id


def kinds(events: list[Sent]) -> list[str]:
    return [event.event for event in events]


PLAIN = ["run.started", "model.replied", "tools.settled", "model.replied", "run.finished", "turn.ended"]


def test_turn_that_is_done_is_told_from_its_beginning(client, rt):
    turn_id = finished(client, rt, "add", thread_id="t")
    events = everything(client, f"/turns/{turn_id}/events")
    assert kinds(events) == ["turn.queued", *PLAIN]
    reply, results, answer = events[2], events[3], events[4]
    assert reply.data["text"] == "Let me add."
    assert [call["arguments"] for call in reply.data["calls"]] == [{"a": 1, "b": 2}, {"a": 30, "b": 4}]
    assert [call["id"] for call in results.data["calls"]] == [call["id"] for call in reply.data["calls"]]
    assert [call["content"] for call in results.data["calls"]] == ["3", "34"]
    assert answer.data["text"] == events[-1].data["text"] == "Sums: 3\n34"
    assert events[-1].data["disposition"] == "answered"
    assert events[-1].data["usage"]["output_tokens"] > 0
    assert [position_of(event.id) for event in events] == sorted(position_of(event.id) for event in events)


def test_run_is_told_with_the_ids_of_the_bus(client, rt):
    turn_id = finished(client, rt, "add")
    run_id = views.turn(rt.store, turn_id).run_id
    events = everything(client, f"/runs/{run_id}/events")
    assert kinds(events) == PLAIN
    assert events == everything(client, f"/turns/{turn_id}/events")[1:]
    assert events[-1].id == events[-2].id.replace("-0", "-1")


def test_stream_begins_with_the_time_to_come_back(client, rt):
    turn_id = finished(client, rt, "hello")
    with following(client, f"/turns/{turn_id}/events") as events:
        assert next(events) == "retry 1000"


def test_headers_keep_proxies_from_storing_it(client, rt):
    turn_id = finished(client, rt, "hello")
    with client.stream("GET", f"/turns/{turn_id}/events") as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        assert response.headers["cache-control"] == "no-store"
        assert response.headers["x-accel-buffering"] == "no"
        assert b"\r" not in response.read()


def test_follower_that_comes_back_gets_what_came_behind_each_event(client, rt):
    turn_id = finished(client, rt, "add")
    events = everything(client, f"/turns/{turn_id}/events")
    for place, event in enumerate(events[:-1], 1):
        assert everything(client, f"/turns/{turn_id}/events", event.id) == events[place:]
        assert everything(client, f"/turns/{turn_id}/events", after=event.id) == events[place:]


def test_behind_the_end_there_is_nothing(client, rt):
    turn_id = finished(client, rt, "hello")
    last = everything(client, f"/turns/{turn_id}/events")[-1]
    assert client.get(f"/turns/{turn_id}/events", headers={"Last-Event-ID": last.id}).status_code == 204


def test_turn_is_followed_while_it_runs(client, rt):
    turn_id = submitted(client, "add")
    stages.project(rt)  # as a worker does about once a second
    with following(client, f"/turns/{turn_id}/events") as events, ThreadPoolExecutor(1) as pool:
        assert next(events) == "retry 1000"
        first = next(event for event in events if isinstance(event, Sent))
        work = pool.submit(finish, rt, turn_id)
        live = [first, *(event for event in events if isinstance(event, Sent))]
        work.result()
    facts = [event for event in live if event.id is not None]
    assert facts == everything(client, f"/turns/{turn_id}/events")
    assert kinds(facts) == ["turn.queued", *PLAIN]


def test_turn_that_never_started_ends_its_stream(client, rt):
    turn_id = submitted(client, "hello", thread_id="t")
    stages.cancel_turn(rt, turn_id, "not needed")
    events = everything(client, f"/turns/{turn_id}/events")
    assert kinds(events)[0] == "turn.queued"
    assert kinds(events)[-1] == "turn.ended"
    assert events[-1].data["disposition"] == "cancelled"


def test_disconnect_cancels_nothing(client, rt):
    turn_id = submitted(client, "add")
    with following(client, f"/turns/{turn_id}/events") as events:
        next(events)
    finish(rt, turn_id)
    assert views.turn(rt.store, turn_id).answer == "Sums: 3\n34"


def test_thread_is_followed_from_now_on(client, rt):
    finished(client, rt, "hello", thread_id="t")
    with following(client, "/threads/t/events") as events:
        assert next(events) == "retry 1000"
        turn_id = finished(client, rt, "again", thread_id="t")
        stages.project(rt)  # as a worker does about once a second
        told = [next(event for event in events if isinstance(event, Sent) and event.id)]
        while told[-1].event != "turn.ended":
            told.append(next(event for event in events if isinstance(event, Sent) and event.id))
    assert {event.data["turn_id"] for event in told} == {turn_id}
    assert kinds(told) == ["turn.queued", "run.started", "model.replied", "run.finished", "turn.ended"]


def test_fleet_is_followed_without_texts(client, rt):
    with following(client, "/events", after="0-0") as events:
        assert next(events) == "retry 1000"
        finished(client, rt, "a secret")
        stages.project(rt)
        told = [next(event for event in events if isinstance(event, Sent))]
        while told[-1].event != "turn.ended":
            told.append(next(event for event in events if isinstance(event, Sent)))
    assert kinds(told) == ["turn.queued", "run.started", "run.finished", "turn.ended"]
    assert "secret" not in repr(told)


@pytest.mark.parametrize("path", ["/turns/no-such/events", "/runs/no-such/events", "/threads/no-such/events"])
def test_what_is_not_there_is_not_found(client, path):
    response = client.get(path)
    assert response.status_code == 404
    assert response.headers["content-type"] == PROBLEM


@pytest.mark.parametrize("after", ["x", "1", "1-", "-1", "1-2-3", "²-0", ""])
def test_id_that_is_none_is_refused(client, rt, after):
    turn_id = finished(client, rt, "hello")
    response = client.get(f"/turns/{turn_id}/events", params={"after": after} if after else {"after": " "})
    assert response.status_code == 400
    assert "Last-Event-ID" in response.json()["detail"]


def test_id_that_is_gone_says_where_to_start(client, rt):
    turn_id = finished(client, rt, "hello")
    response = client.get(f"/turns/{turn_id}/events", headers={"Last-Event-ID": "999999-0"})
    assert response.status_code == 410
    assert "behind 0-0" in response.json()["detail"]


def test_without_redis_nothing_is_streamed():
    with served(server_with()) as client:
        response = client.get("/events")
    assert (response.status_code, response.headers["content-type"]) == (503, PROBLEM)


class AwayStreams(SilentStreams):
    async def fleet_events(self, *_about):
        for nothing in ():
            yield nothing
        raise Unavailable("the database at secret.example does not answer")


def test_stream_that_breaks_off_does_not_say_where_the_database_is(settings):
    app = web.wired(settings)
    keep(app, replace(app.state.services, events=AwayStreams()))
    with served(app) as client:
        response = client.get("/events")
    assert response.status_code == 200
    assert ": A required service does not answer" in response.text
    assert "secret" not in response.text


def test_server_with_too_many_streams_says_when_to_come_back():
    streams = SilentStreams()
    streams.followers = STREAMS_MAX
    with served(server_with(events=streams)) as client:
        response = client.get("/events")
    assert response.status_code == 429
    assert response.headers["retry-after"] == "5"


@pytest.fixture
def limited(settings):
    """A server for callers with these scopes."""

    @contextmanager
    def serve(*scopes):
        app = web.wired(settings)
        caller = replace(LOCAL, scopes=frozenset(scopes))
        keep(app, replace(app.state.services, authenticate=lambda _headers: caller))
        with served(app) as client:
            yield client

    return serve


def test_key_without_payloads_never_gets_a_text(client, rt, limited):
    turn_id = finished(client, rt, "add, a secret")
    with limited(KeyScope.READ) as reader:
        events = everything(reader, f"/turns/{turn_id}/events")
        with following(reader, f"/turns/{turn_id}/events") as wire:
            shown = repr(list(wire))
    assert kinds(events) == ["turn.queued", *PLAIN]
    assert "secret" not in shown
    assert "Sums" not in shown
    assert [call["tool"] for call in events[2].data["calls"]] == ["add", "add"]


def test_key_without_read_is_refused(client, rt, limited):
    turn_id = finished(client, rt, "add")
    with limited(KeyScope.SUBMIT) as other:
        for path in ("/events", f"/turns/{turn_id}/events", "/threads/t/events"):
            assert other.get(path).status_code == 403


def test_stream_that_is_to_end_when_the_turn_waits_does(client, rt):
    """Without a question it ends with the turn."""
    turn_id = finished(client, rt, "hello")
    assert everything(client, f"/turns/{turn_id}/events", until="waiting")[-1].event == "turn.ended"
    assert client.get(f"/turns/{turn_id}/events", params={"until": "noon"}).status_code == 422


@pytest.mark.parametrize("path", ["/events", "/threads/t/events", "/turns/t/events", "/runs/t/events"])
def test_an_id_that_no_database_holds_is_refused(client, path):
    for last in ("9223372036854775808-0", "1-9223372036854775808", "9" * 90 + "-0"):
        response = client.get(path, headers={"Last-Event-ID": last})
        assert response.status_code in {400, 404}, last


def test_a_thread_with_a_nul_is_not_there(client):
    assert client.get("/threads/a%00b/events").status_code == 404
