"""What a turn costs in numbers that do not depend on the machine.

Redis: commands as MONITOR shows them, of the contender's own database, clients included. What an idle fleet sends too
is left out: pings, questions whether a queue has grown, the timers of kombu and of rescue. So is the question who
watches, which a process asks once a second however many turns it has. A command that takes messages may end with
nothing, so one is counted for each message. Commands that a Lua script runs inside Redis are not counted.

PostgreSQL: a transaction that writes takes a transaction id, and only such a one, so the ids taken are the number of
write commits. `pg_stat_statements` counts statements; a list of rows counts as many as the driver makes of it.
SQLite: a reader holds the write-ahead log open, so it grows only, and every commit leaves one marked frame in it.
"""

from __future__ import annotations

import re
import sqlite3
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, Self

from redis import Redis

from chordage.benchmarks.contenders import Conditions, Contender
from chordage.orchestrator.core.errors import Unavailable

if TYPE_CHECKING:
    import psycopg

QUIET_FOR = 0.4  # seconds without a command: nothing more follows from the turn
PATIENCE = 20.0
END = "end-of-the-bench"
CHATTER = re.compile(
    r"^(BRPOP|PING|HELLO|CLIENT|SELECT|INFO|LLEN|HLEN|SMEMBERS|SADD|ECHO|COMMAND|SCRIPT|ZREVRANGEBYSCORE)\b"
    r"|^EVAL .*LINDEX|^ZRANGE \S*unacked_index|_kombu\.|celeryev|pidbox|:sweep:|unacked_mutex|:watched\b",
    re.IGNORECASE,
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Counts:
    """Each a turn. Bytes are what was sent to Redis, and what the database wrote to its log."""

    messages: float
    redis_commands: float
    redis_bytes: float
    commits: float
    write_statements: float | None
    read_statements: float | None
    sql_bytes: float


def count_work(contender: Contender, conditions: Conditions, work: Callable[[], object], *, times: int) -> Counts:
    with RedisCounter(conditions.redis_url, contender.redis_number) as redis:
        redis.restart()
        with sql_counter(contender.database_url) as sql:
            for _ in range(times):
                work()
            in_redis, in_sql = redis.when_quiet(), sql.count()
    return Counts(
        messages=in_redis.messages / times,
        redis_commands=in_redis.commands / times,
        redis_bytes=in_redis.bytes / times,
        commits=in_sql.commits / times,
        write_statements=None if in_sql.writes is None else in_sql.writes / times,
        read_statements=None if in_sql.reads is None else in_sql.reads / times,
        sql_bytes=in_sql.bytes / times,
    )


def count_turns(contender: Contender, conditions: Conditions, turn: Callable[[], object], *, times: int) -> Counts:
    """Less what the fleet does at rest in the same time: it says that it lives, and copies the journal to the bus."""

    def timed(work: Callable[[], object], times: int) -> tuple[float, Counts]:
        begun = time.monotonic()
        counted = count_work(contender, conditions, work, times=times)
        return time.monotonic() - begun, counted

    took, found = timed(turn, times)
    rested, at_rest = timed(lambda: time.sleep(took), 1)
    share = took / rested / times

    def less(name: str) -> Any:
        value = getattr(found, name)
        return value if value is None else round(max(0.0, value - getattr(at_rest, name) * share), 1)

    return Counts(**{name: less(name) for name in Counts.__dataclass_fields__})


@dataclass(frozen=True, kw_only=True, slots=True)
class RedisCount:
    messages: int = 0
    commands: int = 0
    bytes: int = 0


class RedisCounter:
    """Counts from the start of its `with` block."""

    def __init__(self, url: str, number: int) -> None:
        self._redis = Redis.from_url(f"{url}/{number}", max_connections=10)
        self._number = number
        self._commands: list[str] = []
        self._last = time.monotonic()
        self._thread = threading.Thread(target=self._monitor, name="bench-monitor", daemon=True)
        self._monitoring = threading.Event()

    def __enter__(self) -> Self:
        self._thread.start()
        self._monitoring.wait(PATIENCE)
        return self

    def __exit__(self, *_: object) -> None:
        self._redis.echo(END)
        self._thread.join(PATIENCE)
        self._redis.close()

    def _monitor(self) -> None:
        with self._redis.monitor() as monitor:  # type: ignore[no-untyped-call]
            self._monitoring.set()
            while True:
                line: dict[str, Any] = monitor.next_command()
                command = str(line["command"])
                if END in command:
                    return
                if line["db"] == self._number and line["client_type"] != "lua" and not CHATTER.search(command):
                    self._commands.append(command)
                    self._last = time.monotonic()

    def restart(self) -> None:
        """Forget everything up to now, and what still follows from it."""
        self.when_quiet()
        self._commands.clear()

    def when_quiet(self) -> RedisCount:
        """Waits until no more commands follow."""
        give_up = time.monotonic() + PATIENCE
        while time.monotonic() - self._last < QUIET_FOR and time.monotonic() < give_up:
            time.sleep(0.05)
        commands = list(self._commands)
        messages = sum(messages_in(command) for command in commands)
        return RedisCount(messages=messages, commands=len(commands) + messages, bytes=sum(map(len, commands)))


def messages_in(command: str) -> int:
    """A push may hold several; kombu tags each."""
    return max(1, command.count('"delivery_tag"')) if command.upper().startswith("LPUSH ") else 0


@dataclass(frozen=True, kw_only=True, slots=True)
class SqlCount:
    """`None`: this database has no such count."""

    commits: int = 0
    bytes: int = 0
    writes: int | None = None  # statements within transactions that write
    reads: int | None = None  # statements on their own that only read


class SqlCounter(Protocol):
    def count(self) -> SqlCount:
        """Since the counter was made."""


class NothingStored:
    def count(self) -> SqlCount:
        return SqlCount(writes=0, reads=0)


@contextmanager
def sql_counter(url: str | None) -> Iterator[SqlCounter]:
    if url is None:
        yield NothingStored()
        return
    if url.startswith("sqlite"):
        with closing(sqlite3.connect(url.removeprefix("sqlite:///"), isolation_level=None)) as db:
            yield SqliteCounter(db)
        return
    import psycopg

    with psycopg.connect(url.replace("postgresql+psycopg://", "postgresql://"), autocommit=True) as connection:
        yield PostgresCounter(connection)


class PostgresCounter:
    _STATEMENTS = """
        SELECT coalesce(sum(calls) FILTER (WHERE query ~* $r$^\\s*(insert|update|delete|with)$r$
                                              OR query ~* 'for (no key )?update'), 0)::int,
               coalesce(sum(calls) FILTER (WHERE query ~* $r$^\\s*select$r$ AND query !~* 'for (no key )?update'
                                              AND query !~* 'pg_snapshot|pg_stat_statements'), 0)::int
        FROM pg_stat_statements WHERE dbid = (SELECT oid FROM pg_database WHERE datname = current_database())
    """
    _POSITION = "SELECT pg_snapshot_xmax(pg_current_snapshot())::text::bigint, pg_current_wal_insert_lsn() - '0/0'"

    def __init__(self, connection: psycopg.Connection) -> None:
        self._connection = connection
        self._counts_statements = self._reset_statements()
        self._xid, self._lsn = self._two_numbers(self._POSITION)

    def count(self) -> SqlCount:
        xid, lsn = self._two_numbers(self._POSITION)
        writes, reads = self._two_numbers(self._STATEMENTS) if self._counts_statements else (None, None)
        return SqlCount(commits=xid - self._xid, bytes=lsn - self._lsn, writes=writes, reads=reads)

    def _two_numbers(self, query: str) -> tuple[int, int]:
        row = self._connection.execute(query.encode()).fetchone()
        assert row is not None
        return int(row[0]), int(row[1])

    def _reset_statements(self) -> bool:
        import psycopg

        try:
            self._connection.execute("CREATE EXTENSION IF NOT EXISTS pg_stat_statements")
            self._connection.execute("SELECT pg_stat_statements_reset()")
        except psycopg.Error:  # a server that was not started with it, or no right to
            return False
        return True


class SqliteCounter:
    """Parses the write-ahead log: a header of 32 bytes, then frames of 24 bytes and a page each."""

    def __init__(self, db: sqlite3.Connection) -> None:
        self._wal = Path(f"{db.execute('PRAGMA database_list').fetchone()[2]}-wal")
        busy, *_ = db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        if busy:
            raise Unavailable(f"{self._wal} is in use: counting needs a moment without open transactions")
        db.execute("PRAGMA user_version = 0")  # one frame of our own, for the reader below to hold open
        db.execute("BEGIN")
        db.execute("SELECT count(*) FROM sqlite_master").fetchone()
        self._before = self._commits_and_bytes()

    def count(self) -> SqlCount:
        commits, written = self._commits_and_bytes()
        return SqlCount(commits=commits - self._before[0], bytes=written - self._before[1])

    def _commits_and_bytes(self) -> tuple[int, int]:
        with self._wal.open("rb") as wal:
            header = wal.read(32)
            page: int = struct.unpack(">I", header[8:12])[0]
            commits = written = 0
            while len(frame := wal.read(24)) == 24 and frame[8:16] == header[16:24]:
                commits += frame[4:8] != bytes(4)  # the size of the database, in the last frame of a commit only
                written += 24 + page
                wal.seek(page, 1)
        return commits, written
