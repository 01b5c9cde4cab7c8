"""Locks in Redis: one for each thread, owned by its run, and one for each piece of work in flight. And its queues.

They save queries of the database, and a doubled model call. They decide nothing: Redis may be empty, paused or wrong,
and then every answer here lets the work continue, because the database decides at the commit. A lock is never waited
for. Where the answer decides what a stage does, it costs one trip; that a run keeps or releases its thread is written
without waiting.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import structlog
from redis import Redis
from redis.exceptions import RedisError
from redis.lock import Lock

from chordage.orchestrator.gateways.ports import WorkMark
from chordage.orchestrator.gateways.redis_direct import RedisHints, RedisTrips

log = structlog.get_logger()

BEGUN_LEASES = 4  # for so long it is known that a piece of work was begun

# KEYS: the lock. ARGV: its owner, for how long. A lock of another is left as it is.
EXTEND = """
local holder = redis.call('GET', KEYS[1])
if holder == ARGV[1] then redis.call('PEXPIRE', KEYS[1], ARGV[2])
elseif not holder then redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2]) end
"""
# KEYS: the lock. ARGV: its owner, the owner before, for how long. Returns who has it then.
TAKE_OVER = """
local holder = redis.call('GET', KEYS[1])
if holder and holder ~= ARGV[1] and holder ~= ARGV[2] then return holder end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[3])
return ARGV[1]
"""


class RedisLocks:
    """What Redis keeps of the lock of a thread is what `redis.lock.Lock` keeps, which is an object for each use."""

    def __init__(self, client: Redis, hints: RedisHints, *, prefix: str, lease: float, worker: str) -> None:
        """`worker`: the process that takes the locks of work in flight."""
        self._redis = client
        self._trips = RedisTrips(client)
        self._hints = hints
        self._prefix = prefix
        self._worker = worker
        self._lease = int(lease * 1000)  # everything here is in milliseconds, as in Redis
        self._begun = BEGUN_LEASES * self._lease
        self._take_over = client.register_script(TAKE_OVER)

    def take(self, thread_id: str, owner: str, *, instead_of: str | None = None) -> str | None:
        """Briefly at first: a worker that dies before the commit that starts the run must not block the thread."""
        lock, brief = self._lock(thread_id), self._lease // 10
        try:
            if instead_of is not None:
                holder = self._take_over(keys=[lock], args=[owner, instead_of, brief])
            elif self._is_set(lock, owner, brief):
                return None
            else:
                holder = self._redis.get(lock)
        except RedisError as error:
            log.warning("redis does not answer; the index decides", thread=thread_id, error=str(error))
            return None
        # Where a reply was lost, the library asks again and finds its own token.
        held_by = "" if holder is None else _text(holder)
        return None if held_by == owner else held_by

    def extend(self, thread_id: str, owner: str) -> None:
        """A lock that is gone is taken again: the run still owns its thread."""
        self._hints.write(("EVAL", EXTEND, 1, self._lock(thread_id), owner, 2 * self._lease))

    def release(self, thread_id: str, owner: str, *, more: bool = False) -> None:
        self._hints.write(("EVAL", Lock.LUA_RELEASE_SCRIPT, 1, self._lock(thread_id), owner), more=more)

    def once(self, key: str) -> bool:
        """True for the first who asks, and a lease later for the next. The mark outlives its lease: by it, rescue sees
        that the work was begun.
        """
        mark = self._work(key)
        try:
            if self._is_set(mark, self._worker, self._begun):
                return True
            if self._holds(self._redis.pttl(mark)):
                return False
            # Its holder is gone. Two who come at this moment are both told so: of two replies one is recorded.
            self._redis.set(mark, self._worker, px=self._begun)
        except RedisError as error:
            log.warning("redis does not answer; work continues", work=key, error=str(error))
        return True

    def mark(self, key: str) -> None:
        self._hints.write(("SET", self._work(key), self._worker, "PX", self._begun))

    def forget(self, key: str) -> None:
        """It is gone before the work is sent to another process, and no mark that was written before comes after it."""
        self._hints.write(("DEL", self._work(key)))
        self._hints.flush()

    def holder(self, key: str) -> str | None:
        try:
            holder = self._redis.get(self._work(key))
        except RedisError as error:
            log.warning("redis does not answer; its holder is not known", work=key, error=str(error))
            return None
        return None if holder is None else _text(holder)

    def pause(self, key: str, until: datetime) -> None:
        left = max(1, int((until - datetime.now(UTC)).total_seconds() * 1000))
        self._hints.write(("SET", self._pause(key), until.isoformat(), "PX", left))

    def marks(self, keys: list[str]) -> dict[str, WorkMark]:
        if not keys:
            return {}
        try:
            holders = self.alive(keys)
            times: Any = self._redis.mget([self._pause(key) for key in keys])
        except RedisError as error:
            log.warning("redis does not answer; what is in flight is not known", error=str(error))
            return {}
        until = {key: datetime.fromisoformat(_text(time)) for key, time in zip(keys, times, strict=True) if time}
        return {key: WorkMark(holders.get(key), until.get(key)) for key in keys if key in holders or key in until}

    def alive(self, keys: list[str]) -> dict[str, str]:
        held = [key for key, left in self._left(keys).items() if self._holds(left)]
        holders: Any = self._redis.mget([self._work(key) for key in held]) if held else []
        return {key: _text(holder) for key, holder in zip(held, holders, strict=True) if holder is not None}

    def begun(self, keys: list[str]) -> set[str]:
        return {key for key, left in self._left(keys).items() if left > 0}

    def renew(self, holders: Mapping[str, str]) -> bool:
        """The heartbeat of work in flight. False while Redis does not answer. A lock that Redis lost is set again."""
        try:
            with self._redis.pipeline(transaction=False) as pipe:
                for key, worker in holders.items():
                    pipe.set(self._work(key), worker, px=self._begun)
                pipe.execute()
        except RedisError as error:
            log.warning("redis does not answer; locks not renewed", error=str(error))
            return False
        return True

    def _is_set(self, key: str, value: str, milliseconds: int) -> bool:
        """Whether there was none."""
        (reply,) = self._trips.ask(("SET", key, value, "NX", "PX", milliseconds))
        return reply is not None

    def _left(self, keys: list[str]) -> dict[str, int]:
        """For how long the marks of these pieces of work will be there; negative where there is none."""
        with self._redis.pipeline(transaction=False) as pipe:
            for key in keys:
                pipe.pttl(self._work(key))
            return dict(zip(keys, pipe.execute(), strict=True))

    def _holds(self, left: int) -> bool:
        """Whether a mark that will be there for so long was set within a lease. Only the clock of Redis is asked."""
        return left > self._begun - self._lease

    def _lock(self, thread_id: str) -> str:
        return f"{self._prefix}thread:{thread_id}"

    def _work(self, key: str) -> str:
        return f"{self._prefix}work:{key}"

    def _pause(self, key: str) -> str:
        return f"{self._prefix}pause:{key}"


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


class RedisQueues:
    """Celery's queues, looked at from outside: a list each."""

    def __init__(self, client: Redis, *, prefix: str) -> None:
        self._redis = client
        self._prefix = prefix

    def is_empty(self, queue: str) -> bool:
        try:
            return not self._redis.llen(self._prefix + queue)
        except RedisError as error:
            log.warning("redis does not answer; the queue may not be empty", queue=queue, error=str(error))
            return False

    def lengths(self, queues: Sequence[str]) -> Mapping[str, int]:
        asked = self._redis.pipeline(transaction=False)
        for queue in queues:
            asked.llen(self._prefix + queue)
        try:
            return dict(zip(queues, asked.execute(), strict=True))
        except RedisError as error:
            log.warning("redis does not answer; its queues were not counted", error=str(error))
            return {}
