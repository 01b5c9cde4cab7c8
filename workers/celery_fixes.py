"""Cures for faults of the very Celery release we pin. Each is tied to that version, so an upgrade asks whether it is needed."""

from __future__ import annotations

from typing import Any

import celery
from kombu.transport.redis import Channel
from redis.exceptions import ConnectionError as RedisConnectionError


def survive_reconnect() -> None:
    """5.7.0 closes a lost connection twice. The second time the Redis channel restores unacknowledged messages through a
    transport that has no client any more, and its AttributeError ends the worker. As a connection error it is handled like
    the loss that it is. tests/live restarts Redis under a worker with a task in flight.
    """
    if celery.__version__ != "5.7.0":
        return
    original = Channel._connparams  # noqa: SLF001 - the fault is in a private method

    def connparams(self: Channel, asynchronous: bool = False) -> Any:
        if self.connection is None or self.connection.client is None:
            raise RedisConnectionError("channel already closed")
        return original(self, asynchronous)

    Channel._connparams = connparams  # noqa: SLF001
