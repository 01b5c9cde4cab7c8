"""Transactions that PostgreSQL undoes because they met crosswise: told as that, not as a database that is away."""

from __future__ import annotations

import threading

import pytest
from sqlalchemy import text

from chordage.orchestrator.core.errors import Crossed, Unavailable
from chordage.orchestrator.core.groups import Group
from chordage.orchestrator.store import queues
from chordage.orchestrator.store.tx import Store
from support.race import race

pytestmark = pytest.mark.postgres


@pytest.fixture
def store(migrated_database_url):
    store = Store(migrated_database_url("postgres"))
    with store.write() as tx:
        tx.execute(text("INSERT INTO groups (name) VALUES ('chat'), ('task') ON CONFLICT DO NOTHING"))
    yield store
    store.close()


def test_one_of_two_that_wait_for_each_other_is_undone_and_told_that_it_may_repeat(store):
    both_hold_one = threading.Barrier(2)

    def crosswise(first, second):
        def lock_both(tx):
            queues.lock(tx, first)
            both_hold_one.wait(10)
            queues.lock(tx, second)
            return "through"

        return lock_both

    found = race(store, [crosswise(Group.CHAT, Group.TASK), crosswise(Group.TASK, Group.CHAT)])

    (undone,) = [one for one in found if one != "through"]
    assert isinstance(undone, Crossed)
    assert "in conflict with another (deadlock detected); nothing was stored" in str(undone)


def test_a_lock_that_is_not_free_in_time_and_what_cannot_be_put_in_order_are_conflicts_too(store):
    with store.write() as tx:
        queues.lock(tx, Group.CHAT)
        with pytest.raises(Crossed, match="could not obtain lock"), store.write() as other:
            other.execute(text("SELECT 1 FROM groups WHERE name = 'chat' FOR UPDATE NOWAIT"))
    with pytest.raises(Crossed, match="could not serialize"), store.write() as tx:
        tx.execute(text("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ"))
        tx.execute(text("SELECT * FROM groups"))
        with store.write() as other:
            other.execute(text("UPDATE groups SET name = name"))
        tx.execute(text("UPDATE groups SET name = name"))


def test_a_database_that_is_away_is_no_conflict():
    store = Store("postgresql+psycopg://nobody@127.0.0.1:1/none")

    with pytest.raises(Unavailable, match="does not answer") as away, store.read():
        pytest.fail("nothing is there to be read from")
    assert not isinstance(away.value, Crossed)
    store.close()
