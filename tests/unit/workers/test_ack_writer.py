"""Records without waiting for replies: in order, all of them, over every connection that is lost in between."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
from redis import ConnectionPool
from redis.exceptions import RedisError

from chordage.workers import transport
from chordage.workers.transport import AckWriter

pytestmark = pytest.mark.redis


@pytest.fixture
def pool(redis_url):
    pool = ConnectionPool.from_url(redis_url, client_name="writer", health_check_interval=1)
    yield pool
    pool.disconnect()


@pytest.fixture
def writer(pool):
    return AckWriter(lambda: pool)


def connections(redis):
    return [one for one in redis.client_list() if one["name"] == "writer"]


def test_what_is_written_is_carried_out_in_its_order(writer, redis):
    for n in range(300):
        writer.write(("RPUSH", "notes", n), ("SET", "last", n))
    writer.flush()

    assert redis.lrange("notes", 0, -1) == [str(n) for n in range(300)]
    assert redis.get("last") == "299"
    assert len(connections(redis)) == 1


def test_answers_do_not_heap_up(writer):
    for n in range(1000):
        writer.write(("RPUSH", "notes", n))
        assert len(writer._unanswered) <= transport.UNANSWERED


def test_threads_share_it(writer, redis):
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda _: [writer.write(("INCR", "count"), ("INCR", "count")) for _ in range(100)], range(8)))
    writer.flush()

    assert redis.get("count") == "1600"
    assert len(connections(redis)) == 1


def test_a_connection_that_was_closed_meanwhile_costs_nothing(writer, redis):
    writer.write(("RPUSH", "notes", 1))
    writer.flush()
    redis.client_kill_filter(_id=connections(redis)[0]["id"])
    writer.write(("RPUSH", "notes", 2))
    writer.flush()

    assert redis.lrange("notes", 0, -1) == ["1", "2"]


def test_so_does_a_pool_whose_connections_were_all_closed(writer, pool, redis):
    writer.write(("RPUSH", "notes", 1))
    writer.flush()
    pool.disconnect()
    writer.write(("RPUSH", "notes", 2))
    writer.flush()

    assert redis.lrange("notes", 0, -1) == ["1", "2"]


def test_a_note_that_is_refused_keeps_none_of_the_later_ones_back(writer, redis):
    redis.set("text", "no list")
    writer.write(("RPUSH", "text", 1))
    for n in range(3):
        writer.write(("RPUSH", "notes", n))
    writer.flush()

    assert redis.lrange("notes", 0, -1) == ["0", "1", "2"]
    assert len(connections(redis)) == 1, "a refusal is no reason to hang up"


def test_writer_gets_an_error_while_redis_is_away():
    away = AckWriter(lambda: ConnectionPool(port=1, socket_connect_timeout=1))

    with pytest.raises(RedisError):
        away.write(("RPUSH", "notes", 1))
    with pytest.raises(RedisError):
        away.flush()


def test_what_was_not_answered_on_one_connection_is_sent_again_on_the_next_and_in_its_order(writer, redis):
    """The commands it is for may come twice."""
    writer.write(("HSET", "notes", "a", 1))
    writer.flush()
    with redis.pipeline() as busy:
        writer.write(("HSET", "notes", "b", 1), ("HDEL", "notes", "a"))
        writer._connection._sock.close()  # whether Redis has seen them is unknown
        busy.delete("notes").execute()
    writer.write(("HSET", "notes", "a", 2), ("HDEL", "notes", "b"))
    writer.flush()

    assert redis.hgetall("notes") == {"a": "2"}


def test_what_could_not_be_written_is_written_once_redis_is_there(pool, redis):
    away = ConnectionPool(port=1, socket_connect_timeout=1)
    pools = iter([away, away, pool])
    writer = AckWriter(lambda: next(pools))
    with pytest.raises(RedisError):
        writer.write(("RPUSH", "notes", 1))
    writer.write(("RPUSH", "notes", 2))
    writer.flush()

    assert redis.lrange("notes", 0, -1) == ["1", "2"]


def test_interrupted_wait_leaves_no_reply_that_another_command_would_read(writer, redis, monkeypatch):
    writer.write(("RPUSH", "notes", 1))
    writer.flush()
    with monkeypatch.context() as patch:
        patch.setattr(writer._connection, "read_response", interrupt)
        with pytest.raises(KeyboardInterrupt):
            writer.write(*[("SET", "last", n) for n in range(100)])
    writer.write(("RPUSH", "notes", 2))
    writer.flush()

    assert (redis.lrange("notes", 0, -1), redis.get("last")) == (["1", "2"], "99")


def test_interrupted_resend_leaves_no_reply_either(pool, redis, monkeypatch):
    """One connection is lost, on the next it is interrupted; the third takes all of it."""
    away = ConnectionPool(port=1, socket_connect_timeout=1)
    pools = iter([away, pool, pool])
    writer = AckWriter(lambda: next(pools))
    second = pool.get_connection(*transport._COMMAND_NAME)
    pool.release(second)
    with monkeypatch.context() as patch:
        patch.setattr(second, "send_packed_command", interrupt)
        with pytest.raises(KeyboardInterrupt):
            writer.write(("RPUSH", "notes", 1))
    writer.write(("RPUSH", "notes", 2))
    writer.flush()

    assert redis.lrange("notes", 0, -1) == ["1", "2"]


def interrupt(*_, **__):
    raise KeyboardInterrupt


def test_a_health_check_takes_no_answer_for_its_own(writer, redis):
    """The connection of a broker is checked when it was idle for long; the answers to notes are no PONG."""
    writer.write(("RPUSH", "notes", 1))
    writer._connection.next_health_check = 0
    writer.write(("RPUSH", "notes", 2))
    writer._connection.next_health_check = 0
    writer.flush()

    assert redis.lrange("notes", 0, -1) == ["1", "2"]
