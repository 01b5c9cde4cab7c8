"""A database that is locked, or was away: one kind of error, within bounded time, and no error where it is back."""

from __future__ import annotations

import contextlib
import sqlite3
import time

import pytest
from sqlalchemy import bindparam, insert, select, text
from sqlalchemy.engine import make_url

from chordage.config.settings import Settings
from chordage.orchestrator.core.errors import Crossed, Unavailable
from chordage.orchestrator.store import database, schema
from chordage.orchestrator.store.database import HOLD, Store
from chordage.orchestrator.store.statements import PreparedStatement

ADD = PreparedStatement(insert(schema.groups).values(name=bindparam("name")))
NAMES = PreparedStatement(select(schema.groups.c.name))


@pytest.fixture
def file(migrated_database_url, monkeypatch):
    """A SQLite file with a short wait for its lock."""
    monkeypatch.setattr(database, "BUSY_MS", 20)
    return make_url(migrated_database_url("sqlite"))


@pytest.fixture
def locked(file):
    """Another process holds it."""
    with contextlib.closing(sqlite3.connect(file.database, isolation_level=None)) as holder:
        holder.execute("BEGIN EXCLUSIVE")
        yield
        holder.execute("ROLLBACK")


def write(store):
    with store.write():
        pytest.fail("another has the lock")


def single(store):
    with store.single() as tx:
        ADD.changed(tx, {"name": "x"})


def by_the_library(store):
    with store.single() as tx:
        tx.execute(insert(schema.groups).values(name="x"))


@pytest.mark.parametrize("work", [write, single, by_the_library])
def test_a_locked_sqlite_file_is_unavailable_and_is_used_again_once_it_is_free(file, work, request):
    store = Store(file.render_as_string())
    with store.write():
        pass
    request.getfixturevalue("locked")

    with pytest.raises(Unavailable, match="is locked by another transaction") as told:
        work(store)

    assert not isinstance(told.value, Crossed)
    assert len(str(told.value).splitlines()) == 1
    store.close()


def test_sqlite_file_locked_before_its_first_use_is_unavailable_in_time(tmp_path, monkeypatch):
    monkeypatch.setattr(database, "BUSY_MS", 20)
    monkeypatch.setattr(database, "PATIENCE", 0.4)
    path = tmp_path / "new.db"
    store = Store(f"sqlite:///{path}")
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as holder:
        holder.execute("CREATE TABLE x (y)")
        holder.execute("BEGIN EXCLUSIVE")
        began = time.monotonic()
        with pytest.raises(Unavailable, match="is locked"), store.read():
            pass
    assert time.monotonic() - began < 9, "it does not wait for the ten seconds of a lock"
    store.close()


def test_wait_for_the_lock_of_sqlite_blocks_no_reader(file, monkeypatch):
    monkeypatch.setattr(database, "PATIENCE", 1)
    store = Store(file.render_as_string(), pool_size=1)
    with contextlib.ExitStack() as held, store.read() as tx:
        held.enter_context(store.write())
        assert NAMES.rows(tx, {})
    store.close()


def test_read_only_sqlite_file_is_reported(file, monkeypatch):
    store = Store(f"{file.render_as_string().replace('sqlite:///', 'sqlite:///file:')}?mode=ro&uri=true")

    with pytest.raises(Unavailable, match="cannot be used: attempt to write a readonly database"):
        single(store)
    store.close()


def test_every_wait_ends_before_a_lease_runs_out():
    lease = Settings.model_fields["lease"].default

    assert lease / 2 == HOLD
    assert all(int(limit.removesuffix("ms")) <= HOLD * 1000 for limit in database.limits(HOLD).values())
    assert database.KEEPALIVES["tcp_user_timeout"] < lease * 1000
    assert lease * 1000 > database.BUSY_MS


@pytest.mark.postgres
def test_locked_table_is_unavailable_in_time(migrated_database_url):
    store = Store(migrated_database_url("postgres"), hold=1.0)
    holding = Store(store.url)
    with holding.write() as holder:
        holder.execute(text("LOCK TABLE groups IN ACCESS EXCLUSIVE MODE"))
        for work in (single, by_the_library):
            with pytest.raises(Unavailable, match="is locked by another transaction") as told:
                work(store)
            assert not isinstance(told.value, Crossed)
    for one in (store, holding):
        one.close()


@pytest.mark.postgres
@pytest.mark.parametrize("mode", ["fast", "immediate"])
def test_the_first_statement_of_every_thread_after_a_restart_is_served(start_postgres, mode):
    server = start_postgres(fsync=True)
    store = Store(server.create_database(), pool_size=3)
    with store.write() as tx:
        tx.execute(text("CREATE TABLE public.restarts (n integer)"))
    one = PreparedStatement(text("INSERT INTO public.restarts VALUES (1)"))
    with store.read() as first, store.read() as second, store.write() as third:
        for tx in (first, second, third):
            tx.execute(text("SELECT 1"))

    server.restart(mode)

    with store.write() as first, store.single() as second, store.write() as third:
        for tx in (first, second, third):
            one.send(tx, {})
    with store.read() as tx:
        assert tx.execute(text("SELECT count(*) FROM public.restarts")).scalar() == 3
    store.close()


@pytest.mark.postgres
def test_while_it_is_away_it_is_unavailable_and_what_came_meanwhile_does_no_harm(start_postgres):
    server = start_postgres()
    store = Store(server.create_database(), pool_size=2)
    with store.write() as tx:
        tx.execute(text("SELECT 1"))
    server.stop("fast")
    for _ in range(3):
        with pytest.raises(Unavailable, match="does not answer"), store.write() as tx:
            tx.execute(text("SELECT 1"))
    server.start()

    with store.write() as tx:
        assert tx.execute(text("SELECT 1")).scalar() == 1
    store.close()
