"""What a contender asks of the database: commits, statements and bytes, counted by the database itself.

PostgreSQL: a transaction that writes takes a transaction id, and only such a one, so the ids taken are the number of
write commits. `pg_stat_statements` counts statements; a list of rows counts as many as the driver makes of it.
SQLite: a reader holds the write-ahead log open, so it grows only, and every commit leaves one marked frame in it.
"""

from __future__ import annotations

import sqlite3
import struct
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from chordage.orchestrator.core.errors import Unavailable

if TYPE_CHECKING:
    import psycopg


@dataclass(frozen=True, kw_only=True, slots=True)
class SqlCount:
    """`None` is what this database cannot tell."""

    commits: int = 0
    bytes: int = 0
    writes: int | None = None  # statements within transactions that write
    reads: int | None = None  # statements on their own that only read


class SqlLedger(Protocol):
    def count(self) -> SqlCount:
        """Since the ledger was opened."""


@contextmanager
def sql_ledger(url: str) -> Iterator[SqlLedger]:
    if url.startswith("sqlite"):
        with closing(sqlite3.connect(url.removeprefix("sqlite:///"), isolation_level=None)) as db:
            yield SqliteLedger(db)
        return
    import psycopg

    with psycopg.connect(url.replace("postgresql+psycopg://", "postgresql://"), autocommit=True) as connection:
        yield PostgresLedger(connection)


class PostgresLedger:
    _STATEMENTS = """
        SELECT coalesce(sum(calls) FILTER (WHERE query ~* $r$^\\s*(insert|update|delete|with)$r$
                                              OR query ~* 'for (no key )?update'), 0)::int,
               coalesce(sum(calls) FILTER (WHERE query ~* $r$^\\s*select$r$ AND query !~* 'for (no key )?update'
                                              AND query !~* 'pg_snapshot|pg_stat_statements'), 0)::int
        FROM pg_stat_statements WHERE dbid = (SELECT oid FROM pg_database WHERE datname = current_database())
    """

    def __init__(self, connection: psycopg.Connection) -> None:
        self._connection = connection
        self._knows_statements = self._reset_statements()
        self._xid, self._lsn = self._now()

    def count(self) -> SqlCount:
        xid, lsn = self._now()
        writes, reads = self._statements() if self._knows_statements else (None, None)
        return SqlCount(commits=xid - self._xid, bytes=lsn - self._lsn, writes=writes, reads=reads)

    def _now(self) -> tuple[int, int]:
        found = self._connection.execute(
            "SELECT pg_snapshot_xmax(pg_current_snapshot())::text::bigint, pg_current_wal_insert_lsn() - '0/0'"
        ).fetchone()
        assert found is not None
        return int(found[0]), int(found[1])

    def _reset_statements(self) -> bool:
        import psycopg

        try:
            self._connection.execute("CREATE EXTENSION IF NOT EXISTS pg_stat_statements")
            self._connection.execute("SELECT pg_stat_statements_reset()")
        except psycopg.Error:  # a server that was not started with it, or no right to
            return False
        return True

    def _statements(self) -> tuple[int, int]:
        found = self._connection.execute(self._STATEMENTS).fetchone()
        assert found is not None
        return int(found[0]), int(found[1])


class SqliteLedger:
    """Parses the write-ahead log: a header of 32 bytes, then frames of 24 bytes and a page each."""

    def __init__(self, db: sqlite3.Connection) -> None:
        self._wal = Path(f"{db.execute('PRAGMA database_list').fetchone()[2]}-wal")
        busy, *_ = db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        if busy:
            raise Unavailable(f"{self._wal} is in use: the counts need a moment in which nobody writes")
        db.execute("PRAGMA user_version = 0")  # one frame of our own, for the reader below to stand on
        db.execute("BEGIN")
        db.execute("SELECT count(*) FROM sqlite_master").fetchone()
        self._before = self._marked_and_bytes()

    def count(self) -> SqlCount:
        commits, written = self._marked_and_bytes()
        return SqlCount(commits=commits - self._before[0], bytes=written - self._before[1])

    def _marked_and_bytes(self) -> tuple[int, int]:
        with self._wal.open("rb") as wal:
            header = wal.read(32)
            page: int = struct.unpack(">I", header[8:12])[0]
            commits = written = 0
            while len(frame := wal.read(24)) == 24 and frame[8:16] == header[16:24]:
                commits += frame[4:8] != bytes(4)  # the size of the database, in the last frame of a commit only
                written += 24 + page
                wal.seek(page, 1)
        return commits, written
