"""The Redis transport of our processes: kombu's, with a cheaper way to record which messages a worker holds.

Kombu records each message that it delivers, and each that is acknowledged, in a Redis transaction of its own and waits
for it, before the message goes to work and before the next one is read: a third of what a small task costs. Here a
channel writes these records to one connection, in order, and reads the replies when it writes the next. Before it puts
a message back, it waits until all its records are written.

The subclasses are chosen by the setting `broker_transport`; kombu itself stays as it is for everyone else in the
process. They rely on what kombu writes to Redis. `records_match` compares that at start, and a kombu that writes
something else is used as it is.

What it does not promise: a worker that is killed between the arrival of a message and its record loses that message,
as with kombu.
"""

from __future__ import annotations

import time
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import structlog
from kombu.transport import redis, virtual
from kombu.utils.json import dumps
from redis.exceptions import ConnectionError as RedisConnectionError

from chordage.config.redis_url import Kind, RedisAddress
from chordage.workers.ledger import Ledger

log = structlog.get_logger()

# The stubs of kombu know nothing of these classes.
StockQoS: Any = redis.QoS
StockChannel: Any = redis.Channel
StockTransport: Any = redis.Transport
StockSentinelChannel: Any = redis.SentinelChannel
StockSentinelTransport: Any = redis.SentinelTransport

Command = tuple[Any, ...]


class QoS(StockQoS):  # type: ignore[misc]
    """Records what is delivered and acknowledged without waiting for Redis."""

    def __init__(self, channel: Any, *args: Any, **options: Any) -> None:
        super().__init__(channel, *args, **options)
        self.ledger = Ledger(lambda: channel.pool)

    def append(self, message: Any, delivery_tag: str) -> None:
        self.ledger.write(*_delivered(*self._keys, message, delivery_tag, time.time()))
        virtual.QoS.append(self, message, delivery_tag)

    def ack(self, delivery_tag: str) -> None:
        self.ledger.write(*_acknowledged(*self._keys, delivery_tag))
        virtual.QoS.ack(self, delivery_tag)

    def reject(self, delivery_tag: str, requeue: bool = False) -> None:
        if not requeue:
            self.ack(delivery_tag)
            return
        self.restore_by_tag(delivery_tag, leftmost=True)
        virtual.QoS.ack(self, delivery_tag)

    def restore_unacked(self, *args: Any, **options: Any) -> Any:
        self.ledger.settle()
        return super().restore_unacked(*args, **options)

    def restore_by_tag(self, *args: Any, **options: Any) -> Any:
        self.ledger.settle()
        return super().restore_by_tag(*args, **options)

    @property
    def _keys(self) -> tuple[str, str]:
        """With the prefix that kombu's own client adds."""
        prefix = self.channel.global_keyprefix
        return prefix + self.unacked_index_key, prefix + self.unacked_key


def _delivered(index: str, unacked: str, message: Any, tag: str, at: float) -> tuple[Command, Command]:
    source = message.delivery_info
    held = dumps([message._raw, source["exchange"], source["routing_key"]])  # noqa: SLF001 - as kombu writes it
    return ("ZADD", index, at, tag), ("HSET", unacked, tag, held)


def _acknowledged(index: str, unacked: str, tag: str) -> tuple[Command, Command]:
    return ("HDEL", unacked, tag), ("ZREM", index, tag)


class Channel(StockChannel):  # type: ignore[misc]
    QoS = QoS

    def _connparams(self, *args: Any, **options: Any) -> Any:
        """Celery closes a lost connection twice. The second time kombu would restore messages through a transport that
        has no client any more, and its AttributeError would end the worker.
        """
        if self.connection is None or self.connection.client is None:
            raise RedisConnectionError("channel already closed")
        return super()._connparams(*args, **options)

    def _create_client(self, asynchronous: bool = False) -> Any:
        """Kombu makes a client for each publish and each acknowledgement, a fifth of their cost. A client is a thin
        handle on the channel's pool and safe to share between threads, so one is kept for each pool.
        """
        if asynchronous:
            return super()._create_client(asynchronous)
        pool, client = self.__dict__.get("_kept_client", (None, None))
        if pool is not self.pool:
            client = super()._create_client()
            self._kept_client = self.pool, client
        return client


class StockRecordsChannel(Channel):
    """For a kombu whose records are not the ones that QoS writes."""

    QoS = StockQoS


class SentinelChannel(Channel, StockSentinelChannel):  # type: ignore[misc]
    """For a server that sentinels name."""


class StockRecordsSentinelChannel(StockRecordsChannel, StockSentinelChannel):  # type: ignore[misc]
    pass


class Transport(StockTransport):  # type: ignore[misc]
    Channel = Channel


class StockRecordsTransport(StockTransport):  # type: ignore[misc]
    Channel = StockRecordsChannel


class SocketTransport(Transport):
    can_parse_url = True  # its channel reads the path of the socket from the URL


class StockRecordsSocketTransport(StockRecordsTransport):
    can_parse_url = True


class SentinelTransport(StockSentinelTransport):  # type: ignore[misc]
    Channel = SentinelChannel


class StockRecordsSentinelTransport(StockSentinelTransport):  # type: ignore[misc]
    Channel = StockRecordsSentinelChannel


# By what the address is, with records of our own and with those of kombu.
TRANSPORTS = {
    Kind.TCP: (Transport, StockRecordsTransport),
    Kind.TLS: (Transport, StockRecordsTransport),
    Kind.SOCKET: (SocketTransport, StockRecordsSocketTransport),
    Kind.SENTINEL: (SentinelTransport, StockRecordsSentinelTransport),
}


def settings_of(address: RedisAddress) -> dict[str, str]:
    """What the settings `broker_transport` and `broker_url` have to say in a process of ours."""
    own, stock = TRANSPORTS[address.kind]
    chosen = own
    if not records_match(StockQoS):
        log.warning("kombu records messages in another way than expected; its own way is used, at some cost of speed")
        chosen = stock
    return {"broker_transport": f"{__name__}:{chosen.__name__}", "broker_url": address.bare_url}


def records_match(stock: Any) -> bool:
    """Whether kombu writes to Redis, for a message delivered and acknowledged, just what QoS writes."""
    message = SimpleNamespace(_raw={"body": "b"}, delivery_info={"exchange": "e", "routing_key": "r"})
    ours = {*_delivered("index", "unacked", message, "tag", 0), *_acknowledged("index", "unacked", "tag")}
    try:
        return _recorded_by(stock, message) == ours
    except Exception as error:
        log.debug("kombu cannot be asked how it records messages", error=repr(error))
        return False


def _recorded_by(stock: Any, message: Any) -> set[Command]:
    pipe = _Recorder()
    client = SimpleNamespace(pipeline=lambda: pipe)
    qos = stock(SimpleNamespace(conn_or_acquire=lambda _client=None: nullcontext(client), do_restore=False))
    qos.__dict__ |= {"unacked_key": "unacked", "unacked_index_key": "index"}
    qos.append(message, "tag")
    qos.ack("tag")
    return set(pipe.commands)


class _Recorder:
    """Stands for a pipeline of Redis; keeps what it is told, in the form in which it would be sent."""

    def __init__(self) -> None:
        self.commands: list[Command] = []

    def zadd(self, key: str, scores: dict[str, float]) -> _Recorder:
        self.commands += [("ZADD", key, 0, member) for member in scores]
        return self

    def hset(self, key: str, field: str, value: str) -> _Recorder:
        self.commands.append(("HSET", key, field, value))
        return self

    def zrem(self, key: str, member: str) -> _Recorder:
        self.commands.append(("ZREM", key, member))
        return self

    def hdel(self, key: str, field: str) -> _Recorder:
        self.commands.append(("HDEL", key, field))
        return self

    def execute(self) -> None:
        pass
