"""The Redis transport of our processes: kombu's, with a cheaper way to record which messages a worker holds.

Kombu waits for Redis at each record. Here a channel writes its records to one connection, in order, and reads the
replies when it writes the next. Before it puts a message back, it waits until all its records are written (ADR 36).
Each record names the worker that holds the message, so that it is put back as soon as that worker is gone (ADR 57).
With a kombu that records in another way than `records_match` expects, its own way is used.

Not promised: a worker that is killed between the arrival of a message and its record loses that message, as with kombu.
"""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Mapping
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import redis
import structlog
from celery import Celery
from kombu.transport import redis as stock
from kombu.transport import virtual
from kombu.utils.encoding import bytes_to_str
from kombu.utils.json import dumps, loads
from redis.exceptions import ConnectionError as RedisConnectionError

from chordage.config.redis_url import RedisAddress, RedisKind
from chordage.orchestrator.gateways.redis_direct import Command, CommandWriter
from chordage.workers.presence import worker_name

log = structlog.get_logger()

# The stubs of kombu know nothing of these classes.
StockQoS: Any = stock.QoS
StockChannel: Any = stock.Channel
StockTransport: Any = stock.Transport
StockSentinelChannel: Any = stock.SentinelChannel
StockSentinelTransport: Any = stock.SentinelTransport

HOLDER = "holder"  # in a message that a worker holds: the worker
NO_HOLDER: Mapping[str, str] = {}


class QoS(StockQoS):  # type: ignore[misc]
    """Records what is delivered and acknowledged without waiting for Redis."""

    def __init__(self, channel: Any, *args: Any, **options: Any) -> None:
        super().__init__(channel, *args, **options)
        self._holder = {HOLDER: worker_name(os.getpid())}
        self.ack_writer = CommandWriter(lambda: channel.pool)

    def append(self, message: Any, delivery_tag: str) -> None:
        self.ack_writer.write(*_delivered(*self._keys, message, delivery_tag, time.time(), holder=self._holder))
        virtual.QoS.append(self, message, delivery_tag)

    def ack(self, delivery_tag: str) -> None:
        self.ack_writer.write(*_acknowledged(*self._keys, delivery_tag))
        virtual.QoS.ack(self, delivery_tag)

    def reject(self, delivery_tag: str, requeue: bool = False) -> None:
        if not requeue:
            self.ack(delivery_tag)
            return
        self.restore_by_tag(delivery_tag, leftmost=True)
        virtual.QoS.ack(self, delivery_tag)

    def restore_unacked(self, *args: Any, **options: Any) -> Any:
        self.ack_writer.flush()
        return super().restore_unacked(*args, **options)

    def restore_by_tag(self, *args: Any, **options: Any) -> Any:
        self.ack_writer.flush()
        return super().restore_by_tag(*args, **options)

    @property
    def _keys(self) -> tuple[str, str]:
        """With the prefix that kombu's own client adds."""
        prefix = self.channel.global_keyprefix
        return prefix + self.unacked_index_key, prefix + self.unacked_key


def _delivered(
    index: str, unacked: str, message: Any, tag: str, at: float, *, holder: Mapping[str, str] = NO_HOLDER
) -> tuple[Command, Command]:
    source = message.delivery_info
    raw = {**message._raw, **holder}  # noqa: SLF001 - as kombu writes it
    held = dumps([raw, source["exchange"], source["routing_key"]])
    return ("ZADD", index, at, tag), ("HSET", unacked, tag, held)


def _acknowledged(index: str, unacked: str, tag: str) -> tuple[Command, Command]:
    return ("HDEL", unacked, tag), ("ZREM", index, tag)


def put_back(app: Celery, client: redis.Redis, prefix: str, gone: Collection[str]) -> None:
    """Put the messages that these workers held back into their queues, where each is the next to be delivered. A worker
    that is gone returns none of its own, and kombu would wait for the visibility timeout.
    """
    held = client.hscan_iter(f"{prefix}{StockChannel.unacked_key}")
    tags = [bytes_to_str(tag) for tag, message in held if loads(bytes_to_str(message))[0].get(HOLDER) in gone]
    if not tags:
        return
    with app.connection_for_write() as connection:
        channel: Any = connection.default_channel
        for tag in tags:
            channel.qos.restore_by_tag(tag)
    log.info("messages of workers that are gone were put back", messages=len(tags))


def qos_for(stock_qos: Any) -> Any:
    """QoS, or kombu's own where kombu's records are not the ones that QoS writes."""
    return QoS if records_match(stock_qos) else stock_qos


def records_match(qos: Any) -> bool:
    """Whether kombu writes to Redis, for a message delivered and acknowledged, just what QoS writes."""
    message = SimpleNamespace(_raw={"body": "b"}, delivery_info={"exchange": "e", "routing_key": "r"})
    ours = {*_delivered("index", "unacked", message, "tag", 0), *_acknowledged("index", "unacked", "tag")}
    try:
        return _recorded_by(qos, message) == ours
    except Exception as error:
        log.debug("kombu's way to record messages cannot be checked", error=repr(error))
        return False


def _recorded_by(qos_class: Any, message: Any) -> set[Command]:
    pipe = _Recorder()
    client = SimpleNamespace(pipeline=lambda: pipe)
    qos = qos_class(SimpleNamespace(conn_or_acquire=lambda _client=None: nullcontext(client), do_restore=False))
    qos.__dict__ |= {"unacked_key": "unacked", "unacked_index_key": "index"}
    qos.append(message, "tag")
    qos.ack("tag")
    return set(pipe.commands)


class _Recorder:
    """Takes the place of a Redis pipeline, and keeps the commands in the form in which they would be sent."""

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


class RedisChannel(StockChannel):  # type: ignore[misc]
    QoS = qos_for(StockQoS)

    def _connparams(self, *args: Any, **options: Any) -> Any:
        """Celery closes a lost connection twice. The second time kombu would restore messages through a transport that
        has no client any more, and its AttributeError would end the worker.
        """
        if self.connection is None or self.connection.client is None:
            raise RedisConnectionError("channel already closed")
        return super()._connparams(*args, **options)

    def _create_client(self, asynchronous: bool = False) -> Any:
        """Kombu makes a client for each publish and each acknowledgement, a fifth of their cost. A client is a thin
        handle on the channel's pool and safe to share between threads, so there is one for each pool.
        """
        if asynchronous:
            return super()._create_client(asynchronous)
        pool, client = self.__dict__.get("_shared_client", (None, None))
        if pool is not self.pool:
            client = super()._create_client()
            self._shared_client = self.pool, client
        return client


class SentinelChannel(RedisChannel, StockSentinelChannel):  # type: ignore[misc]
    """For a server behind sentinels."""


class Transport(StockTransport):  # type: ignore[misc]
    Channel = RedisChannel


class SocketTransport(Transport):
    can_parse_url = True  # its channel reads the path of the socket from the URL


class SentinelTransport(StockSentinelTransport):  # type: ignore[misc]
    Channel = SentinelChannel


TRANSPORTS = {
    RedisKind.TCP: Transport,
    RedisKind.TLS: Transport,
    RedisKind.SOCKET: SocketTransport,
    RedisKind.SENTINEL: SentinelTransport,
}


def settings_of(address: RedisAddress) -> dict[str, str]:
    """The settings `broker_transport` and `broker_url` of our processes."""
    if RedisChannel.QoS is StockQoS:
        log.warning("kombu records messages in another way than expected; its own way is used, at some cost of speed")
    return {
        "broker_transport": f"{__name__}:{TRANSPORTS[address.kind].__name__}",
        "broker_url": address.bare_url,
    }
