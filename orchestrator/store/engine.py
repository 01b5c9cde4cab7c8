"""Engines for SQLite and PostgreSQL, set up so that both keep what they say they keep.

SQLite: a transaction that reads and then writes fails under load unless it takes the write lock at once, so writing
transactions begin IMMEDIATE. Every commit is synced: durability is the product.
"""

from __future__ import annotations

import sqlite3
import time
from typing import Any

from sqlalchemy import Connection, Engine, create_engine, event
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError

from chordage.orchestrator.core.errors import ConfigError
from chordage.orchestrator.store import wire

BUSY_MS = 30_000
# A host that vanishes sends no reset: without these a statement waits a quarter of an hour for its answer.
NOTICE_A_LOST_HOST = {
    "keepalives_idle": 10, "keepalives_interval": 5, "keepalives_count": 3, "tcp_user_timeout": 15_000,
}  # fmt: skip
LIMITS = {"lock_timeout": "20s", "statement_timeout": "60s", "idle_in_transaction_session_timeout": "60s"}
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
POSTGRES_OPTIONS = " ".join(f"-c {name}={value}" for name, value in {**LIMITS, **ALONG_INDEXES, **NO_COMPILING}.items())


def make_engine(url: str, *, pool_size: int = 4, plain: bool = False) -> Engine:
    """`plain`: for single statements, each its own transaction, without a BEGIN and a COMMIT around it."""
    parsed = _parse(url)
    match parsed.get_backend_name():
        case "sqlite":
            return _sqlite(parsed, pool_size, plain=plain)
        case "postgresql":
            return _postgres(parsed, pool_size, plain=plain)
        case other:
            raise ConfigError(f"database {other!r} is not supported: give an sqlite:/// or postgresql:// URL")


def _parse(url: str) -> URL:
    try:
        parsed = make_url(url)
    except ArgumentError as error:
        raise ConfigError(f"database URL cannot be read: {error}. Give sqlite:///PATH or postgresql://…") from error
    if parsed.drivername == "postgresql":
        return parsed.set(drivername="postgresql+psycopg")
    return parsed


def _sqlite(url: URL, pool_size: int, *, plain: bool) -> Engine:
    reset = None if plain else "rollback"
    engine = create_engine(url, pool_size=pool_size, max_overflow=2, pool_timeout=60, pool_reset_on_return=reset)
    event.listen(engine, "connect", _prepare_sqlite)
    if not plain:
        event.listen(engine, "begin", _begin_sqlite)
    return engine


def _prepare_sqlite(connection: sqlite3.Connection, _record: Any) -> None:
    connection.isolation_level = None
    connection.execute(f"PRAGMA busy_timeout={BUSY_MS}")
    _use_wal(connection)
    for pragma in ("synchronous=FULL", "foreign_keys=ON"):
        connection.execute(f"PRAGMA {pragma}")


def _use_wal(connection: sqlite3.Connection) -> None:
    """A new file changes over once, and whoever else does so at this moment is refused without a wait."""
    for last in (*[False] * 50, True):
        try:
            connection.execute("PRAGMA journal_mode=WAL")
        except sqlite3.OperationalError:
            if last:
                raise
            time.sleep(0.1)
        else:
            return


def _begin_sqlite(connection: Connection) -> None:
    """Straight to the driver, so that counting statements counts ours."""
    assert connection.connection.dbapi_connection is not None
    connection.connection.dbapi_connection.cursor().execute("BEGIN IMMEDIATE")


def _postgres(url: URL, pool_size: int, *, plain: bool) -> Engine:
    how: dict[str, Any] = {"isolation_level": "AUTOCOMMIT", "pool_reset_on_return": None} if plain else {}
    try:
        engine = create_engine(
            url,
            pool_size=pool_size,
            max_overflow=2,
            pool_timeout=60,
            **LAST_FIRST,
            **how,
            connect_args={**UNPREPARED, "options": POSTGRES_OPTIONS, "connect_timeout": 5, **NOTICE_A_LOST_HOST},
        )
    except ModuleNotFoundError as error:
        raise ConfigError(
            "PostgreSQL needs its driver: install chordage with its extra, as in `pip install 'chordage[postgres]'` "
            "(in a clone '.[postgres]'), or use an sqlite:/// URL"
        ) from error
    wire.lay(engine)
    return engine
