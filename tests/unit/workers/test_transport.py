"""What a worker records in Redis of the messages it holds, so that none is lost with it: see workers/transport.py."""

from __future__ import annotations

import os
from contextlib import suppress

import pytest
import structlog
from celery import Celery
from kombu import Connection, Consumer, Queue
from kombu.transport import redis as stock
from kombu.utils.json import dumps, loads
from redis.exceptions import ConnectionError as RedisConnectionError

from chordage.config.redis_url import parse
from chordage.config.settings import Settings
from chordage.workers import transport
from chordage.workers.app import make_app
from chordage.workers.presence import worker_name
from support.waiting import until

OWN = "chordage.workers.transport:Transport"
PREFIX = "ours:"


def connect(redis_url, **options):
    return Connection(redis_url, transport=OWN, transport_options={"global_keyprefix": PREFIX, **options})


@pytest.fixture
def broker(redis_url):
    with connect(redis_url) as connection:
        yield connection


def send(broker, *bodies):
    with broker.Producer() as producer:
        for body in bodies:
            producer.publish(body, routing_key="work", exchange="", declare=[Queue("work")])


def taken(broker, number=1):
    queue = Queue("work")(broker.default_channel)
    return [queue.get() for _ in range(number)]


def settled(message):
    message.channel.qos.ack_writer.flush()


def noted(redis):
    return redis.hlen(f"{PREFIX}unacked"), redis.zcard(f"{PREFIX}unacked_index")


def waiting(redis):
    return redis.llen(f"{PREFIX}work")


@pytest.mark.redis
def test_message_in_flight_is_noted_until_it_is_acknowledged(broker, redis):
    send(broker, "a", "b")
    first, second = taken(broker, 2)
    settled(first)
    assert noted(redis) == (2, 2)

    first.ack()
    second.ack()
    settled(first)
    assert noted(redis) == (0, 0)
    assert waiting(redis) == 0


@pytest.mark.redis
def test_one_that_is_put_back_waits_again_and_is_noted_no_more(broker, redis):
    send(broker, "a", "b")
    (message,) = taken(broker)
    message.requeue()

    assert (waiting(redis), noted(redis)) == (2, (0, 0))
    _, again = taken(broker, 2)
    assert again.payload == "a"
    assert again.delivery_info["redelivered"]


@pytest.mark.redis
def test_one_that_is_refused_is_gone(broker, redis):
    send(broker, "a")
    (message,) = taken(broker)
    message.reject()
    settled(message)

    assert (waiting(redis), noted(redis)) == (0, (0, 0))


@pytest.mark.redis
def test_messages_in_flight_return_to_their_queue_when_a_channel_closes(broker, redis):
    send(broker, "a", "b", "c")
    done, *_ = taken(broker, 3)
    done.ack()
    broker.default_channel.close()

    assert (waiting(redis), noted(redis)) == (2, (0, 0))


@pytest.mark.redis
def test_what_a_dead_worker_held_is_found_by_its_note(redis_url, redis):
    dead, other = (connect(redis_url, visibility_timeout=0, unacked_restore_interval=1) for _ in range(2))
    with dead, other:
        send(dead, "a")
        (message,) = taken(dead)
        settled(message)
        other.default_channel.qos.restore_visible(interval=1)

        assert [found.payload for found in taken(other)] == ["a"]
        message.channel.qos._delivered.clear()  # it is dead: it puts nothing back


@pytest.mark.redis
def test_notes_continue_when_the_connections_of_a_channel_are_rebuilt(broker, redis):
    send(broker, "a", "b")
    (first,) = taken(broker)
    settled(first)
    redis.client_kill_filter(skipme=True, _type="normal")
    first.ack()
    (second,) = taken(broker)
    settled(second)
    assert noted(redis) == (1, 1)
    second.ack()
    settled(second)
    assert noted(redis) == (0, 0)


@pytest.mark.redis
def test_a_note_that_was_under_way_when_the_connections_were_closed_is_made_before_it_is_looked_for(broker, redis):
    """A channel that closes hangs up first, and then puts back what it holds."""
    send(broker, "a")
    (message,) = taken(broker)
    settled(message)
    redis.delete(f"{PREFIX}unacked", f"{PREFIX}unacked_index")  # as if it had never come
    index, unacked = f"{PREFIX}unacked_index", f"{PREFIX}unacked"
    qos, held = message.channel.qos, dumps([message._raw, "", "work"])
    qos.ack_writer.write(("ZADD", index, 1, message.delivery_tag), ("HSET", unacked, message.delivery_tag, held))
    qos.ack_writer._connection.disconnect()
    broker.default_channel.close()

    assert (waiting(redis), noted(redis)) == (1, (0, 0))


def test_our_processes_use_the_transport_and_kombu_stays_as_it_is():
    before = dict(vars(stock.QoS)), dict(vars(stock.Channel))
    app = make_app(Settings(redis_url="redis://127.0.0.1:1/0"))

    assert app.connection_for_write().transport_cls == OWN
    assert Celery("theirs", broker="redis://127.0.0.1:1/0").connection_for_write().transport_cls == "redis"
    assert (dict(vars(stock.QoS)), dict(vars(stock.Channel))) == before


def test_flower_gets_an_address_that_it_knows():
    app = make_app(Settings(redis_url="redis://127.0.0.1:1/0"), own_transport=False)

    assert app.connection_for_write().as_uri().startswith("redis://")


def test_the_installed_kombu_records_messages_as_we_do():
    assert transport.records_match(stock.QoS)


class OtherKey(stock.QoS):
    def append(self, message, delivery_tag):
        with self.pipe_or_acquire() as pipe:
            pipe.zadd("another", {delivery_tag: 1}).execute()


class OtherSignature(stock.QoS):
    def ack(self, delivery_tag, multiple):
        raise AssertionError


@pytest.mark.parametrize("kombu", [OtherKey, OtherSignature])
def test_a_kombu_that_records_messages_in_another_way_is_used_as_it_is(monkeypatch, kombu):
    assert transport.qos_for(kombu) is kombu
    assert transport.qos_for(stock.QoS) is transport.Transport.Channel.QoS is transport.QoS

    with structlog.testing.capture_logs() as lines:
        monkeypatch.setattr(transport.RedisChannel, "QoS", stock.QoS)
        assert transport.settings_of(parse("redis://h"))["broker_transport"] == OWN
    assert [line["log_level"] for line in lines] == ["warning"]


def test_channel_that_lost_its_connection_reports_it_without_an_attribute_error():
    channel = transport.RedisChannel.__new__(transport.RedisChannel)
    channel.connection = None

    with pytest.raises(RedisConnectionError, match="channel already closed"):
        channel._connparams()


def held_by(redis):
    """The worker that each message in flight names as its holder."""
    return sorted(loads(held)[0][transport.HOLDER] for held in redis.hvals(f"{PREFIX}unacked"))


def app_on(redis_url):
    app = Celery(set_as_current=False)
    app.conf.update(broker_url=redis_url, broker_transport=OWN, broker_transport_options={"global_keyprefix": PREFIX})
    return app


@pytest.mark.redis
def test_message_of_a_worker_that_is_gone_is_put_back_and_no_other(broker, redis, redis_url, monkeypatch):
    monkeypatch.setattr(transport, "worker_name", lambda pid: "gone")
    send(broker, "theirs", "waits")
    (theirs,) = taken(broker)
    settled(theirs)
    monkeypatch.setattr(transport, "worker_name", lambda pid: "alive")
    with connect(redis_url) as other:
        (ours,) = taken(other)
        settled(ours)
        assert held_by(redis) == ["alive", "gone"]

        with app_on(redis_url) as app:
            transport.put_back(app, redis, PREFIX, ["gone"])
            transport.put_back(app, redis, PREFIX, ["gone"])

        assert (held_by(redis), waiting(redis)) == (["alive"], 1)
        (again,) = taken(other)
        assert (again.payload, again.delivery_info.get("redelivered")) == ("theirs", True)
        settled(again)
        assert held_by(redis) == ["alive", "alive"]


@pytest.mark.redis
def test_worker_that_was_taken_for_gone_may_still_acknowledge_its_message(broker, redis, redis_url, monkeypatch):
    monkeypatch.setattr(transport, "worker_name", lambda pid: "gone")
    send(broker, "a")
    (message,) = taken(broker)
    settled(message)
    with app_on(redis_url) as app:
        transport.put_back(app, redis, PREFIX, ["gone"])

    message.ack()
    settled(message)

    assert (noted(redis), waiting(redis)) == ((0, 0), 1)


def consumer_of(broker, received):
    """Consumes as a worker does, with room for two messages."""
    channel = broker.channel()
    queues = [Queue("first"), Queue("work")]
    consumer = Consumer(channel, queues, on_message=received.append)
    consumer.qos(prefetch_count=2)
    consumer.consume()
    return channel


def drain(broker, done):
    def step():
        with suppress(TimeoutError):
            broker.drain_events(timeout=0.5)
        return done()

    assert done() or until(step, "the messages have come")


def asked(redis):
    """How often Redis was asked for messages that wait, and to wait for one."""
    stats = redis.info("commandstats")
    return tuple(stats.get(f"cmdstat_{name}", {"calls": 0})["calls"] for name in ("eval", "brpop"))


def full_consumer(broker, redis, received, bodies):
    """Two messages were delivered one by one. The next are taken by the script, because more may wait."""
    send(broker, *bodies)
    redis.config_resetstat()
    channel = consumer_of(broker, received)
    drain(broker, lambda: len(received) == 2)
    settled(received[0])
    return channel


def payloads(received):
    return [message.payload for message in received]


@pytest.mark.redis
def test_messages_that_wait_are_taken_and_recorded_in_one_command(broker, redis):
    received = []
    channel = full_consumer(broker, redis, received, "abcdef")
    before = asked(redis)
    for message in [*received]:
        message.ack()
    drain(broker, lambda: len(received) == 4)

    assert (before, asked(redis)) == ((0, 2), (1, 2))
    assert payloads(received) == [*"abcd"]
    assert (waiting(redis), noted(redis), held_by(redis)) == (2, (2, 2), [worker_name(os.getpid())] * 2)
    channel.close()
    assert (waiting(redis), noted(redis)) == (4, (0, 0))


@pytest.mark.redis
def test_records_of_acknowledged_messages_are_removed_when_the_next_are_taken(broker, redis):
    received = []
    full_consumer(broker, redis, received, "abcdef")
    for number in (2, 4):
        for message in received[number - 2 : number]:
            message.ack()
        drain(broker, lambda number=number: len(received) == number + 2)
    assert noted(redis) == (2, 2)

    for message in received[4:]:
        message.ack()
    drain(broker, lambda: noted(redis) == (0, 0))


@pytest.mark.redis
def test_acknowledgement_is_written_where_nothing_is_taken_next(broker, redis):
    """The worker is stopped, so no command follows that could carry it."""
    received = []
    channel = full_consumer(broker, redis, received, "abcd")
    for message in [*received]:
        message.ack()
    drain(broker, lambda: len(received) == 4)
    for queue in [*channel._tag_to_queue]:
        channel.basic_cancel(queue)
    received[2].ack()
    channel.connection.cycle.on_poll_start()
    settled(received[2])

    assert noted(redis) == (1, 1)


@pytest.mark.redis
@pytest.mark.parametrize("has_arrived", [True, False])
def test_what_was_taken_is_put_back_when_the_answer_is_lost(broker, redis, has_arrived):
    received = []
    channel = full_consumer(broker, redis, received, "abcdef")
    for message in [*received]:
        message.ack()
    cycle = channel.connection.cycle
    cycle.on_poll_start()  # the script is sent
    if has_arrived:
        assert channel.client.connection.can_read(timeout=60)
        assert (waiting(redis), noted(redis)) == (2, (2, 2))
    channel.client.connection.disconnect()
    for number in (4, 6):
        drain(broker, lambda number=number: len(received) == number)
        for message in received[number - 2 :]:
            message.ack()

    assert payloads(received) == [*"abcdef"]
    channel.close()
    assert (waiting(redis), noted(redis)) == (0, (0, 0))


@pytest.mark.redis
def test_what_was_taken_is_put_back_when_redis_is_away_until_the_channel_has_closed(
    broker, redis, redis_url, monkeypatch
):
    """As where the network breaks: the worker lives on, and so nobody else puts back what it holds."""
    channel = full_consumer(broker, redis, received := [], "abcd")
    for message in [*received]:
        message.ack()
    channel.connection.cycle.on_poll_start()
    assert until(lambda: waiting(redis) == 0, "the script has taken both")

    def away(*_, **__):
        raise RedisConnectionError("away")

    with monkeypatch.context() as patched:
        patched.setattr(channel.qos, "restore_by_tag", away)
        channel.client.connection.disconnect()
        for _ in range(2):  # as Celery does
            with suppress(RedisConnectionError):
                channel.close()
    assert waiting(redis) == 0

    with connect(redis_url) as again:
        consumer_of(again, received)
        drain(again, lambda: len(received) == 4)
        assert payloads(received) == [*"abcd"]


@pytest.mark.redis
def test_what_was_taken_while_the_worker_stops_returns_to_its_place(broker, redis):
    received = []
    channel = full_consumer(broker, redis, received, "abcdef")
    for message in [*received]:
        message.ack()
    channel.connection.cycle.on_poll_start()  # the script is sent
    for tag in [*channel._tag_to_queue]:
        channel.basic_cancel(tag)
    drain(broker, lambda: waiting(redis) == 4)

    assert noted(redis) == (0, 0)
    assert [message.payload for message in taken(broker, 4)] == [*"cdef"]


@pytest.mark.redis
def test_message_that_cannot_be_read_holds_up_no_other(broker, redis):
    received = []
    full_consumer(broker, redis, received, "ab")
    for text in ("{not JSON}", '{"body": "no properties"}'):
        redis.lpush(f"{PREFIX}work", text)
    send(broker, "c")
    for message in [*received]:
        message.ack()

    def all_have_come():
        with suppress(TimeoutError, ValueError, KeyError):
            broker.drain_events(timeout=0.2)
        return len(received) == 3

    until(all_have_come, "the message behind them comes")
    assert payloads(received) == [*"abc"]
    received[-1].ack()
    drain(broker, lambda: (waiting(redis), noted(redis)) == (0, (0, 0)))


@pytest.mark.redis
@pytest.mark.parametrize("text", ["{not JSON}", '{"a": 1}, {"b": 2}', f'{{"a": {"[" * 100_000}1{"]" * 100_000}}}'])
def test_record_that_cannot_be_read_stops_no_worker_that_puts_back_those_of_another(broker, redis, redis_url, text):
    """A worker was killed when the script had taken a message that only looks like one."""
    received = []
    channel = full_consumer(broker, redis, received, "ab")
    redis.lpush(f"{PREFIX}work", text)
    send(broker, "c")
    for message in [*received]:
        message.ack()
    channel.connection.cycle.on_poll_start()
    assert until(lambda: waiting(redis) == 0, "the script has taken both")
    gone = worker_name(os.getpid())
    with app_on(redis_url) as app:
        transport.put_back(app, redis, PREFIX, [gone])
    with connect(redis_url, visibility_timeout=0) as other:
        other.default_channel.qos.restore_visible(interval=1)
        other.default_channel.qos.ack_writer.flush()

    assert (waiting(redis), noted(redis)) == (1, (0, 0))
    with suppress(*transport.NO_JSON):
        broker.drain_events(timeout=60)  # the answer, which kombu could not read either


@pytest.mark.redis
def test_message_that_can_be_read_is_not_dropped_for_another_error(broker, redis, monkeypatch):
    """As of a socket that another thread has closed."""
    send(broker, "a")
    (message,) = taken(broker)
    settled(message)

    def fails(*_, **__):
        raise ValueError("file descriptor cannot be a negative integer (-1)")

    with monkeypatch.context() as patched:
        patched.setattr(stock.QoS, "restore_by_tag", fails)
        with pytest.raises(ValueError, match="negative integer"):
            message.requeue()
    settled(message)

    assert (waiting(redis), noted(redis)) == (0, (1, 1))


@pytest.mark.redis
def test_what_is_no_message_is_left_to_kombu(broker, redis):
    full_consumer(broker, redis, received := [], "ab")
    redis.lpush(f"{PREFIX}work", "17")
    for message in [*received]:
        message.ack()
    with pytest.raises(TypeError):
        drain(broker, lambda: False)

    assert asked(redis) == (1, 3)
    assert noted(redis)[0] == waiting(redis) == 0


@pytest.mark.redis
def test_queues_come_in_their_order_and_then_by_priority(broker, redis):
    full_consumer(broker, redis, received := [], "ab")
    with broker.Producer() as producer:
        for priority, queue in ((3, "first"), (0, "work"), (0, "first"), (3, "work")):
            producer.publish(f"{queue} {priority}", routing_key=queue, exchange="", priority=priority)
    for number in (2, 4):
        for message in received[number - 2 : number]:
            message.ack()
        drain(broker, lambda number=number: len(received) == number + 2)

    assert payloads(received[2:]) == ["first 0", "work 0", "first 3", "work 3"]
    received[-1].requeue()
    received[-2].requeue()
    settled(received[-1])
    assert (redis.llen(f"{PREFIX}first\x06\x163"), redis.llen(f"{PREFIX}work\x06\x163"), noted(redis)) == (1, 1, (0, 0))


@pytest.mark.redis
def test_redis_that_refuses_the_script_is_asked_for_one_message_at_a_time(broker, redis, monkeypatch):
    monkeypatch.setattr(transport, "TAKE", "return redis.error_reply('no scripts here')")
    full_consumer(broker, redis, received := [], "abcdef")
    with structlog.testing.capture_logs() as lines:
        for number in (2, 4):
            for message in received[number - 2 : number]:
                message.ack()
            drain(broker, lambda number=number: len(received) == number + 2)

    assert payloads(received) == [*"abcdef"]
    assert asked(redis) == (1, 6)
    assert [line["log_level"] for line in lines] == ["warning"]
    settled(received[-1])
    assert noted(redis) == (2, 2)


class OtherPop(stock.Channel):
    def _brpop_start(self, timeout=1):
        self.client.connection.send_command("BLMPOP", timeout)


class OtherPoller(stock.MultiChannelPoller):
    def _register_BRPOP(self, channel):
        channel.ask()


def test_a_kombu_that_takes_messages_in_another_way_is_seen():
    assert transport.RedisChannel.takes_in_own_way
    assert not transport.pops_match(OtherPop, stock.MultiChannelPoller)
    assert not transport.pops_match(stock.Channel, OtherPoller)


@pytest.mark.redis
def test_a_kombu_that_takes_messages_in_another_way_is_used_as_it_is(broker, redis, monkeypatch):
    monkeypatch.setattr(transport.RedisChannel, "takes_in_own_way", False)
    full_consumer(broker, redis, received := [], "abcd")
    for message in [*received]:
        message.ack()
    drain(broker, lambda: len(received) == 4)

    assert asked(redis) == (0, 4)
