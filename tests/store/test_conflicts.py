"""Transactions that PostgreSQL undoes because they met crosswise: told as that, not as a database that is away."""

from __future__ import annotations

import select
import threading
from typing import Any

import pytest
from sqlalchemy import Text, bindparam, func, text, update
from sqlalchemy import select as select_from
from sqlalchemy.exc import IntegrityError

from chordage.orchestrator.core.errors import Crossed, Unavailable
from chordage.orchestrator.core.groups import Group
from chordage.orchestrator.store import groups, schema
from chordage.orchestrator.store.database import Store
from chordage.orchestrator.store.pipeline import Pipeline
from chordage.orchestrator.store.statements import PreparedStatement
from support.race import race

pytestmark = pytest.mark.postgres


@pytest.fixture
def store(migrated_database_url):
    store = Store(migrated_database_url("postgres"))
    with store.write() as tx:
        tx.execute(text("INSERT INTO groups (name) VALUES ('chat'), ('task') ON CONFLICT DO NOTHING"))
    yield store
    store.close()


def test_one_of_two_deadlocked_transactions_is_undone_with_a_retryable_error(store):
    both_hold_one = threading.Barrier(2)

    def crosswise(first, second):
        def lock_both(tx):
            groups.lock(tx, first)
            both_hold_one.wait(60)
            groups.lock(tx, second)
            return "through"

        return lock_both

    found = race(store, [crosswise(Group.CHAT, Group.TASK), crosswise(Group.TASK, Group.CHAT)])

    (undone,) = [one for one in found if one != "through"]
    assert isinstance(undone, Crossed)
    assert "in conflict with another (deadlock detected); nothing was stored" in str(undone)


def test_lock_timeout_is_no_conflict_that_is_retried_at_once(store):
    with store.write() as tx:
        groups.lock(tx, Group.CHAT)
        with pytest.raises(Unavailable, match="locked by another transaction") as told, store.write() as other:
            other.execute(text("SELECT 1 FROM groups WHERE name = 'chat' FOR UPDATE NOWAIT"))
    assert not isinstance(told.value, Crossed)


def test_what_cannot_be_put_in_order_is_a_conflict_too(store):
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


def test_of_statements_in_one_trip_the_one_that_failed_is_reported_and_not_those_behind_it(store):
    """A violated index is LostRace for the start of a turn; a database that is away would be something else."""
    add_chat = PreparedStatement(text("INSERT INTO groups (name) VALUES ('chat')"))
    look = PreparedStatement(text("SELECT 1"))

    with pytest.raises(IntegrityError, match="duplicate key"), store.one_trip() as tx:
        add_chat.send(tx, {})
        for _ in range(3):
            look.send(tx, {})
    with store.one_trip() as tx:
        tx.execute(text("UPDATE groups SET budget = 5 WHERE name = 'chat'"))
    with store.read() as tx:
        assert tx.execute(text("SELECT budget FROM groups WHERE name = 'chat'")).scalar() == 5


class WithoutSync:
    def __init__(self, libpq: Any) -> None:
        self._libpq = libpq

    def pipeline_sync(self) -> None:
        """It would write out whatever the server has read enough to take."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._libpq, name)


def send_a_part(pipeline: Pipeline, *, commit: bool) -> list[Any]:  # noqa: ARG001 - as what it stands in for
    """Part of what was posted is with the server, which waits for the rest of it until it closes the connection."""
    libpq, pipeline._libpq = pipeline._libpq, WithoutSync(pipeline._libpq)
    try:
        sent = SEND(pipeline, commit=False)
    finally:
        pipeline._libpq = libpq
    assert select.select([libpq.socket], [], [], 10)[0], "the server has not closed the connection"
    return sent


SEND = Pipeline._send


def test_process_that_stops_in_the_middle_of_a_trip_does_not_hold_its_locks_for_ever(store, monkeypatch):
    with store.write() as tx:
        if tx.execute(text("SHOW server_version_num")).scalar() < "170000":
            pytest.skip("platform: PostgreSQL has no transaction_timeout before 17")
    brief = Store(store.url, hold=0.3)
    monkeypatch.setattr(Pipeline, "_send", send_a_part)
    lock = PreparedStatement(select_from(schema.groups.c.name).where(schema.groups.c.name == "chat").with_for_update())
    more_than_goes_at_once = PreparedStatement(select_from(func.length(bindparam("words", type_=Text))))

    with pytest.raises(Unavailable, match="does not answer"), brief.one_trip() as tx:
        lock.send(tx, {})
        more_than_goes_at_once.send(tx, {"words": "x" * 2**25})
    monkeypatch.undo()
    with store.write() as other:
        assert lock.rows(other, {})
    brief.close()


def test_a_transaction_that_takes_too_long_holds_nothing_any_more(store):
    """Half a lease: no claim runs out while its row is locked by others."""
    brief = Store(store.url, hold=0.3)
    with pytest.raises(Unavailable), brief.write() as tx:
        groups.lock(tx, Group.CHAT)
        with store.write() as other:
            groups.lock(other, Group.CHAT)  # it waits until the first is ended
        tx.execute(text("SELECT 1"))
    brief.close()


def test_what_goes_out_in_one_trip_waits_for_no_answer_in_between(store):
    """Another has the lock: sending continues, and only the end of the block waits for it."""
    sent, may_end = threading.Event(), threading.Event()

    def in_one_trip():
        with store.one_trip() as tx:
            PreparedStatement(
                select_from(schema.groups.c.name).where(schema.groups.c.name == "chat").with_for_update()
            ).send(tx, {})
            PreparedStatement(update(schema.groups).where(schema.groups.c.name == "chat").values(served="us")).send(
                tx, {}
            )
            sent.set()
        may_end.set()

    with store.write() as tx:
        groups.lock(tx, Group.CHAT)
        thread = threading.Thread(target=in_one_trip)
        thread.start()
        assert sent.wait(60), "nothing came back yet"
        assert not may_end.is_set()
    assert may_end.wait(60)
    thread.join()
