"""What goes to PostgreSQL together: in its order, once, and with what the driver sends beside it."""

from __future__ import annotations

import contextlib
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest
from sqlalchemy import Engine, bindparam, event, insert, literal, select, text, update
from sqlalchemy.exc import DBAPIError, IntegrityError, ResourceClosedError

from chordage.orchestrator.core.errors import Unavailable
from chordage.orchestrator.store import schema, statements
from chordage.orchestrator.store.database import Store
from chordage.orchestrator.store.pipeline import Pipeline, pipeline_of
from chordage.orchestrator.store.statements import PreparedStatement
from support.lock_waits import has_lock_waits
from support.waiting import PATIENCE, until

pytestmark = pytest.mark.postgres

groups = schema.groups
ADD = PreparedStatement(
    insert(groups).values(name=bindparam("name"), budget=bindparam("budget", type_=groups.c.budget.type))
)
SPEND = PreparedStatement(update(groups).where(groups.c.name == bindparam("of")).values(budget=groups.c.budget - 1))
NAMES = PreparedStatement(select(groups.c.name).order_by(groups.c.name))
WORD = PreparedStatement(
    select(literal("x").label("word"), bindparam("said", type_=schema.turns.c.text.type).label("said"))
)


@pytest.fixture
def store(migrated_database_url):
    store = Store(migrated_database_url("postgres"), pool_size=1)
    with store.write() as tx:
        tx.execute(text("DELETE FROM groups"))
    yield store
    store.close()


@pytest.fixture
def other(store):
    other = Store(store.url)
    yield other
    other.close()


def names(store):
    with store.read() as tx:
        return [row["name"] for row in NAMES.rows(tx, {})]


def is_in_a_transaction(tx):
    return pipeline_of(tx)._libpq.transaction_status != pipeline_of(tx)._idle


def test_statement_without_reader_is_sent_with_the_commit(store):
    with store.write() as tx:
        ADD.send(tx, {"name": "chat", "budget": 3})
        spent = SPEND.send(tx, {"of": "chat"})
        assert not is_in_a_transaction(tx), "nothing has gone yet"

    assert spent.changed() == 1
    assert names(store) == ["chat"]


def test_posted_statements_go_before_the_one_that_is_read(store):
    with store.write() as tx:
        ADD.send(tx, {"name": "chat", "budget": 3})
        assert [row["name"] for row in NAMES.rows(tx, {})] == ["chat"]
        assert SPEND.changed(tx, {"of": "chat"}) == 1
        assert SPEND.changed(tx, {"of": "task"}) == 0


def test_posted_statements_are_sent_before_those_of_sqlalchemy(store):
    with store.write() as tx:
        ADD.send(tx, {"name": "chat", "budget": 3})
        assert tx.execute(text("UPDATE groups SET budget = 9")).rowcount == 1
        with tx.begin_nested() as inner:
            ADD.send(tx, {"name": "task", "budget": 3})
            assert tx.execute(text("SELECT count(*) FROM groups")).scalar() == 2
            inner.rollback()
        SPEND.send(tx, {"of": "chat"})

    with store.read() as tx:
        assert tx.execute(text("SELECT name, budget FROM groups")).all() == [("chat", 8)]


def test_block_that_raises_stores_nothing_and_its_connection_is_used_again(store):
    with pytest.raises(ZeroDivisionError), store.write() as tx:
        ADD.send(tx, {"name": "chat", "budget": 3})
        raise ZeroDivisionError
    with pytest.raises(ZeroDivisionError), store.write() as tx:
        assert not NAMES.rows(tx, {})
        ADD.send(tx, {"name": "chat", "budget": 3})
        raise ZeroDivisionError

    assert names(store) == []
    with store.write() as tx:
        ADD.send(tx, {"name": "task", "budget": 3})
    assert names(store) == ["task"]


def test_refused_commit_leaves_no_posted_statement_for_the_next_transaction(store):
    def refuse(_):
        raise ZeroDivisionError

    event.listen(Engine, "commit", refuse)  # of the class: before the engine's own
    try:
        with pytest.raises(ZeroDivisionError), store.write() as tx:
            ADD.send(tx, {"name": "chat", "budget": 3})
    finally:
        event.remove(Engine, "commit", refuse)

    with store.write() as tx:
        ADD.send(tx, {"name": "task", "budget": 3})
    assert names(store) == ["task"]


def test_no_statement_of_a_round_trip_is_stored_when_one_fails(store):
    with pytest.raises(IntegrityError, match="duplicate key"), store.write() as tx:
        for _ in range(2):
            ADD.send(tx, {"name": "chat", "budget": 3})
        SPEND.send(tx, {"of": "chat"})

    assert names(store) == []


def test_statement_first_sent_behind_a_failed_one_is_prepared_again(store):
    fresh = PreparedStatement(update(groups).where(groups.c.name == bindparam("of")).values(budget=7))
    for _ in range(2):
        with pytest.raises(IntegrityError), store.write() as tx:
            for _ in range(2):
                ADD.send(tx, {"name": "chat", "budget": 3})
            fresh.send(tx, {"of": "chat"})
    with store.write() as tx:
        assert fresh.changed(tx, {"of": "chat"}) == 0
        with pytest.raises(DBAPIError, match="division by zero"):
            tx.execute(text("SELECT 1/0"))
    with store.write() as tx:
        assert fresh.changed(tx, {"of": "chat"}) == 0


def test_statement_is_prepared_once_for_a_connection(store):
    for _ in range(3):
        with store.write() as tx:
            SPEND.send(tx, {"of": "chat"})
            SPEND.send(tx, {"of": "task"})
    with store.write() as tx:
        prepared = tx.execute(text("SELECT statement FROM pg_prepared_statements")).scalars().all()

    assert prepared == [SPEND.compiled(tx.dialect).sql]


def test_single_statement_is_sent_at_once(store, other):
    with store.single() as tx:
        ADD.send(tx, {"name": "chat", "budget": 3})
        assert not is_in_a_transaction(tx)
        assert names(other) == ["chat"]


@pytest.mark.parametrize("said", ["", "Grüße, 世界", "'; DROP TABLE turns; --", "$1 %s :x", "x" * 2**24])
def test_values_come_back_as_they_were_sent(store, said):
    """Sixteen megabytes are more than goes in one go, either way."""
    with store.read() as tx:
        assert WORD.first(tx, {"said": said}) == {"word": "x", "said": said}


def in_a_wait(other, act):
    """As soon as a transaction waits for a lock of another."""
    until(lambda: has_lock_waits(other), "a transaction waits", pause=0.01)
    act()


def throw_out(other, pid):
    with other.read() as tx:
        tx.execute(text("SELECT pg_terminate_backend(:pid)"), {"pid": pid})


def is_gone(other, pid):
    with other.read() as tx:
        return not tx.execute(text("SELECT count(*) FROM pg_stat_activity WHERE pid = :pid"), {"pid": pid}).scalar()


def test_idle_session_ended_by_the_server_is_replaced_before_use(store, other):
    with store.read() as tx:
        pid = tx.execute(text("SELECT pg_backend_pid()")).scalar()
    throw_out(other, pid)
    until(lambda: is_gone(other, pid), "the session is gone")

    assert names(store) == []


def test_session_ended_between_two_statements_is_unavailable_and_the_next_is_new(store, other):
    with pytest.raises(Unavailable, match="does not answer"), store.write() as tx:
        pid = tx.execute(text("SELECT pg_backend_pid()")).scalar()
        throw_out(other, pid)
        until(lambda: is_gone(other, pid), "the session is gone")
        NAMES.rows(tx, {})

    assert names(store) == []


def test_open_transaction_is_rolled_back_before_the_connection_is_used_again(store):
    with store.engine.connect() as tx:
        pipeline_of(tx).in_transaction = True
        ADD.changed(tx, {"name": "chat", "budget": 3})
        assert is_in_a_transaction(tx)

    with store.write() as tx:
        assert not is_in_a_transaction(tx)
    assert names(store) == []


def test_single_statements_and_transactions_share_their_connections(store):
    with store.write() as tx:
        pid = tx.execute(text("SELECT pg_backend_pid()")).scalar()
    with store.single() as tx:
        ADD.send(tx, {"name": "chat", "budget": 3})
        assert not is_in_a_transaction(tx)
        assert tx.execute(text("SELECT pg_backend_pid()")).scalar() == pid
    with pytest.raises(ZeroDivisionError), store.write() as tx:
        assert SPEND.changed(tx, {"of": "chat"}) == 1
        raise ZeroDivisionError

    with store.read() as tx:
        assert tx.execute(text("SELECT budget FROM groups")).scalar() == 3


def test_session_ended_during_a_wait_is_reported(store, other):
    with store.read() as tx:
        pid = tx.execute(text("SELECT pg_backend_pid()")).scalar()
    with store.read() as tx, other.write() as holder:
        ADD.changed(holder, {"name": "chat", "budget": 3})
        beside = threading.Thread(target=in_a_wait, args=(other, lambda: throw_out(other, pid)))
        beside.start()
        with pytest.raises(DBAPIError, match="terminating connection"):
            ADD.send(tx, {"name": "chat", "budget": 3})
        beside.join()

    assert names(store) == ["chat"]


def test_interrupt_during_a_wait_closes_the_connection(store, other):
    class TimeIsUp(Exception):
        pass

    def raise_time_is_up(*_):
        raise TimeIsUp

    before = signal.signal(signal.SIGALRM, raise_time_is_up)
    try:
        with other.write() as holder:
            ADD.changed(holder, {"name": "chat", "budget": 3})
            interrupt = partial(signal.pthread_kill, threading.main_thread().ident, signal.SIGALRM)
            beside = threading.Thread(target=in_a_wait, args=(other, interrupt))
            beside.start()
            with pytest.raises(TimeIsUp), store.write() as tx:
                ADD.send(tx, {"name": "chat", "budget": 4})
            beside.join()
    finally:
        signal.signal(signal.SIGALRM, before)

    assert names(store) == ["chat"]
    with store.read() as tx:
        assert tx.execute(text("SELECT budget FROM groups")).scalar() == 3


def test_every_statement_is_counted_as_it_is_posted(store, monkeypatch):
    seen = []
    monkeypatch.setattr(statements, "observers", [lambda _tx, sql: seen.append(sql)])
    with store.write() as tx:
        SPEND.send(tx, {"of": "chat"})
        NAMES.rows(tx, {})

    assert seen == [SPEND.compiled(tx.dialect).sql, NAMES.compiled(tx.dialect).sql]


def test_connection_has_one_pipeline(store):
    with store.write() as tx:
        assert isinstance(pipeline_of(tx), Pipeline)
        assert pipeline_of(tx) is pipeline_of(tx)


@pytest.mark.parametrize("value", ["a\x00b", {"no": "text"}])
def test_value_that_cannot_be_sent_fails_at_once_and_alone(store, value):
    with pytest.raises(DBAPIError, match="NUL|adapt") as told, store.write() as tx:
        ADD.send(tx, {"name": "chat", "budget": 3})
        WORD.send(tx, {"said": value})
    assert not told.value.connection_invalidated

    with store.write() as tx:
        ADD.send(tx, {"name": "task", "budget": 3})
    assert names(store) == ["task"]


@pytest.mark.parametrize("spoilt", ["DEALLOCATE ALL", "ALTER TABLE groups ALTER name TYPE varchar(99)"])
def test_stale_plan_is_prepared_again_on_a_new_connection(store, spoilt):
    with store.write() as tx:
        ADD.send(tx, {"name": "chat", "budget": 3})
        assert NAMES.rows(tx, {})
    with store.write() as tx:
        tx.execute(text(spoilt))

    with contextlib.suppress(Unavailable), store.write() as tx:
        NAMES.rows(tx, {})
    with store.write() as tx:
        assert NAMES.rows(tx, {}) == [{"name": "chat"}]


def test_result_can_be_read_after_its_connection_was_reused(store, monkeypatch):
    """A thread that reads a result of its connection is stopped; the next thread has that connection, and
    reads too.
    """
    with store.write() as tx:
        first = WORD.send(tx, {"said": "first"})
    slow = SlowReader(wire_of_pooled(store)._reader)
    monkeypatch.setattr(wire_of_pooled(store), "_reader", slow)

    with ThreadPoolExecutor(2) as pool:
        one = pool.submit(first.rows)
        assert slow.reads.wait(PATIENCE)
        other = pool.submit(lambda: look(store, "second"))
        slow.may_go_on.set()

    assert (one.result()[0]["said"], other.result()["said"]) == ("first", "second")


class SlowReader:
    """Of a result it was given, it waits before it reads, until another thread may have given it another."""

    def __init__(self, reader):
        self._reader = reader
        self.reads, self.may_go_on = threading.Event(), threading.Event()

    def set_pgresult(self, result):
        self._reader.set_pgresult(result)
        if not self.reads.is_set():
            self.reads.set()
            self.may_go_on.wait(PATIENCE)
            threading.Event().wait(0.2)  # the other is as far as it can come

    def load_rows(self, *args):
        return self._reader.load_rows(*args)


def look(store, said):
    with store.write() as tx:
        return WORD.first(tx, {"said": said})


def wire_of_pooled(store):
    with store.write() as tx:
        return pipeline_of(tx)


def test_reading_a_statement_that_was_never_sent_is_an_error(store):
    with store.write() as tx:
        sent = ADD.send(tx, {"name": "chat", "budget": 3})
        pipeline_of(tx).clear()
        with pytest.raises(AssertionError, match="rolled back before this was sent: INSERT INTO groups"):
            sent.changed()

    with pytest.raises(ZeroDivisionError), store.write() as tx:
        sent = ADD.send(tx, {"name": "chat", "budget": 3})
        raise ZeroDivisionError
    with pytest.raises(ResourceClosedError):
        sent.changed()
    assert names(store) == []
