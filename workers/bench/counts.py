"""What one turn costs in numbers that do not depend on the machine."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import dataclass

from chordage.workers.bench.contender import Contender, Ground
from chordage.workers.bench.redis_ledger import RedisLedger
from chordage.workers.bench.sql_ledger import sql_ledger


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

    @property
    def bytes(self) -> float:
        return self.redis_bytes + self.sql_bytes


def count(contender: Contender, ground: Ground, *, turns: int = 10) -> Counts:
    """Of turns one after the other, each on a thread of its own. Nothing else may use the servers meanwhile."""
    return count_work(contender, ground, lambda: contender.turn(f"count:{uuid.uuid4()}"), times=turns)


def count_work(contender: Contender, ground: Ground, work: Callable[[], None], *, times: int) -> Counts:
    with RedisLedger(ground.redis_url, contender.redis_number) as redis:
        redis.start_over()
        with sql_ledger(contender.database_url) as sql:
            for _ in range(times):
                work()
            asked, stored = redis.settled(), sql.count()
    return Counts(
        messages=asked.messages / times,
        redis_commands=asked.commands / times,
        redis_bytes=asked.bytes / times,
        commits=stored.commits / times,
        write_statements=None if stored.writes is None else stored.writes / times,
        read_statements=None if stored.reads is None else stored.reads / times,
        sql_bytes=stored.bytes / times,
    )
