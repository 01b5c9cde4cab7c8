"""Followers that go away while they join: those who come later hear of what happens all the same."""

from __future__ import annotations

import asyncio
import contextlib
import threading

import pytest

from chordage.orchestrator import stages, views
from chordage.orchestrator.core.message import CALLERS
from chordage.orchestrator.loops.streams import StreamHub
from chordage.orchestrator.views.run_events import BEGINNING
from chordage.tasks.schema import request_from
from support.waiting import PATIENCE
from support.web_server import finish

pytestmark = pytest.mark.redis


class HeldStreams:
    """Implements RunStreams. Its first `wake` waits until it is let go, as one does while Redis is slow."""

    def __init__(self) -> None:
        self.runs: set[str] = set()
        self.watches_fleet = False
        self.is_held = threading.Event()
        self.may_go = threading.Event()

    def watch(self, run_id, position):
        self.runs.add(run_id)

    def unwatch(self, run_id):
        self.runs.discard(run_id)

    def watch_fleet(self, position):
        self.watches_fleet = True

    def unwatch_fleet(self):
        self.watches_fleet = False

    def wake(self):
        self.is_held.set()
        assert self.may_go.wait(PATIENCE)

    def stop(self): ...


@pytest.fixture
def streams():
    return HeldStreams()


@pytest.fixture
def hub(rt, streams):
    hub = StreamHub(rt.store, lambda: None)
    hub.connect(streams)
    return hub


async def gone_while_joining(hub, streams, events):
    """A follower that is cancelled while it waits for Redis."""
    follower = asyncio.create_task(anext(events))
    await asyncio.to_thread(streams.is_held.wait, PATIENCE)
    follower.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await follower
    streams.may_go.set()


async def second_is_heard(hub, streams, events):
    """Whether the fleet is watched for the follower who comes behind one that has gone."""
    await gone_while_joining(hub, streams, events())
    assert not streams.watches_fleet
    later = events()
    await anext(later)
    watched = streams.watches_fleet
    await later.aclose()
    return watched


def admitted(rt, **fields):
    return stages.admit(rt, request_from({"text": "hello", **fields}, source="test", space=CALLERS))[0]


@pytest.mark.parametrize("which", ["thread", "fleet"])
def test_next_follower_of_a_topic_is_heard(rt, hub, streams, which):
    thread_id = admitted(rt).thread_id

    def events():
        return hub.thread_events(thread_id, BEGINNING) if which == "thread" else hub.fleet_events(BEGINNING)

    stages.project(rt)
    assert asyncio.run(second_is_heard(hub, streams, events))
    assert not streams.watches_fleet
    assert hub.followers == 0
    assert not hub._topics


def test_next_follower_of_a_queued_turn_is_heard(rt, hub, streams):
    place = views.place_of_turn(rt.store, admitted(rt).turn_id, space=None)

    stages.project(rt)
    assert asyncio.run(second_is_heard(hub, streams, lambda: hub.turn_events(place)))
    assert not streams.watches_fleet


def test_run_that_a_gone_follower_watched_is_not_watched_any_more(rt, hub, streams):
    turn = admitted(rt)
    finish(rt, turn.turn_id)
    run_id = views.turn(rt.store, turn.turn_id).run_id
    asyncio.run(gone_while_joining(hub, streams, hub.run_events(run_id)))
    assert streams.runs == set()
