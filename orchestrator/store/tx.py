"""Transactions: the only way into the database.

A `Store` is cheap to make and opens nothing until it is used; it makes a new engine after a fork, because a connection
must never be shared between processes.
"""

from __future__ import annotations

import itertools
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, TypeVar

from sqlalchemy import Connection, Engine
from sqlalchemy.exc import DBAPIError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from chordage.orchestrator.core.errors import Crossed, Unavailable
from chordage.orchestrator.store.engine import make_engine
from chordage.orchestrator.store.wire import Bare, wire_of

# Read-only (a standby), shutting down, crashed, starting up.
NOT_SERVING = {"25006", "57P01", "57P02", "57P03"}
# A deadlock, what cannot be put in an order, a lock that did not become free in time.
IN_CONFLICT = {"40P01", "40001", "55P03"}
LIMIT = Bare(sql="SET LOCAL transaction_timeout = '60s'", name=b"limit")  # of one trip
SINCE_17 = 170_000  # a server of PostgreSQL can end a transaction that takes too long

Tx = Connection
T = TypeVar("T")


class Store:
    def __init__(self, url: str, *, pool_size: int = 3) -> None:
        self.url = url
        self._pool_size = pool_size
        self._pid = 0
        self._engine: Engine | None = None
        self._plain: Engine | None = None
        self._making = threading.Lock()

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
            self._plain = make_engine(self.url, pool_size=self._pool_size, plain=True)
            self._engine = make_engine(self.url, pool_size=self._pool_size)
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
            if self.is_postgres:
                _limit(tx)
            yield tx

    @contextmanager
    def read(self) -> Iterator[Tx]:
        """Statements that only read; each sees what is committed when it runs."""
        with self._named(), self.plain.connect() as tx:
            yield tx

    # One guarded UPDATE needs no BEGIN and no COMMIT of its own: two round trips less.
    single = read

    @contextmanager
    def _named(self) -> Iterator[None]:
        """A database that does not answer is one kind of error, whatever the driver calls it; a conflict is another."""
        try:
            yield
        except PoolTimeout as error:
            raise Unavailable(f"no database connection became free in time: {error}") from error
        except DBAPIError as error:
            state = getattr(error.orig, "sqlstate", None)
            if state in IN_CONFLICT:
                raise _crossed(error) from error
            gone = error.connection_invalidated or state in NOT_SERVING
            if gone:
                self._forget_connections()
            if gone or isinstance(error, OperationalError):
                raise _unavailable(self.engine, error) from error
            raise

    def _forget_connections(self) -> None:
        """The server restarted or failed over: the other connections are dead too, or lead to a standby."""
        for engine in (self.engine, self.plain):
            engine.dispose()

    def insist(self, work: Callable[[Tx], T], *, patience: float = 60.0) -> T:
        """Commit what must not be thrown away because the database restarts: the outcome of a call already made.

        `work` may run again after a commit whose answer got lost; its guards make the second run find nothing to do.
        """
        return self._insist(self.write, work, patience)

    def insist_single(self, work: Callable[[Tx], T], *, patience: float = 60.0) -> T:
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


def _limit(tx: Tx) -> None:
    """A process that stands still in the middle of a trip, or whose host vanishes, must not hold its locks for ever. A
    server that has not been asked to answer yet counts it neither as idle nor as a statement: those limits do not hold.
    Not through Hot, so that counting statements counts ours.
    """
    driver: Any = tx.connection.dbapi_connection
    if driver.info.server_version >= SINCE_17:
        wire_of(tx).post(LIMIT, [])


def _unavailable(engine: Engine, error: DBAPIError) -> Unavailable:
    where = engine.url.render_as_string(hide_password=True)
    return Unavailable(f"the database at {where} does not answer: {_said(error)}")


def _crossed(error: DBAPIError) -> Crossed:
    return Crossed(
        f"the transaction was in conflict with another ({_said(error)}); nothing was stored, and it is safe to repeat"
    )


def _said(error: DBAPIError) -> str:
    said = str(error.orig).strip().splitlines()
    return said[0] if said else type(error.orig).__name__
