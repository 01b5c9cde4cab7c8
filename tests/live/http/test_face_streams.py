"""Streams of the faces while nothing comes: their end when the client goes away, or the server stops."""

from __future__ import annotations

import json
import threading
from collections.abc import AsyncIterator, Iterator
from typing import Any, cast

import anyio
import httpx
import pytest
from sse_starlette.sse import AppStatus

from chordage.config.settings import load
from chordage.orchestrator import views
from chordage.orchestrator.core.status import TurnStatus
from chordage.orchestrator.faces.moments import StepStarted, TextGrown, TurnMoment
from chordage.workers.bootstrap import runtime_from
from support.face_server import server_of, write_room
from support.moments import Script
from support.waiting import until
from support.web_server import served

AGUI = ("/agui/ada", {"threadId": "t1", "runId": "r1", "messages": [{"id": "u1", "role": "user", "content": "hello"}]})
PARTS = [{"type": "text", "text": "hello"}]
AI_SDK = ("/ai/ada/chat", {"id": "t1", "messages": [{"id": "u1", "role": "user", "parts": PARTS}]})
BOTH = pytest.mark.parametrize(("path", "body"), [AGUI, AI_SDK])


class SilentStreams:
    """Half a text, and then nothing."""

    def __init__(self) -> None:
        self.closed = threading.Event()

    async def follow(self, turn_id: str, *, space: str | None, after: str | None = None) -> AsyncIterator[TurnMoment]:
        script = Script(turn=turn_id).started().say(StepStarted(step=1))
        try:
            for moment in script.say(TextGrown(step=1, attempt=1, text="Half")).moments:
                yield moment
            await anyio.sleep_forever()
        finally:
            self.closed.set()


@pytest.fixture
def rt(tmp_path, migrated_database_url):
    room = write_room(tmp_path / "room")
    runtime = runtime_from(load(room=room, database_url=migrated_database_url("sqlite")), with_redis=False)
    yield runtime
    runtime.store.close()


@pytest.fixture
def streams() -> SilentStreams:
    return SilentStreams()


@pytest.fixture
def client(rt, streams) -> Iterator[httpx.Client]:
    with served(server_of(rt, cast("Any", streams))) as one:
        yield one


def events_of(lines: Iterator[str]) -> Iterator[Any]:
    return (json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: {"))


@BOTH
def test_client_that_goes_away_cancels_nothing(client, rt, streams, path, body):
    with client.stream("POST", path, json=body) as response:
        next(event for event in events_of(response.iter_lines()) if "Half" in str(event))

    until(streams.closed.is_set, "nobody follows any more", pause=0.01)
    assert [line.status for line in views.turns(rt.store)] == [TurnStatus.QUEUED]


@BOTH
def test_server_that_stops_ends_the_stream_with_an_error(client, streams, path, body, monkeypatch):
    with client.stream("POST", path, json=body) as response:
        events = events_of(response.iter_lines())
        next(event for event in events if "Half" in str(event))
        monkeypatch.setattr(AppStatus, "should_exit", True)
        last = list(events)

    assert [event["type"] for event in last] in (
        ["TEXT_MESSAGE_END", "STEP_FINISHED", "RUN_ERROR"],
        ["text-end", "finish-step", "error"],
    )
    assert "The turn continues" in str(last[-1])
    until(streams.closed.is_set, "nobody follows any more", pause=0.01)
