"""What a worker notes in Redis of the messages it holds, so that none is lost with it: see workers/celery_fixes.py."""

from __future__ import annotations

import pytest
from kombu import Connection, Queue
from kombu.transport import redis as transport

from chordage.workers import celery_fixes

pytestmark = pytest.mark.redis

PREFIX = "ours:"


@pytest.fixture(autouse=True)
def patched(monkeypatch):
    for name in ("__init__", "append", "ack", "reject", "restore_unacked", "restore_by_tag"):
        monkeypatch.setattr(transport.QoS, name, getattr(transport.QoS, name))
    celery_fixes.note_without_waiting()
    celery_fixes.note_without_waiting()  # a second app changes nothing


@pytest.fixture
def broker(redis_url):
    with Connection(redis_url, transport_options={"global_keyprefix": PREFIX}) as connection:
        yield connection


def send(broker, *bodies):
    with broker.Producer() as producer:
        for body in bodies:
            producer.publish(body, routing_key="work", exchange="", declare=[Queue("work")])


def taken(broker, number=1):
    queue = Queue("work")(broker.default_channel)
    return [queue.get() for _ in range(number)]


def settled(message):
    message.channel.qos.ledger.settle()


def noted(redis):
    return redis.hlen(f"{PREFIX}unacked"), redis.zcard(f"{PREFIX}unacked_index")


def waiting(redis):
    return redis.llen(f"{PREFIX}work")


def test_a_message_in_hand_is_noted_until_it_is_acknowledged(broker, redis):
    send(broker, "a", "b")
    first, second = taken(broker, 2)
    settled(first)
    assert noted(redis) == (2, 2)

    first.ack()
    second.ack()
    settled(first)
    assert noted(redis) == (0, 0)
    assert waiting(redis) == 0


def test_one_that_is_put_back_waits_again_and_is_noted_no_more(broker, redis):
    send(broker, "a", "b")
    (message,) = taken(broker)
    message.requeue()

    assert (waiting(redis), noted(redis)) == (2, (0, 0))
    _, again = taken(broker, 2)
    assert again.payload == "a"
    assert again.delivery_info["redelivered"]


def test_one_that_is_refused_is_gone(broker, redis):
    send(broker, "a")
    (message,) = taken(broker)
    message.reject()
    settled(message)

    assert (waiting(redis), noted(redis)) == (0, (0, 0))


def test_what_is_in_hand_when_a_channel_closes_waits_in_its_queue_again(broker, redis):
    send(broker, "a", "b", "c")
    done, *_ = taken(broker, 3)
    done.ack()
    broker.default_channel.close()

    assert (waiting(redis), noted(redis)) == (2, (0, 0))


def test_what_a_dead_worker_held_is_found_by_its_note(redis_url, redis):
    options = {"global_keyprefix": PREFIX, "visibility_timeout": 0, "unacked_restore_interval": 1}
    dead, other = (Connection(redis_url, transport_options=options) for _ in range(2))
    with dead, other:
        send(dead, "a")
        (message,) = taken(dead)
        settled(message)
        other.default_channel.qos.restore_visible(interval=1)

        assert [found.payload for found in taken(other)] == ["a"]
        message.channel.qos._delivered.clear()  # it is dead: it puts nothing back


def test_notes_go_on_when_the_connections_of_a_channel_are_made_anew(broker, redis):
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


def test_a_note_that_was_under_way_when_the_connections_were_closed_is_made_before_it_is_looked_for(broker, redis):
    """A channel that closes hangs up first, and then puts back what it holds."""
    send(broker, "a")
    (message,) = taken(broker)
    settled(message)
    redis.delete(f"{PREFIX}unacked", f"{PREFIX}unacked_index")  # as if it had never come
    index, unacked = f"{PREFIX}unacked_index", f"{PREFIX}unacked"
    qos, held = message.channel.qos, transport.dumps([message._raw, "", "work"])
    qos.ledger.write(("ZADD", index, 1, message.delivery_tag), ("HSET", unacked, message.delivery_tag, held))
    qos.ledger._connection.disconnect()
    broker.default_channel.close()

    assert (waiting(redis), noted(redis)) == (1, (0, 0))
