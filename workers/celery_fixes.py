"""Cures for faults of the very Celery release we pin. Each is tied to that version, so an upgrade asks whether it is
needed.
"""

from __future__ import annotations

import time
from importlib.metadata import version
from typing import Any

from kombu.transport import redis as transport
from kombu.transport import virtual
from kombu.utils.json import dumps
from redis.exceptions import ConnectionError as RedisConnectionError

from chordage.workers.ledger import Ledger

# Its private methods are what is mended; the type checker need not know them.
Channel: Any = transport.Channel
QoS: Any = transport.QoS


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


def note_without_waiting() -> None:
    """Kombu 5.7.0 notes each message that it hands on, and each that is acknowledged, in a transaction of its own and
    waits for it, before the message goes to work and before the next is read: a third of what a small task costs.
    Here a channel writes these notes to a connection kept for them, in their order, and reads what Redis said to them
    when it writes the next. Before it puts back a message of which it has a note, it waits until all of them are made.
    """
    if version("kombu") != "5.7.0" or QoS.append.__module__ == __name__:  # a process may have several apps
        return
    begin, restore_unacked, restore_by_tag = QoS.__init__, QoS.restore_unacked, QoS.restore_by_tag

    def begin_with_a_ledger(self: Any, channel: Any, *args: Any, **more: Any) -> None:
        begin(self, channel, *args, **more)
        self.ledger = Ledger(lambda: channel.pool)

    def append(self: Any, message: Any, tag: str) -> None:
        where = message.delivery_info
        held = dumps([message._raw, where["exchange"], where["routing_key"]])  # noqa: SLF001
        index, unacked = _keys(self)
        self.ledger.write(("ZADD", index, time.time(), tag), ("HSET", unacked, tag, held))
        virtual.QoS.append(self, message, tag)

    def ack(self: Any, tag: str) -> None:
        index, unacked = _keys(self)
        self.ledger.write(("HDEL", unacked, tag), ("ZREM", index, tag))
        virtual.QoS.ack(self, tag)

    def reject(self: Any, tag: str, requeue: bool = False) -> None:
        if not requeue:
            ack(self, tag)
            return
        self.restore_by_tag(tag, leftmost=True)
        virtual.QoS.ack(self, tag)

    def all_noted(restore: Any) -> Any:
        def restore_what_is_noted(self: Any, *args: Any, **more: Any) -> Any:
            self.ledger.settle()
            return restore(self, *args, **more)

        return restore_what_is_noted

    QoS.__init__, QoS.append, QoS.ack, QoS.reject = begin_with_a_ledger, append, ack, reject
    QoS.restore_unacked, QoS.restore_by_tag = all_noted(restore_unacked), all_noted(restore_by_tag)


def _keys(qos: Any) -> tuple[str, str]:
    """With the prefix that a client of kombu would give them."""
    prefix = qos.channel.global_keyprefix
    return prefix + qos.unacked_index_key, prefix + qos.unacked_key
