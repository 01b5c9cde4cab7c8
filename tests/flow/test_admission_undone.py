"""A message whose transaction PostgreSQL undoes, because it waited crosswise with another, is stored all the same."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
from sqlalchemy import text

from chordage.orchestrator import stages
from chordage.orchestrator.core.arrivals import Overflow, QueueBound
from chordage.orchestrator.core.errors import Crossed
from chordage.orchestrator.core.groups import Group
from chordage.orchestrator.core.message import Message, Origin, Sender, TurnRequest
from chordage.orchestrator.stages import admission
from chordage.orchestrator.store import groups
from chordage.orchestrator.store.database import Store
from support.lock_waits import has_lock_waits
from support.waiting import until
from support.world import World

pytestmark = pytest.mark.postgres


@pytest.fixture
def world(migrated_database_url):
    world = World(Store(migrated_database_url("postgres"), pool_size=4))
    bounds = {Group.CHAT: QueueBound(max_queued=9, overflow=Overflow.REJECT)}
    world.runtime = replace(world.runtime, queue_bounds=bounds)
    world.submit("first", thread="t")
    yield world
    world.close()


def hello(number: int) -> TurnRequest:
    message = Message(origin=Origin.INVOKE, channel=None, sender=Sender.SERVICE, thread_id="t", text=f"hello {number}")
    return TurnRequest(message=message, dedupe_key=f"k{number}")


def crosswise_with(world, admit):
    """It holds the group and wants the thread; we hold the thread and want the group. It has waited for longer."""
    with ThreadPoolExecutor(1) as pool:
        with world.store.write() as tx:
            tx.execute(text("SELECT 1 FROM threads WHERE id = 't' FOR UPDATE"))
            stored = pool.submit(admit)
            until(lambda: stored.done() or has_lock_waits(world.store), "the message waits")
            assert not stored.done(), stored.exception()
            groups.lock(tx, Group.CHAT)
        return stored.result(120)


def test_a_message_that_is_undone_is_stored_at_the_next_try(world):
    admitted, _intents = crosswise_with(world, lambda: stages.admit(world.runtime, hello(1)))

    assert world.row("turns", dedupe_key="k1")["id"] == admitted.turn_id


def test_messages_that_are_undone_together_are_stored_one_by_one(world):
    found = crosswise_with(world, lambda: stages.admit_all(world.runtime, [hello(1), hello(2)]))

    assert not [one for one in found if isinstance(one, Exception)]
    assert len(world.rows("turns")) == 3


def test_repeatedly_undone_message_gets_an_error(world, monkeypatch):
    monkeypatch.setattr(admission, "CROSSED_TRIES", 1)

    with pytest.raises(Crossed, match="nothing was stored, and it is safe to repeat"):
        crosswise_with(world, lambda: stages.admit(world.runtime, hello(1)))

    assert world.rows("turns", dedupe_key="k1") == []
