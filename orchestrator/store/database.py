"""Engines for SQLite and PostgreSQL, set up so that both keep what they say they keep.

SQLite: a transaction that reads and then writes fails under load unless it takes the write lock at once, so writing
transactions begin IMMEDIATE. Every commit is synced: durability is the product.

Every wait is bounded, and all bounds lie below the lease of a claim (30 s by default): a person gets an answer, and a
transaction that stands still lets go of its rows before others take its work over.

Transactions: the only way into the database.

A `Store` is cheap to make and opens nothing until it is used; it makes a new engine after a fork, because a connection
must never be shared between processes.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import structlog
from sqlalchemy import Connection, Engine, create_engine, event, text
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, DatabaseError, DBAPIError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from chordage.orchestrator.core.errors import ConfigError, Crossed, Unavailable, WrongSchema
from chordage.orchestrator.store import pipeline
from chordage.orchestrator.store.pipeline import library_error
from chordage.orchestrator.system import private_files

log = structlog.get_logger()

PATIENCE = 10  # seconds, for a lock that another transaction holds, and for a connection that another thread has
BUSY_MS = PATIENCE * 1000
DAY_MS = 24 * 3600 * 1000
SCHEMA = "chordage"  # of PostgreSQL, where the URL names none
# A host that vanishes sends no reset: without these a statement waits a quarter of an hour for its answer.
KEEPALIVES = {
    "keepalives_idle": 10, "keepalives_interval": 5, "keepalives_count": 3, "tcp_user_timeout": 15_000,
}  # fmt: skip
SINCE_17 = 170_000  # a server of PostgreSQL can end a transaction that takes too long
# Every statement is written as a way along indexes. While a table is small PostgreSQL would rather read all of it, and
# it keeps the plan of a prepared statement when the table has grown: ADR 34.
INDEX_PLANS = dict.fromkeys(
    ("enable_seqscan", "enable_bitmapscan", "enable_hashjoin", "enable_mergejoin", "enable_material"), "off"
)
# The connection that was used last is used next: its server process has all at hand, and no more of them are kept busy
# than there is work for.
LAST_FIRST = {"pool_use_lifo": True}
# What has no index costs more than anything then, and before version 18 PostgreSQL would compile it first.
NO_JIT = {"jit": "off"}
# The driver would prepare what it sends often, and forget on the server all that was ever prepared, with each rollback.
UNPREPARED = {"prepare_threshold": None}
AT_SESSION_START = {"search_path": SCHEMA, **INDEX_PLANS, **NO_JIT}
CONNECT_ARGS: Mapping[str, Any] = {**UNPREPARED, "connect_timeout": 5, **KEEPALIVES}
DRIVERS = {
    "sqlite": "sqlite", "sqlite+pysqlite": "sqlite",
    "postgresql": "postgresql+psycopg", "postgres": "postgresql+psycopg", "postgresql+psycopg": "postgresql+psycopg",
}  # fmt: skip


class EnginePair(NamedTuple):
    whole: Engine  # transactions of several statements
    plain: Engine  # single statements, each its own transaction, without a BEGIN and a COMMIT around it


def make_engines(url: str, *, pool_size: int, hold: float) -> EnginePair:
    """`hold`: seconds for which a transaction may hold what it has locked, of PostgreSQL.

    On PostgreSQL both take their connections from one pool. On SQLite each has its own, so that whoever waits for
    the write lock keeps nobody from reading.
    """
    parsed = _parse(url)
    if parsed.get_backend_name() == "sqlite":
        return EnginePair(_sqlite(parsed, pool_size, plain=False), _sqlite(parsed, pool_size, plain=True))
    whole = _postgres(parsed, pool_size, hold)
    return EnginePair(whole, whole.execution_options(**{pipeline.PLAIN: True}))


def _parse(url: str) -> URL:
    try:
        parsed = make_url(url)
    except (ArgumentError, ValueError) as error:
        told = f"database URL {_without_password(url)!r} cannot be read"
        raise ConfigError(f"{told}: give CHORDAGE_DATABASE_URL as sqlite:///PATH or postgresql://…") from error
    driver = DRIVERS.get(parsed.drivername)
    if driver is None:
        raise ConfigError(
            f"database {parsed.drivername!r} is not supported: give CHORDAGE_DATABASE_URL as sqlite:///PATH or "
            "postgresql://… (which is reached by psycopg 3, of the extra `postgres`)"
        )
    return parsed.set(drivername=driver)


def _without_password(url: str) -> str:
    return re.sub(r"(://[^:@/]*):[^@]*@", r"\1:***@", url)


def _sqlite(url: URL, pool_size: int, *, plain: bool) -> Engine:
    reset = None if plain else "rollback"
    engine = create_engine(url, pool_size=pool_size, max_overflow=2, pool_timeout=PATIENCE, pool_reset_on_return=reset)
    event.listen(engine, "do_connect", _make_private)
    event.listen(engine, "connect", _prepare_sqlite)
    if not plain:
        event.listen(engine, "begin", _begin_sqlite)
    return engine


def _make_private(_dialect: Any, _record: Any, arguments: list[Any], _options: Any) -> None:
    """SQLite would let everybody read a file that it makes. What it makes beside the file gets the mode of the file.

    A file that is there is never opened here: closing it again would take away the locks that SQLite has on it for
    other connections of this process.
    """
    name = arguments[0] if arguments else ""
    if name in {"", ":memory:"} or str(name).startswith("file:"):
        return
    path = Path(name)
    with contextlib.suppress(OSError):  # it is there; or SQLite says better than this why it cannot be made
        os.close(os.open(path, os.O_CREAT | os.O_EXCL, private_files.FILE))


def _prepare_sqlite(connection: sqlite3.Connection, _record: Any) -> None:
    connection.isolation_level = None
    connection.execute(f"PRAGMA busy_timeout={BUSY_MS}")
    _use_wal(connection)
    for pragma in ("synchronous=FULL", "foreign_keys=ON"):
        connection.execute(f"PRAGMA {pragma}")
    _tighten(connection)


def _tighten(connection: sqlite3.Connection) -> None:
    """Close a database of ours to others, now that it is known to be one."""
    for _number, _name, file in connection.execute("PRAGMA database_list").fetchall():
        path = Path(file)
        with contextlib.suppress(OSError):
            beside = [path.with_name(f"{path.name}{end}") for end in ("", "-wal", "-shm")] if file else []
            for one in private_files.tighten(beside):
                log.warning("others could read a file of the database: they no longer can", file=str(one))


def _use_wal(connection: sqlite3.Connection) -> None:
    """A new file changes over once, and whoever else does so at this moment is refused without a wait."""
    until = time.monotonic() + PATIENCE / 2
    while True:
        try:
            connection.execute("PRAGMA journal_mode=WAL")
        except sqlite3.OperationalError:
            if time.monotonic() > until:
                raise
            time.sleep(0.1)
        else:
            return


def _begin_sqlite(tx: Connection) -> None:
    """Straight to the driver, so that counting statements counts ours."""
    begin = "BEGIN IMMEDIATE"
    assert tx.connection.dbapi_connection is not None
    try:
        tx.connection.dbapi_connection.cursor().execute(begin)
    except tx.dialect.loaded_dbapi.Error as error:
        raise library_error(tx, begin, error) from error


def limits(hold: float) -> dict[str, str]:
    """Of each statement, and of a transaction that does nothing."""
    lock = min(PATIENCE, hold * 2 / 3)
    seconds = {"lock_timeout": lock, "statement_timeout": hold, "idle_in_transaction_session_timeout": hold}
    return {name: f"{round(1000 * one)}ms" for name, one in seconds.items()}


@contextmanager
def without_limits(tx: Connection) -> Iterator[None]:
    """A transaction that may take as long as it takes, and wait for a lock as long."""
    raw: Any = tx.connection.dbapi_connection
    if tx.dialect.name == "postgresql":
        names = [*limits(0), *(["transaction_timeout"] if raw.info.server_version >= SINCE_17 else [])]
        with tx.begin():
            for name in names:
                tx.execute(text(f"SET LOCAL {name} = 0"))
            yield
        return
    raw.execute(f"PRAGMA busy_timeout={DAY_MS}")
    try:
        with tx.begin():
            yield
    finally:
        raw.execute(f"PRAGMA busy_timeout={BUSY_MS}")


def _postgres(url: URL, pool_size: int, hold: float) -> Engine:
    """What the URL says goes before what we say."""
    named = url.query.get("options", ())
    options = [f"-c {name}={value}" for name, value in {**AT_SESSION_START, **limits(hold)}.items()]
    options += [named] if isinstance(named, str) else named
    ours = {name: value for name, value in CONNECT_ARGS.items() if name not in url.query}
    try:
        engine = create_engine(
            url,
            pool_size=pool_size,
            max_overflow=0,
            pool_timeout=PATIENCE,
            pool_reset_on_return=None,  # store/pipeline.py sees to it
            **LAST_FIRST,
            connect_args={**ours, "autocommit": True, "options": " ".join(options)},
        )
    except ModuleNotFoundError as error:
        raise ConfigError(
            "PostgreSQL needs its driver: install chordage with its extra, as in `pip install 'chordage[postgres]'` "
            "(in a clone '.[postgres]'), or use an sqlite:/// URL"
        ) from error
    pipeline.install(engine)
    event.listen(engine, "connect", partial(_limit_transactions, hold))
    return engine


def _limit_transactions(hold: float, driver: Any, _record: Any) -> None:
    """A process that stands still in the middle of a trip, or whose host vanishes, must not hold its locks for ever. A
    server that has not been asked to answer yet counts it neither as idle nor as a statement: those limits do not hold.
    An older server would refuse a session that names this limit at its start.
    """
    if driver.info.server_version >= SINCE_17:
        driver.execute(f"SET transaction_timeout = {round(1000 * hold)}")


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
INSIST_SECONDS = 600.0  # seconds for which what was found out is kept while the database is away
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
            if error.connection_invalidated or _sqlstate(error) in NOT_SERVING:
                self._forget_connections()
            told = _classify(self.engine, error)
            if told is None:
                raise
            raise told from error

    def _forget_connections(self) -> None:
        """The server restarted or failed over: the other connections are dead too, or lead to a standby."""
        for engine in (self.engine, self.plain):
            engine.dispose()

    def insist(self, work: Callable[[Tx], T], *, patience: float = INSIST_SECONDS) -> T:
        """Commit what must not be thrown away because the database is away: the outcome of a call already made. Its
        lease is granted anew when the database is back.

        `work` may run again after a commit whose answer got lost; its guards make the second run find nothing to do.
        """
        return self._insist(self.write, work, patience)

    def insist_single(self, work: Callable[[Tx], T], *, patience: float = INSIST_SECONDS) -> T:
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


def _classify(engine: Engine, error: DBAPIError) -> Unavailable | None:
    """What the error is in our own tree; None: a mistake of ours, or a constraint that somebody has run into."""
    where, said, state = engine.url.render_as_string(hide_password=True), _message(error), _sqlstate(error)
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
    if state in BUSY or _sqlite_code(error) in {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}:
        return Unavailable(f"the database at {where} is locked by another transaction ({said})")
    if NO_CONNECTION_LEFT.search(said):
        return Unavailable(
            f"the database at {where} takes no further connection ({said}): raise its max_connections, or lower "
            "CHORDAGE_POOL_SIZE or the number of workers (docs/how-to/operations.md, Connections)"
        )
    if _sqlite_code(error) in {sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY}:
        return Unavailable(
            f"the database at {where} cannot be used: {said}. The file and its folder must be there and writable; or "
            "give another place in CHORDAGE_DATABASE_URL"
        )
    if _sqlite_code(error) is not None:
        return Unavailable(f"the database at {where} cannot be used: {said}")
    if error.connection_invalidated or state in NOT_SERVING or isinstance(error, OperationalError):
        return Unavailable(f"the database at {where} does not answer: {said}")
    return None


def _sqlstate(error: DBAPIError) -> str | None:
    """PostgreSQL's."""
    state: str | None = getattr(error.orig, "sqlstate", None)
    return state


def _sqlite_code(error: DBAPIError) -> int | None:
    """SQLite's, where the file is the reason: locked, read-only, full, no database at all."""
    if not isinstance(error, OperationalError) and type(error) is not DatabaseError:
        return None
    code: int | None = getattr(error.orig, "sqlite_errorcode", None)
    return None if code is None else code & 0xFF  # without what is particular about it


def _message(error: DBAPIError) -> str:
    said = str(error.orig).strip().splitlines()
    return said[0] if said else type(error.orig).__name__
