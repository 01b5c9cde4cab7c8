"""The database is locked for longer than a transaction waits: messages are kept, and no worker counts as dead."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from celery import Celery
from celery.exceptions import Reject
from sqlalchemy import text
from sqlalchemy.engine import make_url

from chordage.orchestrator import stages
from chordage.orchestrator.core.errors import Crossed, Unavailable
from chordage.orchestrator.core.message import Message, Origin, Sender, TurnRequest
from chordage.orchestrator.run.unit import Unit
from chordage.orchestrator.stages import admission
from chordage.orchestrator.store import database, schema
from chordage.orchestrator.store.database import Store
from chordage.tasks import names, tasks
from chordage.tasks.tasks import StageTask
from support.fakes import rounds_of
from support.invariants import check_all
from support.world import Header, World


@pytest.fixture
def world(database_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    monkeypatch.setattr(database, "BUSY_MS", 20)
    made = World(Store(database_url, hold=2.0))
    yield made
    made.close()


@contextmanager
def locked(world: World) -> Iterator[None]:
    if not world.store.is_postgres:
        with contextlib.closing(sqlite3.connect(make_url(world.store.url).database, isolation_level=None)) as holder:
            holder.execute("BEGIN EXCLUSIVE")
            yield
            holder.execute("ROLLBACK")
        return
    holder = Store(world.store.url, pool_size=1)
    with holder.write() as tx:
        tx.execute(text(f"LOCK TABLE {', '.join(schema.metadata.tables)} IN ACCESS EXCLUSIVE MODE"))
        yield
    holder.close()


@pytest.mark.parametrize("effect", ["pure", "unsafe"])
def test_a_call_that_meets_a_locked_database_counts_no_death_and_is_carried_out_once(world: World, effect: str) -> None:
    world.models.script = rounds_of(1, tool=effect)
    turn = world.submit()
    while not isinstance(world.pending[0], Header):
        world.deliver(world.pending.pop(0))

    with locked(world), pytest.raises(Unavailable, match="is locked by another transaction"):
        world.deliver(world.pending[0], doubt=True)

    assert world.row("calls")["expiries"] == 0
    world.recover()
    assert world.row("turns", id=turn)["disposition"] == "answered"
    assert world.tools.ran.total() == 1
    check_all(world.store)


def test_a_message_that_meets_a_locked_database_is_refused_after_one_wait(world: World, monkeypatch) -> None:
    message = Message(origin=Origin.INVOKE, channel=None, sender=Sender.SERVICE, thread_id="t", text="hello")
    tries = []
    monkeypatch.setattr(admission, "Unit", lambda rt: tries.append(1) or Unit(rt))

    with locked(world), pytest.raises(Unavailable, match="is locked by another transaction") as told:
        stages.admit(world.runtime, TurnRequest(message=message))

    assert not isinstance(told.value, Crossed)
    assert len(tries) == 1


def test_a_message_by_name_that_meets_a_locked_database_stays_in_its_queue(world: World, monkeypatch) -> None:
    monkeypatch.setattr(tasks, "PAUSE", 0)

    class Stage(StageTask):
        abstract = True
        build_runtime = staticmethod(lambda: world.runtime)

    app = Celery("test", set_as_current=False)
    tasks.register(app, Stage, tool_time_limit=60)

    with locked(world), pytest.raises(Reject) as told:
        app.tasks[names.SUBMIT].run(text="hello", dedupe_key="k")

    assert told.value.requeue
    assert world.rows("turns") == []
    app.close()
