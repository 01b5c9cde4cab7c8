"""The Redis transport of our processes: kombu's, with cheaper ways to take messages and to record which a worker holds.

Kombu waits for Redis at each record. Here a channel writes its records to one connection, in order, and reads the
replies when it writes the next. Before it puts a message back, it waits until all its records are written (ADR 36).
Each record names the worker that holds the message, so that it is put back as soon as that worker is gone (ADR 57).

While messages wait, one script takes as many as there is room for, records them, and removes the records of those that
were acknowledged since (ADR 63). Where none wait, BRPOP waits for one, as with kombu; the command is built once.
With a kombu that records or takes messages in another way than `records_match` and `pops_match` expect, its own ways
are used.

Not promised: a worker that is killed between the arrival of a message for which it had waited, and its record, loses
that message, as with kombu.
"""

from __future__ import annotations

import itertools
import os
import time
import uuid
from collections import deque
from collections.abc import Collection, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from queue import Empty
from types import SimpleNamespace
from typing import Any

import redis
import structlog
from celery import Celery
from kombu.transport import redis as stock
from kombu.transport import virtual
from kombu.utils.encoding import bytes_to_str
from kombu.utils.json import dumps, loads
from kombu.utils.scheduling import cycle_by_name
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisError, ResponseError

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
StockPoller: Any = stock.MultiChannelPoller

HOLDER = "holder"  # in a message that a worker holds: the worker
NO_HOLDER: Mapping[str, str] = {}
NO_JSON = (ValueError, RecursionError)  # what reading raises; the second, where lists lie in each other too deep
# KEYS: the queues in their order, for each step of priority; the index of the messages in flight; these messages.
# ARGV: what ends a record but for its queue; the names of the queues, as JSON; tags of records to remove, separated by
# spaces; how many messages to take; the time; what the tags of their records begin with.
# A message is removed from its queue last: whatever fails before leaves it there. What is no JSON object stays.
TAKE = """
local at, queues = #ARGV - 3, #ARGV - 5
local index, held = KEYS[#KEYS - 1], KEYS[#KEYS]
for tag in string.gmatch(ARGV[at], '%S+') do
  redis.call('HDEL', held, tag)
  redis.call('ZREM', index, tag)
end
local taken, number, i = {}, 0, 1
while i <= #KEYS - 2 and number < tonumber(ARGV[at + 1]) do
  local message = redis.call('LINDEX', KEYS[i], -1)
  if not message then
    i = i + 1
  elseif not string.find(message, '^{.+}$') then
    break
  else
    local tag = ARGV[at + 3] .. number
    local record = '[' .. string.sub(message, 1, -2) .. ARGV[1] .. ARGV[2 + (i - 1) % queues] .. ']'
    redis.call('HSET', held, tag, record)
    redis.call('ZADD', index, ARGV[at + 2], tag)
    redis.call('RPOP', KEYS[i])
    number = number + 1
    taken[2 * number - 1], taken[2 * number] = KEYS[i], message
  end
end
return taken
"""
IN_DOUBT: deque[str] = deque()  # tags that scripts of closed channels may have used; for the next one of this process
MOST = 16  # messages that are taken at once
REFUSED_FOR = 60.0  # seconds without the script after Redis has refused it


class QoS(StockQoS):  # type: ignore[misc]
    """Records what is delivered and acknowledged without waiting for Redis."""

    def __init__(self, channel: Any, *args: Any, **options: Any) -> None:
        super().__init__(channel, *args, **options)
        self._holder = {HOLDER: worker_name(os.getpid())}
        self.ack_writer = CommandWriter(lambda: channel.pool)
        self.recorded: set[str] = set()  # tags that Redis has recorded itself
        self.acknowledged: deque[str] = deque()  # of those: records to remove with the next messages that are taken
        self.taking: list[str] = []  # tags that the script may have used, until it is known
        self._removing: list[str] = []  # tags whose records that script removes

    def append(self, message: Any, delivery_tag: str) -> None:
        if delivery_tag not in self.recorded:
            self.ack_writer.write(*_delivered(*self.keys, message, delivery_tag, time.time(), holder=self._holder))
        virtual.QoS.append(self, message, delivery_tag)

    def ack(self, delivery_tag: str) -> None:
        if delivery_tag in self.recorded:
            self.recorded.discard(delivery_tag)
            self.acknowledged.append(delivery_tag)
        else:
            self.ack_writer.write(*_acknowledged(*self.keys, delivery_tag))
        virtual.QoS.ack(self, delivery_tag)

    def write_acknowledged(self) -> None:
        if tags := _drained(self.acknowledged):
            self.ack_writer.write(*_acknowledged(*self.keys, *tags))

    def begin_to_take(self, tags: list[str]) -> list[str]:
        """The script is about to record messages under `tags`. The tags whose records it removes."""
        self.taking, self._removing = tags, _drained(self.acknowledged)
        return self._removing

    def taken(self) -> None:
        """Redis has answered, to whichever command."""
        self.taking, self._removing = [], []

    def resolve_doubt(self) -> None:
        """Where the answer of the script was lost: put back what it took, and remove what it was to remove."""
        if not self.taking:
            return
        self.acknowledged.extend(self._removing)
        self.write_acknowledged()
        for tag in reversed(self.taking):  # each to the front of its queue: the first is taken next
            self.restore_by_tag(tag)
        self.taken()

    def put_back(self, tags: list[str]) -> None:
        """What the script has taken and is not delivered. Where this fails, it is in doubt."""
        self.taking = tags
        self.resolve_doubt()

    def forget_unless_delivered(self, tag: str) -> None:
        """A message that kombu could not read is gone, as with kombu; one that needs no acknowledgement is done."""
        if tag in self.recorded and tag not in self._delivered:
            self.recorded.discard(tag)
            self.acknowledged.append(tag)

    def end_of_record(self) -> str:
        """Behind the message and before the name of its queue, to which it is put back by the default exchange."""
        return f', {dumps(self._holder)[1:]}, "", '

    def reject(self, delivery_tag: str, requeue: bool = False) -> None:
        if not requeue:
            self.ack(delivery_tag)
            return
        self.restore_by_tag(delivery_tag, leftmost=True)
        self.recorded.discard(delivery_tag)
        virtual.QoS.ack(self, delivery_tag)

    def restore_unacked_once(self, *args: Any, **options: Any) -> Any:
        """The channel ends."""
        try:
            self.resolve_doubt()
            self.write_acknowledged()
            self.ack_writer.flush()
        except (RedisError, OSError) as error:
            log.info("messages that are done may be delivered again", error=str(error))
            IN_DOUBT.extend(self.taking)
        return super().restore_unacked_once(*args, **options)

    def restore_unacked(self, *args: Any, **options: Any) -> Any:
        self.ack_writer.flush()
        return super().restore_unacked(*args, **options)

    def restore_by_tag(self, tag: str, *args: Any, **options: Any) -> None:
        """The script records what looks like a message. What is none is dropped, where kombu would stop each worker."""
        self.ack_writer.flush()
        try:
            super().restore_by_tag(tag, *args, **options)
        except NO_JSON as error:
            with self.channel.conn_or_acquire() as client:
                record = client.hget(self.unacked_key, tag)
            if record is None or _read(record):
                raise
            log.warning("a message cannot be read; it is dropped", error=repr(error))
            self.ack_writer.write(*_acknowledged(*self.keys, bytes_to_str(tag)))

    @property
    def keys(self) -> tuple[str, str]:
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


def _acknowledged(index: str, unacked: str, *tags: str) -> tuple[Command, Command]:
    return ("HDEL", unacked, *tags), ("ZREM", index, *tags)


def _drained(tags: deque[str]) -> list[str]:
    """Threads of the pool may add to them meanwhile."""
    return [tags.popleft() for _ in range(len(tags))]


def put_back(app: Celery, client: redis.Redis, prefix: str, gone: Collection[str]) -> None:
    """Put the messages that these workers held back into their queues, where each is the next to be delivered. A worker
    that is gone returns none of its own, and kombu would wait for the visibility timeout.
    """
    held = client.hscan_iter(f"{prefix}{StockChannel.unacked_key}")
    records = ((bytes_to_str(tag), _read(record)) for tag, record in held)
    tags = [tag for tag, record in records if record is None or record[0].get(HOLDER) in gone]
    if not tags:
        return
    with app.connection_for_write() as connection:
        channel: Any = connection.default_channel
        for tag in tags:
            channel.qos.restore_by_tag(tag)
    log.info("messages of workers that are gone were put back", messages=len(tags))


def _read(record: bytes) -> list[Any] | None:
    """The message, its exchange and its queue. None: it cannot be read."""
    try:
        message, exchange, queue = loads(bytes_to_str(record))
    except NO_JSON:
        return None
    return [message, exchange, queue]


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


def pops_match(channel_class: Any, poller_class: Any) -> bool:
    """Whether kombu asks for messages, and delivers one, just as RedisChannel does when it waits for one."""
    asked: list[Command] = []
    delivered: list[tuple[Any, str]] = []
    reply = b"second", b'{"body": "b"}'
    connection = SimpleNamespace(send_command=lambda *command: asked.append(command))
    channel = channel_class.__new__(channel_class)
    channel.__dict__ |= {
        "client": SimpleNamespace(connection=connection, parse_response=lambda *_, **__: reply),
        "connection": SimpleNamespace(_deliver=lambda *message: delivered.append(message)),
        "connection_errors": (),
        "active_fanout_queues": set(),
        "brpop_timeout": 1,
        "_active_queues": ["first", "second"],
        "_queue_cycle": cycle_by_name("priority")(["first", "second"]),
    }
    poller = poller_class.__new__(poller_class)
    poller._client_registered = lambda *_: True  # noqa: SLF001 - as for all that is private here: kombu's own way is tried
    try:
        poller._register_BRPOP(channel)  # noqa: SLF001
        waits = channel._in_poll is connection  # noqa: SLF001
        channel._brpop_read()  # noqa: SLF001
        queues = [channel._q_for_pri(queue, step) for step in channel.priority_steps for queue in ("first", "second")]  # noqa: SLF001
    except Exception as error:
        log.debug("kombu's way to take messages cannot be checked", error=repr(error))
        return False
    ours = [("BRPOP", *queues, 1)], [({"body": "b"}, "second")], True, None
    return ours == (asked, delivered, waits, channel._in_poll)  # noqa: SLF001


@dataclass(frozen=True, slots=True)
class Pops:
    """The commands that take messages from some queues, as bytes, built once."""

    wait: bytes
    take: bytes  # without its last four arguments
    queue_of: Mapping[bytes, str]  # by key


class RedisChannel(StockChannel):  # type: ignore[misc]
    QoS = qos_for(StockQoS)
    takes_in_own_way = QoS is not StockQoS and pops_match(StockChannel, StockPoller)

    def __init__(self, *args: Any, **options: Any) -> None:
        self._pops: dict[tuple[Any, ...], Pops] = {}
        self._messages_wait = False  # in its queues, as far as is known
        self._asked: Pops | None = None
        self._script_from = 0.0  # when the script may be tried
        self._tags = (f"{uuid.uuid4().hex}:{number:x}:" for number in itertools.count())
        super().__init__(*args, **options)

    def _brpop_start(self, timeout: int | None = None) -> None:
        """Ask for messages. Kombu calls this where there is room for one and none was asked for."""
        if not self.takes_in_own_way or not isinstance(self.qos, QoS):
            super()._brpop_start(*(() if timeout is None else (timeout,)))
            return
        queues = tuple(self._queue_cycle.consume(len(self.active_queues)))
        if not queues:
            return
        self.qos.taking = [*_drained(IN_DOUBT), *self.qos.taking]
        self.qos.resolve_doubt()
        connection = self.client.connection
        seconds = getattr(self, "brpop_timeout", 1) if timeout is None else timeout
        self._asked = pops = self._pops.get((queues, seconds)) or self._build(queues, seconds, connection)
        self._in_poll = connection
        self._brpop_sent_at = time.monotonic()
        takes = self._messages_wait and self._brpop_sent_at >= self._script_from
        connection.send_packed_command([self._take(pops) if takes else pops.wait])

    def _build(self, queues: tuple[str, ...], seconds: int, connection: Any) -> Pops:
        steps = [(self._q_for_pri(queue, step), queue) for step in self.priority_steps for queue in queues]
        queue_of = {f"{self.global_keyprefix}{key}": queue for key, queue in steps}
        fixed = (self.qos.end_of_record(), *(dumps(queue) for queue in queues))
        take = ("EVAL", TAKE, len(queue_of) + 2, *queue_of, *self.qos.keys, *fixed, "", "", "", "")
        pops = Pops(
            wait=b"".join(connection.pack_command("BRPOP", *queue_of, seconds or 0)),
            take=b"".join(connection.pack_command(*take)).removesuffix(_arguments("", "", "", "")),
            queue_of={key.encode(): queue for key, queue in queue_of.items()},
        )
        self._pops[queues, seconds] = pops
        return pops

    def _take(self, pops: Pops) -> bytes:
        tag, most = next(self._tags), min(self.qos.can_consume_max_estimate() or 1, MOST)
        removed = self.qos.begin_to_take([f"{tag}{number}" for number in range(most)])
        return pops.take + _arguments(" ".join(removed), str(most), repr(time.time()), tag)

    def _brpop_read(self, **options: Any) -> bool:
        """Deliver what has come."""
        if self._asked is None:
            return bool(super()._brpop_read(**options))
        connection, pops, taking = self.client.connection, self._asked, self.qos.taking
        try:
            reply = self._reply_to_pop(connection)
        finally:
            self._in_poll = None
            getattr(self, "_flush_brpop_reauth", bool)()
        self._messages_wait = bool(reply and taking)
        if not reply:
            raise Empty
        messages = [(pops.queue_of[key], text) for key, text in zip(reply[::2], reply[1::2], strict=True)]
        self._deliver_each(messages, [*taking] or [None])
        self._messages_wait = self._messages_wait or not self.qos.can_consume()
        return True

    def _reply_to_pop(self, connection: Any) -> Any:
        try:
            reply = connection.read_response()
        except self.connection_errors:
            connection.disconnect()
            raise
        except ResponseError as error:
            if not self.qos.taking:
                raise
            log.warning("redis refuses the script that takes messages; they are taken one by one", error=str(error))
            self._script_from = time.monotonic() + REFUSED_FOR
            return None
        self.qos.taken()
        return reply

    def _deliver_each(self, messages: Sequence[tuple[str, bytes]], tags: Sequence[str | None]) -> None:
        """`tags`: under which Redis has recorded them. One that cannot be delivered holds up no other. Where the worker
        has begun to shut down meanwhile, they go back.
        """
        errors, unwanted = [], []
        for (queue, text), tag in zip(messages, tags, strict=False):
            self._queue_cycle.rotate(queue)
            if tag is not None and queue not in self.connection._callbacks:  # noqa: SLF001 - kombu's list of consumers
                unwanted.append(tag)
                continue
            try:
                self._deliver_one(queue, text, tag)
            except Exception as error:
                errors.append(error)
        self.qos.put_back(unwanted)
        if errors:
            raise errors[0]

    def _deliver_one(self, queue: str, text: bytes, tag: str | None) -> None:
        if tag is None:
            self.connection._deliver(loads(bytes_to_str(text)), queue)  # noqa: SLF001 - as kombu does
            return
        self.qos.recorded.add(tag)
        try:
            message = loads(bytes_to_str(text))
            message["properties"]["delivery_tag"] = tag
            self.connection._deliver(message, queue)  # noqa: SLF001
        finally:
            self.qos.forget_unless_delivered(tag)

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


def _arguments(*texts: str) -> bytes:
    """As they are in a command. They are ASCII."""
    return b"".join(b"$%d\r\n%b\r\n" % (len(text), text.encode("ascii")) for text in texts)


class SentinelChannel(RedisChannel, StockSentinelChannel):  # type: ignore[misc]
    """For a server behind sentinels."""


class RedisPoller(StockPoller):  # type: ignore[misc]
    """Writes what was acknowledged, and was sent with no script, before kombu waits."""

    def on_poll_start(self) -> None:
        """Of the event loop of a worker."""
        super().on_poll_start()
        self._write_acknowledged()

    def get(self, *args: Any, **options: Any) -> Any:
        """Without an event loop. Kombu before 5.7 waits in it without on_poll_start."""
        self._write_acknowledged()
        return super().get(*args, **options)

    def _write_acknowledged(self) -> None:
        for channel in self._channels:
            qos = channel._qos  # noqa: SLF001 - `qos` would make one
            if isinstance(qos, QoS):
                try:
                    qos.write_acknowledged()
                except (RedisError, OSError) as error:
                    log.info("acknowledgements are written when Redis can be reached", error=str(error))


class OwnPoller:
    """What our transports add to kombu's."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.cycle = RedisPoller()


class Transport(OwnPoller, StockTransport):  # type: ignore[misc]
    Channel = RedisChannel


class SocketTransport(Transport):
    can_parse_url = True  # its channel reads the path of the socket from the URL


class SentinelTransport(OwnPoller, StockSentinelTransport):  # type: ignore[misc]
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
