"""The database: engines for SQLite and PostgreSQL, and transactions, the only way to use them.

A `Store` is cheap to make and connects only when it is used. It makes new engines after a fork, because processes must
not share a connection.

SQLite: a transaction that reads and then writes fails under load unless it takes the write lock at once, so writing
transactions begin IMMEDIATE. Every commit is synced: durability is the product.

Every wait is bounded, and all bounds are below the lease of a claim (30 s by default). So a person gets an answer, and
a transaction that makes no progress releases its rows before another worker takes its work over.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import shlex
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import structlog
from sqlalchemy import Connection, Engine, create_engine, event, text
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, DatabaseError, DBAPIError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from chordage.orchestrator.core.contents import Cipher
from chordage.orchestrator.core.errors import ConfigError, Crossed, LostRace, Unavailable, WrongSchema
from chordage.orchestrator.core.retry import Backoff
from chordage.orchestrator.store import pipeline
from chordage.orchestrator.store.pipeline import library_error
from chordage.orchestrator.system import private_files

log = structlog.get_logger()

PATIENCE = 10  # seconds to wait for a lock of another transaction, or for a connection another thread has
BUSY_MS = PATIENCE * 1000
DAY_MS = 24 * 3600 * 1000
SCHEMA = "chordage"  # of PostgreSQL, unless the URL names another
# A host that vanishes sends no reset: without these a statement waits a quarter of an hour for its answer.
KEEPALIVES = {
    "keepalives_idle": 10, "keepalives_interval": 5, "keepalives_count": 3, "tcp_user_timeout": 15_000,
}  # fmt: skip
# Every statement is written to use indexes. While a table is small PostgreSQL prefers to read all of it, and it keeps
# that plan of a prepared statement when the table has grown: ADR 34.
INDEX_PLANS = dict.fromkeys(
    ("enable_seqscan", "enable_bitmapscan", "enable_hashjoin", "enable_mergejoin", "enable_material"), "off"
)
# Use the connection that was used last: its server process has everything cached, and no more connections are kept busy
# than there is work for.
LAST_FIRST = {"pool_use_lifo": True}
# With those settings the estimated cost of a scan is huge, and before version 18 PostgreSQL would compile it first.
NO_JIT = {"jit": "off"}
# psycopg would prepare what it sends often, and deallocate all prepared statements with each rollback.
UNPREPARED = {"prepare_threshold": None}
SESSION_SETTINGS = {"search_path": SCHEMA, **INDEX_PLANS, **NO_JIT}
APPLICATION = "chordage"  # begins the name by which PostgreSQL lists our connections; behind it the release
SWITCH = "chordage_pipeline"  # in the query of a URL: on, or off for a pooler in transaction mode
CONNECT_ARGS: Mapping[str, Any] = {**UNPREPARED, "connect_timeout": 5, **KEEPALIVES}
CIPHER = "chordage_cipher"  # the attribute of a dialect: what encrypts contents (store/contents.py), or None
DRIVERS = {
    "sqlite": "sqlite", "sqlite+pysqlite": "sqlite",
    "postgresql": "postgresql+psycopg", "postgres": "postgresql+psycopg", "postgresql+psycopg": "postgresql+psycopg",
}  # fmt: skip


class EnginePair(NamedTuple):
    whole: Engine  # transactions of several statements
    plain: Engine  # single statements, each a transaction of its own


def make_engines(url: str, *, pool_size: int, hold: float, cipher: Cipher | None = None) -> EnginePair:
    """`hold`: seconds for which a transaction of PostgreSQL may hold its locks.

    On PostgreSQL both take their connections from one pool. On SQLite each has its own, so that threads that wait for
    the write lock do not keep others from reading.
    """
    parsed = _parse(url)
    if parsed.get_backend_name() == "sqlite":
        engines = EnginePair(_sqlite(parsed, pool_size, plain=False), _sqlite(parsed, pool_size, plain=True))
    else:
        whole = _postgres(parsed, pool_size, hold)
        engines = EnginePair(whole, whole.execution_options(**{pipeline.PLAIN: True}))
    for engine in engines:
        setattr(engine.dialect, CIPHER, cipher)
    return engines


def _parse(url: str) -> URL:
    try:
        parsed = make_url(url)
    except (ArgumentError, ValueError) as error:
        raise ConfigError(
            f"database URL {_without_password(url)!r} cannot be read: give CHORDAGE_DATABASE_URL as sqlite:///PATH or "
            "postgresql://…"
        ) from error
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
    """Create the file with a private mode: SQLite would let all users read it. Files beside it get its mode.

    An existing file is never opened here: closing it would release the locks that SQLite holds on it for other
    connections of this process.
    """
    name = arguments[0] if arguments else ""
    if name in {"", ":memory:"} or str(name).startswith("file:"):
        return
    path = Path(name)
    with contextlib.suppress(OSError):  # it exists; or SQLite gives a better reason why it cannot be created
        os.close(os.open(path, os.O_CREAT | os.O_EXCL, private_files.FILE))


def _prepare_sqlite(connection: sqlite3.Connection, _record: Any) -> None:
    connection.isolation_level = None
    connection.execute(f"PRAGMA busy_timeout={BUSY_MS}")
    _use_wal(connection)
    for pragma in ("synchronous=FULL", "foreign_keys=ON"):
        connection.execute(f"PRAGMA {pragma}")
    _tighten(connection)


def _tighten(connection: sqlite3.Connection) -> None:
    """Take the other users' access to the file, now that it is known to be our database."""
    for _number, _name, file in connection.execute("PRAGMA database_list").fetchall():
        path = Path(file)
        with contextlib.suppress(OSError):
            beside = [path.with_name(f"{path.name}{end}") for end in ("", "-wal", "-shm")] if file else []
            for tightened in private_files.tighten(beside):
                log.warning("others could read a file of the database: they no longer can", file=str(tightened))


def _use_wal(connection: sqlite3.Connection) -> None:
    """A new file changes its mode once. A second process that tries at the same moment is refused at once, so retry."""
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
    """Sent by the driver itself, so that counted statements are only ours."""
    begin = "BEGIN IMMEDIATE"
    assert tx.connection.dbapi_connection is not None
    try:
        tx.connection.dbapi_connection.cursor().execute(begin)
    except tx.dialect.loaded_dbapi.Error as error:
        raise library_error(tx, begin, error) from error


def limits(hold: float) -> dict[str, str]:
    """Limits of each statement, and of a transaction that is idle."""
    lock = min(PATIENCE, hold * 2 / 3)
    limits = {"lock_timeout": lock, "statement_timeout": hold, "idle_in_transaction_session_timeout": hold}
    return {name: f"{round(1000 * seconds)}ms" for name, seconds in limits.items()}


def _limits_of(tx: Connection) -> list[str]:
    """What limits a transaction of PostgreSQL."""
    raw: Any = tx.connection.dbapi_connection
    return [*limits(0), *(["transaction_timeout"] if raw.info.server_version >= pipeline.SINCE_17 else [])]


@contextmanager
def without_limits(tx: Connection) -> Iterator[None]:
    """A transaction that may take any time, and wait any time for a lock."""
    raw: Any = tx.connection.dbapi_connection
    if tx.dialect.name == "postgresql":
        with tx.begin():
            for name in _limits_of(tx):
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
    """What the URL says takes precedence over our settings."""
    given = url.query.get("options", ())
    options = given if isinstance(given, str) else " ".join(given)
    settings = {**SESSION_SETTINGS, **limits(hold)}
    has_pipeline = _has_pipeline(url)
    ours = " ".join(f"-c {name}={value}" for name, value in settings.items())
    start_up = {"options": f"{ours} {options}"} if has_pipeline else {}
    name = {"fallback_application_name": f"{APPLICATION} {version('chordage')}"}
    connect_args = {name: value for name, value in {**CONNECT_ARGS, **name}.items() if name not in url.query}
    try:
        engine = create_engine(
            url.difference_update_query((SWITCH, "options")),
            pool_size=pool_size,
            max_overflow=0,
            pool_timeout=PATIENCE,
            pool_reset_on_return=None,  # store/pipeline.py rolls back
            **LAST_FIRST,
            connect_args={**connect_args, "autocommit": True, **start_up},
        )
    except ModuleNotFoundError as error:
        raise ConfigError(
            "PostgreSQL needs its driver: install chordage with its extra, as in `pip install 'chordage[postgres]'` "
            "(in a clone '.[postgres]'), or use an sqlite:/// URL"
        ) from error
    if has_pipeline:
        pipeline.install(engine)
        event.listen(engine, "connect", partial(_limit_transactions, hold))
    else:
        pipeline.install_plain(
            engine, {**settings, **_settings_in(options)}, {"transaction_timeout": f"{round(1000 * hold)}ms"}
        )
    return engine


def _has_pipeline(url: URL) -> bool:
    value = url.query.get(SWITCH, "on")
    if value not in {"on", "off"}:
        raise ConfigError(f"{SWITCH}={value!r} in the database URL is neither on nor off")
    return value == "on"


def _settings_in(options: str) -> dict[str, str]:
    """The settings in start-up options such as `-c name=value -cname=value --name=value`, as libpq takes them."""
    words = iter(shlex.split(options))
    settings: dict[str, str] = {}
    for word in words:
        pair = next(words, "") if word == "-c" else word.removeprefix("-c").removeprefix("--")
        name, equals, value = pair.partition("=")
        if not equals or not word.startswith("-"):
            raise ConfigError(f"options={options!r} in the database URL cannot be read: write them as -c NAME=VALUE")
        settings[name.replace("-", "_")] = value
    return settings


def _limit_transactions(hold: float, driver: Any, _record: Any) -> None:
    """A process that stops in the middle of a round trip, or whose host vanishes, must not hold its locks for ever. A
    server that waits for the rest of a pipeline is neither idle nor carrying out a statement, so the other limits do
    not end it. An older server would refuse a session that names this limit in its start-up options.
    """
    if driver.info.server_version >= pipeline.SINCE_17:
        driver.execute(f"SET transaction_timeout = {round(1000 * hold)}")


# Read-only (a standby), shutting down, crashed, starting up.
NOT_SERVING = {"25006", "57P01", "57P02", "57P03"}
# A deadlock, or transactions that cannot be serialised. A lock that was not released in time (55P03) is no conflict: a
# second attempt would only wait as long again.
IN_CONFLICT = {"40P01", "40001"}
BUSY = {"55P03"}
# A division by zero: how a `GuardedUpdate` ends its transaction. Nothing else divides.
REFUSED = "22012"
FORBIDDEN = {"42501"}
# A missing table or column.
MISSING_TABLE = {"42P01", "42703"}
MISSING_TABLE_SQLITE = re.compile("no such (table|column):|has no column named")
OPTIONS_REFUSED = "unsupported startup parameter"  # by a pooler
NO_CONNECTION_LEFT = re.compile("too many clients|connection slots|too many connections")
INSIST_SECONDS = 600.0  # seconds for which a result is kept while the database is away
INSIST_PAUSE = Backoff(first=0.1, longest=2.0)
HOLD = 15.0  # seconds: half of a lease, so that no claim runs out while another transaction holds its row

Tx = Connection
T = TypeVar("T")


class Store:
    def __init__(self, url: str, *, pool_size: int = 5, hold: float = HOLD, cipher: Cipher | None = None) -> None:
        """`hold`: seconds after which PostgreSQL ends one of our transactions. `cipher`: encrypts contents."""
        self.url = url
        self.cipher = cipher
        self._pool_size = pool_size
        self._hold = hold
        self._pid = 0
        self._engine: Engine | None = None
        self._plain: Engine | None = None
        self._making = threading.Lock()

    def limit_connections(self, connections: int) -> None:
        """A lower limit, for a process that needs few connections. Call it before the first is taken."""
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
            self._engine, self._plain = make_engines(
                self.url, pool_size=self._pool_size, hold=self._hold, cipher=self.cipher
            )
            self._pid = os.getpid()

    def write(self) -> AbstractContextManager[Tx]:
        """A transaction that commits when the block ends and leaves no trace when it raises."""
        return self._open(self.engine)

    def one_trip(self) -> AbstractContextManager[Tx]:
        """`write`, for statements that are all posted: they are sent together with the commit, when the block ends. No
        result may be read before, so each statement must do nothing if an earlier one has found nothing.

        So locks are not held while this thread waits for the network, or for its turn on the processor.
        """
        return self.write()

    @contextmanager
    def unlimited(self) -> Iterator[Tx]:
        """As `write`, for a migration: without limits on its time, or on the wait for another migration."""
        with self._open(self.engine, begins=False) as tx, without_limits(tx):
            yield tx

    @property
    def builds_concurrently(self) -> bool:
        """Whether an index can be built while others write. Not behind a pooler that knows only transactions."""
        return self.is_postgres and _has_pipeline(make_url(self.url))

    @contextmanager
    def autocommit(self) -> Iterator[Tx]:
        """Statements of PostgreSQL that cannot be in a transaction, without limits."""
        with self._open(self.plain, begins=False) as tx:
            before = {name: tx.exec_driver_sql(f"SHOW {name}").scalar_one() for name in _limits_of(tx)}
            for name in before:
                tx.exec_driver_sql(f"SET {name} = 0")
            try:
                yield tx
            except BaseException:
                tx.invalidate()  # no other transaction may find it without limits
                raise
            for name, value in before.items():
                tx.exec_driver_sql(f"SET {name} = '{value}'")

    def read(self) -> AbstractContextManager[Tx]:
        """Statements that are each a transaction of their own; each sees what is committed when it runs."""
        return self._open(self.plain, begins=False)

    def ping(self) -> None:
        """Raises Unavailable if nothing can be written now: on SQLite a locked file can still be read."""
        with self.write() as tx:
            tx.exec_driver_sql("SELECT 1")

    # One guarded UPDATE needs no BEGIN and COMMIT: two round trips less.
    single = read

    @contextmanager
    def _open(self, engine: Engine, *, begins: bool = True) -> Iterator[Tx]:
        """Errors of the driver as ours: a database that does not answer, a conflict, a wrong schema."""
        try:
            with engine.connect() as tx, tx.begin() if begins else nullcontext():
                yield tx
        except PoolTimeout as error:
            raise Unavailable(
                f"all connections of this process to the database were in use for {PATIENCE} s (CHORDAGE_POOL_SIZE)"
            ) from error
        except DBAPIError as error:
            if _sqlstate(error) == REFUSED:
                raise LostRace from error
            if error.connection_invalidated or _sqlstate(error) in NOT_SERVING:
                self._forget_connections()
            ours = _classify(self.engine, error)
            if ours is None:
                raise
            raise ours from error

    def _forget_connections(self) -> None:
        """The server restarted or failed over: the other connections are dead too, or lead to a standby."""
        for engine in (self.engine, self.plain):
            engine.dispose()

    @staticmethod
    def retry(attempt: Callable[[], T], *, patience: float = INSIST_SECONDS) -> T:
        """Retry while the database is away: for a result that must not be lost, such as the outcome of a call that was
        made. Its lease is granted anew when the database is back.

        `attempt` may run again after a commit whose answer was lost; its guards make the second run find nothing to do.
        """
        give_up = time.monotonic() + patience
        for failures in itertools.count(1):
            try:
                return attempt()
            except Unavailable:
                pause = INSIST_PAUSE.delay(failures)
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
    """The error in our own tree. None: a mistake of ours, or a violated constraint."""
    where, message, state = engine.url.render_as_string(hide_password=True), _message(error), _sqlstate(error)
    if state in IN_CONFLICT:
        return Crossed(
            f"the transaction was in conflict with another ({message}); nothing was stored, and it is safe to repeat"
        )
    if state in MISSING_TABLE or (state is None and MISSING_TABLE_SQLITE.search(message)):
        return WrongSchema(
            f"the database at {where} does not have the tables of this version of chordage ({message}): "
            "run `chordage migrate`, which says what to do"
        )
    if state in FORBIDDEN:
        return Unavailable(f"the database at {where} refuses this to its account: {message}")
    if state in BUSY or _sqlite_code(error) in {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}:
        return Unavailable(f"the database at {where} is locked by another transaction ({message})")
    if OPTIONS_REFUSED in message:
        return Unavailable(
            f"the pooler at {where} refuses start-up options ({message}): let it pass them on, or set "
            "CHORDAGE_PIPELINE=off (docs/how-to/operations.md, PostgreSQL)"
        )
    if NO_CONNECTION_LEFT.search(message):
        return Unavailable(
            f"the database at {where} takes no further connection ({message}): raise its max_connections, or lower "
            "CHORDAGE_POOL_SIZE or the number of workers (docs/how-to/operations.md, Connections)"
        )
    if _sqlite_code(error) in {sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY}:
        return Unavailable(
            f"the database at {where} cannot be used: {message}. The file and its folder must be there and writable; "
            "or give another place in CHORDAGE_DATABASE_URL"
        )
    if _sqlite_code(error) is not None:
        return Unavailable(f"the database at {where} cannot be used: {message}")
    if error.connection_invalidated or state in NOT_SERVING or isinstance(error, OperationalError):
        return Unavailable(f"the database at {where} does not answer: {message}")
    return None


def _sqlstate(error: DBAPIError) -> str | None:
    """Of PostgreSQL."""
    state: str | None = getattr(error.orig, "sqlstate", None)
    return state


def _sqlite_code(error: DBAPIError) -> int | None:
    """Of SQLite, if the file is the cause: locked, read-only, full, or no database."""
    if not isinstance(error, OperationalError) and type(error) is not DatabaseError:
        return None
    code: int | None = getattr(error.orig, "sqlite_errorcode", None)
    return None if code is None else code & 0xFF  # the primary code, without its extension


def _message(error: DBAPIError) -> str:
    lines = str(error.orig).strip().splitlines()
    return lines[0] if lines else type(error.orig).__name__
