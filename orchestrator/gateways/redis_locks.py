"""Locks in Redis: one for each thread, owned by its run, and one for each piece of work in flight. And its queues.

They save queries of the database, and a doubled model call. They decide nothing: Redis may be empty, paused or wrong,
and then every answer here lets the work continue, because the database decides at the commit. A lock is never waited
for.
"""

from __future__ import annotations

from collections.abc import Callable

import structlog
from redis import Redis
from redis.exceptions import LockError, RedisError
from redis.lock import Lock

log = structlog.get_logger()

BEGUN_LEASES = 4  # for so long it is known that a piece of work was begun


class RedisLocks:
    def __init__(self, client: Redis, *, prefix: str, lease: float) -> None:
        self._redis = client
        self._prefix = prefix
        self._lease = lease

    def _lock(self, thread_id: str, owner: str, seconds: float) -> Lock:
        """The library's lock, owned by the run and not by a process: any worker that advances the run may extend it."""
        name = f"{self._prefix}thread:{thread_id}"
        lock: Lock = self._redis.lock(name, timeout=seconds, blocking=False, thread_local=False)
        lock.local.token = owner.encode()
        return lock

    def take(self, thread_id: str, owner: str) -> str | None:
        """Briefly at first: a worker that dies before the commit that starts the run must not block the thread."""
        lock = self._lock(thread_id, owner, self._lease / 3)
        try:
            if lock.acquire(token=owner):
                return None
            holder = self._redis.get(lock.name)
        except RedisError as error:
            log.warning("redis does not answer; the index decides", thread=thread_id, error=str(error))
            return None
        # Where a reply was lost, the library asks again and finds its own token.
        held_by = holder.decode() if isinstance(holder, bytes) else holder
        return None if held_by == owner else held_by or ""

    def extend(self, thread_id: str, owner: str) -> bool:
        """False while Redis does not answer. A lock that is gone is taken again: the run still owns its thread."""
        lock = self._lock(thread_id, owner, 2 * self._lease)
        try:
            lock.extend(2 * self._lease, replace_ttl=True)
        except LockError:
            self.take(thread_id, owner)
        except RedisError as error:
            log.warning("redis does not answer; lock not extended", thread=thread_id, error=str(error))
            return False
        return True

    def release(self, thread_id: str, owner: str) -> None:
        try:
            self._lock(thread_id, owner, self._lease).release()
        except LockError:
            log.debug("lock was gone before it was released", thread=thread_id)
        except RedisError as error:
            log.warning("redis does not answer; lock will expire", thread=thread_id, error=str(error))

    def once(self, key: str) -> bool:
        """True for the first who asks. A second key outlives the lock, by which rescue sees that the work was begun."""
        try:
            with self._redis.pipeline(transaction=False) as pipe:
                pipe.set(self._work(key), 1, nx=True, px=int(self._lease * 1000))
                pipe.set(self._begun(key), 1, px=int(BEGUN_LEASES * self._lease * 1000))
                first, _ = pipe.execute()
            return bool(first)
        except RedisError as error:
            log.warning("redis does not answer; work continues", work=key, error=str(error))
            return True

    def forget(self, key: str) -> None:
        try:
            self._redis.delete(self._work(key), self._begun(key))
        except RedisError as error:
            log.warning("redis does not answer; lock will expire", work=key, error=str(error))

    def alive(self, keys: list[str]) -> set[str]:
        return self._known(keys, self._work)

    def begun(self, keys: list[str]) -> set[str]:
        return self._known(keys, self._begun)

    def _known(self, keys: list[str], name: Callable[[str], str]) -> set[str]:
        if not keys:
            return set()
        values = self._redis.mget([name(key) for key in keys])
        return {key for key, value in zip(keys, values, strict=True) if value is not None}

    def renew(self, keys: list[str]) -> bool:
        """The heartbeat of work in flight. False while Redis does not answer. A lock that Redis lost is set again."""
        try:
            with self._redis.pipeline(transaction=False) as pipe:
                for key in keys:
                    pipe.set(self._work(key), 1, px=int(self._lease * 1000))
                pipe.execute()
        except RedisError as error:
            log.warning("redis does not answer; locks not renewed", error=str(error))
            return False
        return True

    def _work(self, key: str) -> str:
        return f"{self._prefix}work:{key}"

    def _begun(self, key: str) -> str:
        return f"{self._prefix}begun:{key}"


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
