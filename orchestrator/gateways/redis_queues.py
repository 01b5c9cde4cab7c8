"""Celery's queues in Redis, looked at from outside: a list each."""

from __future__ import annotations

import structlog
from redis import Redis
from redis.exceptions import RedisError

log = structlog.get_logger()


class RedisQueues:
    def __init__(self, client: Redis, *, prefix: str) -> None:
        self._redis = client
        self._prefix = prefix

    def is_empty(self, queue: str) -> bool:
        try:
            return not self._redis.llen(self._prefix + queue)
        except RedisError as error:
            log.warning("redis does not answer; nobody knows what waits", queue=queue, error=str(error))
            return False
