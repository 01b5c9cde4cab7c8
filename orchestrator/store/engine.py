"""Engines for SQLite and PostgreSQL, set up so that both keep what they say they keep.

SQLite: a transaction that reads and then writes fails under load unless it takes the write lock at once, so writing
transactions begin IMMEDIATE. Every commit is synced: durability is the product.

Every wait is bounded, and all bounds lie below the lease of a claim (30 s by default): a person gets an answer, and a
transaction that stands still lets go of its rows before others take its work over.
"""

from __future__ import annotations

import contextlib
import os
import re
import sqlite3
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import structlog
from sqlalchemy import Connection, Engine, create_engine, event, text
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError

from chordage.orchestrator.core.errors import ConfigError
from chordage.orchestrator.store import wire
from chordage.orchestrator.store.driver_errors import as_the_library_says
from chordage.orchestrator.system import private_files

log = structlog.get_logger()

PATIENCE = 10  # seconds, for a lock that another transaction holds, and for a connection that another thread has
BUSY_MS = PATIENCE * 1000
A_DAY_MS = 24 * 3600 * 1000
SCHEMA = "chordage"  # of PostgreSQL, where the URL names none
# A host that vanishes sends no reset: without these a statement waits a quarter of an hour for its answer.
NOTICE_A_LOST_HOST = {
    "keepalives_idle": 10, "keepalives_interval": 5, "keepalives_count": 3, "tcp_user_timeout": 15_000,
}  # fmt: skip
SINCE_17 = 170_000  # a server of PostgreSQL can end a transaction that takes too long
# Every statement is written as a way along indexes. While a table is small PostgreSQL would rather read all of it, and
# it keeps the plan of a prepared statement when the table has grown: ADR 34.
ALONG_INDEXES = dict.fromkeys(
    ("enable_seqscan", "enable_bitmapscan", "enable_hashjoin", "enable_mergejoin", "enable_material"), "off"
)
# The connection that was used last is used next: its server process has all at hand, and no more of them are kept busy
# than there is work for.
LAST_FIRST = {"pool_use_lifo": True}
# What has no index costs more than anything then, and before version 18 PostgreSQL would compile it first.
NO_COMPILING = {"jit": "off"}
# The driver would prepare what it sends often, and forget on the server all that was ever prepared, with each rollback.
UNPREPARED = {"prepare_threshold": None}
AT_SESSION_START = {"search_path": SCHEMA, **ALONG_INDEXES, **NO_COMPILING}
OURS: Mapping[str, Any] = {**UNPREPARED, "connect_timeout": 5, **NOTICE_A_LOST_HOST}
DRIVERS = {
    "sqlite": "sqlite", "sqlite+pysqlite": "sqlite",
    "postgresql": "postgresql+psycopg", "postgres": "postgresql+psycopg", "postgresql+psycopg": "postgresql+psycopg",
}  # fmt: skip


class Engines(NamedTuple):
    whole: Engine  # transactions of several statements
    plain: Engine  # single statements, each its own transaction, without a BEGIN and a COMMIT around it


def make_engines(url: str, *, pool_size: int, hold: float) -> Engines:
    """`hold`: seconds for which a transaction may hold what it has locked, of PostgreSQL.

    On PostgreSQL both take their connections from one pool. On SQLite each has its own, so that whoever waits for
    the write lock keeps nobody from reading.
    """
    parsed = _parse(url)
    if parsed.get_backend_name() == "sqlite":
        return Engines(_sqlite(parsed, pool_size, plain=False), _sqlite(parsed, pool_size, plain=True))
    whole = _postgres(parsed, pool_size, hold)
    return Engines(whole, whole.execution_options(**{wire.PLAIN: True}))


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
        raise as_the_library_says(tx, begin, error) from error


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
    raw.execute(f"PRAGMA busy_timeout={A_DAY_MS}")
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
    ours = {name: value for name, value in OURS.items() if name not in url.query}
    try:
        engine = create_engine(
            url,
            pool_size=pool_size,
            max_overflow=0,
            pool_timeout=PATIENCE,
            pool_reset_on_return=None,  # store/wire.py sees to it
            **LAST_FIRST,
            connect_args={**ours, "autocommit": True, "options": " ".join(options)},
        )
    except ModuleNotFoundError as error:
        raise ConfigError(
            "PostgreSQL needs its driver: install chordage with its extra, as in `pip install 'chordage[postgres]'` "
            "(in a clone '.[postgres]'), or use an sqlite:/// URL"
        ) from error
    wire.lay(engine)
    event.listen(engine, "connect", partial(_limit_transactions, hold))
    return engine


def _limit_transactions(hold: float, driver: Any, _record: Any) -> None:
    """A process that stands still in the middle of a trip, or whose host vanishes, must not hold its locks for ever. A
    server that has not been asked to answer yet counts it neither as idle nor as a statement: those limits do not hold.
    An older server would refuse a session that names this limit at its start.
    """
    if driver.info.server_version >= SINCE_17:
        driver.execute(f"SET transaction_timeout = {round(1000 * hold)}")
