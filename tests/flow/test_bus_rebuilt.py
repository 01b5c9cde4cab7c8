"""The bus is built anew while messages come in and another copies: nothing is missing, doubled or out of order."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from chordage.orchestrator import stages
from chordage.orchestrator.core.bus import Fact, entries_of
from chordage.orchestrator.core.errors import Conflict
from chordage.orchestrator.core.message import Message, Origin, Sender, TurnRequest
from chordage.orchestrator.store import projection
from support.bus import settle, stream, with_bus
from support.fakes import spoken
from support.waiting import PATIENCE
from support.world import World

pytestmark = pytest.mark.redis
TURNS, TIMES = 40, 6


@pytest.fixture
def redis(world: World, redis_url: str):
    client, _ = with_bus(world, redis_url, batch=5)
    yield client
    client.close()


def come_and_go(world: World, number: int) -> None:
    """Many short transactions, each with a row for the bus."""
    for n in range(TURNS):
        thread = f"t{number}.{n % 5}"
        message = Message(origin=Origin.INVOKE, channel=None, sender=Sender.SERVICE, thread_id=thread, text="hi")
        admitted, _ = stages.admit(world.runtime, TurnRequest(message=message))
        stages.cancel_turn(world.runtime, admitted.turn_id, "not needed")


def copy(world: World, over: threading.Event) -> int:
    rt, times = replace(world.runtime, worker="another"), 0
    while not over.is_set():
        stages.project(rt)
        times += 1
    return times


def rebuild(world: World) -> None:
    """As a client repeats a request that was refused for now."""
    give_up = time.monotonic() + PATIENCE
    while True:
        try:
            stages.rebuild_bus(world.runtime)
        except Conflict:
            assert time.monotonic() < give_up
        else:
            return


def facts(world: World) -> list[Fact]:
    with world.store.read() as tx:
        return projection.facts(tx, 0, 10_000)


def test_bus_rebuilt_among_writers_has_each_young_row_once_and_in_order(world: World, redis) -> None:
    world.models.script = lambda prompt: spoken("ok")
    world.submit("long ago", thread="old")
    world.run_dry()
    world.clock.pass_by(90_000)
    old = facts(world)
    over = threading.Event()

    with ThreadPoolExecutor(3) as pool:
        writers = [pool.submit(come_and_go, world, number) for number in range(2)]
        copying = pool.submit(copy, world, over)
        for _ in range(TIMES):
            rebuild(world)
        for writer in writers:
            writer.result(PATIENCE)
        over.set()
        assert copying.result(PATIENCE)
    settle(world)

    young = facts(world)[len(old) :]
    expected = [entry.id for fact in young for entry in entries_of(fact) if entry.run is None]
    assert len(expected) == 4 * TURNS
    assert [entry["id"] for entry in stream(redis)] == expected
    assert world.row("projection")["generation"] >= TIMES
