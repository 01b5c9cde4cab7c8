"""Cures for faults of the very Celery release we pin. Each is tied to that version, so an upgrade asks whether it is
needed.
"""

from __future__ import annotations

from importlib.metadata import version
from typing import Any

from kombu.transport import redis as transport
from redis.exceptions import ConnectionError as RedisConnectionError

# Its private methods are what is mended; the type checker need not know them.
Channel: Any = transport.Channel


def survive_reconnect() -> None:
    """5.7.0 closes a lost connection twice. The second time the Redis channel restores unacknowledged messages
    through a transport that has no client any more, and its AttributeError ends the worker. As a connection error
    it is handled like the loss that it is. tests/live restarts Redis under a worker with a task in flight.
    """
    if version("celery") != "5.7.0":
        return
    original = Channel._connparams  # noqa: SLF001

    def connparams(self: Any, asynchronous: bool = False) -> Any:
        if self.connection is None or self.connection.client is None:
            raise RedisConnectionError("channel already closed")
        return original(self, asynchronous)

    Channel._connparams = connparams  # noqa: SLF001


def reuse_clients() -> None:
    """Kombu 5.7.0 makes a Redis client object for every publish and every acknowledgement, a fifth of their cost. A
    client is a thin handle on the channel's connection pool and safe to share between threads, so each channel
    keeps one.
    """
    if version("kombu") != "5.7.0":
        return
    original = Channel._create_client  # noqa: SLF001

    def create_client(self: Any, asynchronous: bool = False) -> Any:
        if asynchronous:
            return original(self, asynchronous)
        pool = self.pool
        if getattr(self, "_chordage_pool", None) is not pool:
            self._chordage_client, self._chordage_pool = original(self), pool
        return self._chordage_client

    Channel._create_client = create_client  # noqa: SLF001
