"""Transactions: the only way into the database.

A `Store` is cheap to make and opens nothing until it is used; it makes a new engine after a fork, because a connection
must never be shared between processes.
"""

from __future__ import annotations

import itertools
import os
import re
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import TypeVar

from sqlalchemy import Connection, Engine
from sqlalchemy.exc import DatabaseError, DBAPIError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from chordage.orchestrator.core.errors import Crossed, Unavailable, WrongSchema
from chordage.orchestrator.store.engine import PATIENCE, make_engines, without_limits

# Read-only (a standby), shutting down, crashed, starting up.
NOT_SERVING = {"25006", "57P01", "57P02", "57P03"}
# A deadlock, what cannot be put in an order. A lock that did not become free in time (55P03) is none: whoever tried
# again at once would only wait as long once more.
IN_CONFLICT = {"40P01", "40001"}
BUSY = {"55P03"}
FORBIDDEN = {"42501"}
# A table or a column that is not there.
UNKNOWN_TO_THE_DATABASE = {"42P01", "42703"}
UNKNOWN_TO_SQLITE = re.compile("no such (table|column):|has no column named")
NO_CONNECTION_LEFT = re.compile("too many clients|connection slots|too many connections")
PATIENCE_IN_HAND = 600.0  # seconds for which what was found out is kept while the database is away
HOLD = 15.0  # seconds: half of a lease, so that nobody's claim runs out while another transaction holds its row

Tx = Connection
T = TypeVar("T")


class Store:
    def __init__(self, url: str, *, pool_size: int = 5, hold: float = HOLD) -> None:
        """`hold`: seconds after which PostgreSQL ends a transaction of ours."""
        self.url = url
        self._pool_size = pool_size
        self._hold = hold
        self._pid = 0
        self._engine: Engine | None = None
        self._plain: Engine | None = None
        self._making = threading.Lock()

    def take_at_most(self, connections: int) -> None:
        """At once, of PostgreSQL, in a process that needs few. To be called before the first is taken."""
        self._pool_size = min(self._pool_size, connections)

    @property
    def engine(self) -> Engine:
        if self._engine is None or self._pid != os.getpid():
            self._make()
        assert self._engine is not None
        return self._engine

    @property
    def plain(self) -> Engine:
        if self._plain is None or self._pid != os.getpid():
            self._make()
        assert self._plain is not None
        return self._plain

    def _make(self) -> None:
        with self._making:
            if self._engine is not None and self._pid == os.getpid():
                return
            for inherited in (self._engine, self._plain):
                if inherited is not None:
                    inherited.dispose(close=False)
            self._engine, self._plain = make_engines(self.url, pool_size=self._pool_size, hold=self._hold)
            self._pid = os.getpid()

    @contextmanager
    def write(self) -> Iterator[Tx]:
        """A transaction that commits when the block ends and leaves no trace when it raises."""
        with self._named(), self.engine.begin() as tx:
            yield tx

    @contextmanager
    def one_trip(self) -> Iterator[Tx]:
        """A transaction of statements that are all posted: they go with the commit, when the block ends. Nobody sees
        what they find before it is over, so each sees to it that it does nothing where one before it has found nothing.

        So what they lock is held for no trip of theirs, nor until this process comes to its next line behind each:
        among a hundred threads that is many times as long. SQLite, where nothing travels, does as in `write`.
        """
        with self.write() as tx:
            yield tx

    @contextmanager
    def unlimited(self) -> Iterator[Tx]:
        """As `write`, for a migration: it may take its time, and waits for another that takes its time."""
        with self._named(), self.engine.connect() as tx, without_limits(tx):
            yield tx

    @contextmanager
    def read(self) -> Iterator[Tx]:
        """Statements that only read; each sees what is committed when it runs."""
        with self._named(), self.plain.connect() as tx:
            yield tx

    def ping(self) -> None:
        """Whether one could write now: on SQLite somebody who holds the file keeps nobody from reading."""
        with self.write() as tx:
            tx.exec_driver_sql("SELECT 1")

    # One guarded UPDATE needs no BEGIN and no COMMIT of its own: two round trips less.
    single = read

    @contextmanager
    def _named(self) -> Iterator[None]:
        """A database that does not answer is one kind of error, whatever the driver calls it; a conflict is another."""
        try:
            yield
        except PoolTimeout as error:
            raise Unavailable(
                f"all connections of this process to the database were in use for {PATIENCE} s (CHORDAGE_POOL_SIZE)"
            ) from error
        except DBAPIError as error:
            if error.connection_invalidated or _state(error) in NOT_SERVING:
                self._forget_connections()
            told = _told(self.engine, error)
            if told is None:
                raise
            raise told from error

    def _forget_connections(self) -> None:
        """The server restarted or failed over: the other connections are dead too, or lead to a standby."""
        for engine in (self.engine, self.plain):
            engine.dispose()

    def insist(self, work: Callable[[Tx], T], *, patience: float = PATIENCE_IN_HAND) -> T:
        """Commit what must not be thrown away because the database is away: the outcome of a call already made. Its
        lease is granted anew when the database is back.

        `work` may run again after a commit whose answer got lost; its guards make the second run find nothing to do.
        """
        return self._insist(self.write, work, patience)

    def insist_single(self, work: Callable[[Tx], T], *, patience: float = PATIENCE_IN_HAND) -> T:
        """As insist, for a single guarded statement."""
        return self._insist(self.single, work, patience)

    @staticmethod
    def _insist(opening: Callable[[], AbstractContextManager[Tx]], work: Callable[[Tx], T], patience: float) -> T:
        give_up = time.monotonic() + patience
        for pause in itertools.chain((0.1, 0.3, 1.0), itertools.repeat(2.0)):
            try:
                with opening() as tx:
                    return work(tx)
            except Unavailable:
                if time.monotonic() + pause > give_up:
                    raise
                time.sleep(pause)
        raise AssertionError("the pauses never end")

    @property
    def is_postgres(self) -> bool:
        return self.engine.dialect.name == "postgresql"

    def close(self) -> None:
        if self._pid == os.getpid():
            for engine in (self._engine, self._plain):
                if engine is not None:
                    engine.dispose()


def _told(engine: Engine, error: DBAPIError) -> Unavailable | None:
    """What the error is in our own tree; None: a mistake of ours, or a constraint that somebody has run into."""
    where, said, state = engine.url.render_as_string(hide_password=True), _said(error), _state(error)
    if state in IN_CONFLICT:
        return Crossed(
            f"the transaction was in conflict with another ({said}); nothing was stored, and it is safe to repeat"
        )
    if state in UNKNOWN_TO_THE_DATABASE or (state is None and UNKNOWN_TO_SQLITE.search(said)):
        return WrongSchema(
            f"the database at {where} does not have the tables of this version of chordage ({said}): "
            "run `chordage migrate`, which says what to do"
        )
    if state in FORBIDDEN:
        return Unavailable(f"the database at {where} refuses this to its account: {said}")
    if state in BUSY or _code(error) in {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}:
        return Unavailable(f"the database at {where} is locked by another transaction ({said})")
    if NO_CONNECTION_LEFT.search(said):
        return Unavailable(
            f"the database at {where} takes no further connection ({said}): raise its max_connections, or lower "
            "CHORDAGE_POOL_SIZE or the number of workers (docs/how-to/operations.md, Connections)"
        )
    if _code(error) in {sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY}:
        return Unavailable(
            f"the database at {where} cannot be used: {said}. The file and its folder must be there and writable; or "
            "give another place in CHORDAGE_DATABASE_URL"
        )
    if _code(error) is not None:
        return Unavailable(f"the database at {where} cannot be used: {said}")
    if error.connection_invalidated or state in NOT_SERVING or isinstance(error, OperationalError):
        return Unavailable(f"the database at {where} does not answer: {said}")
    return None


def _state(error: DBAPIError) -> str | None:
    """PostgreSQL's."""
    state: str | None = getattr(error.orig, "sqlstate", None)
    return state


def _code(error: DBAPIError) -> int | None:
    """SQLite's, where the file is the reason: locked, read-only, full, no database at all."""
    if not isinstance(error, OperationalError) and type(error) is not DatabaseError:
        return None
    code: int | None = getattr(error.orig, "sqlite_errorcode", None)
    return None if code is None else code & 0xFF  # without what is particular about it


def _said(error: DBAPIError) -> str:
    said = str(error.orig).strip().splitlines()
    return said[0] if said else type(error.orig).__name__
