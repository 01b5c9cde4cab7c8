"""Notes that nobody waits for: in their order, all of them, and over every connection that is lost between two."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
from redis import ConnectionPool
from redis.exceptions import RedisError

from chordage.workers import ledger as ledgers
from chordage.workers.ledger import Ledger

pytestmark = pytest.mark.redis


@pytest.fixture
def pool(redis_url):
    pool = ConnectionPool.from_url(redis_url, client_name="ledger", health_check_interval=1)
    yield pool
    pool.disconnect()


@pytest.fixture
def ledger(pool):
    return Ledger(lambda: pool)


def connections(redis):
    return [one for one in redis.client_list() if one["name"] == "ledger"]


def test_what_is_written_is_carried_out_in_its_order(ledger, redis):
    for n in range(300):
        ledger.write(("RPUSH", "notes", n), ("SET", "last", n))
    ledger.settle()

    assert redis.lrange("notes", 0, -1) == [str(n) for n in range(300)]
    assert redis.get("last") == "299"
    assert len(connections(redis)) == 1


def test_answers_do_not_heap_up(ledger):
    for n in range(1000):
        ledger.write(("RPUSH", "notes", n))
        assert len(ledger._unanswered) <= ledgers.UNANSWERED


def test_threads_share_it(ledger, redis):
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda _: [ledger.write(("INCR", "count"), ("INCR", "count")) for _ in range(100)], range(8)))
    ledger.settle()

    assert redis.get("count") == "1600"
    assert len(connections(redis)) == 1


def test_a_connection_that_was_closed_meanwhile_costs_nothing(ledger, redis):
    ledger.write(("RPUSH", "notes", 1))
    ledger.settle()
    redis.client_kill_filter(_id=connections(redis)[0]["id"])
    ledger.write(("RPUSH", "notes", 2))
    ledger.settle()

    assert redis.lrange("notes", 0, -1) == ["1", "2"]


def test_so_does_a_pool_whose_connections_were_all_closed(ledger, pool, redis):
    ledger.write(("RPUSH", "notes", 1))
    ledger.settle()
    pool.disconnect()
    ledger.write(("RPUSH", "notes", 2))
    ledger.settle()

    assert redis.lrange("notes", 0, -1) == ["1", "2"]


def test_a_note_that_is_refused_keeps_none_of_the_later_ones_back(ledger, redis):
    redis.set("text", "no list")
    ledger.write(("RPUSH", "text", 1))
    for n in range(3):
        ledger.write(("RPUSH", "notes", n))
    ledger.settle()

    assert redis.lrange("notes", 0, -1) == ["0", "1", "2"]
    assert len(connections(redis)) == 1, "a refusal is no reason to hang up"


def test_whoever_writes_is_told_that_redis_is_away():
    away = Ledger(lambda: ConnectionPool(port=1, socket_connect_timeout=1))

    with pytest.raises(RedisError):
        away.write(("RPUSH", "notes", 1))
    with pytest.raises(RedisError):
        away.settle()


def test_what_was_not_answered_on_one_connection_is_sent_again_on_the_next_and_in_its_order(ledger, redis):
    """The commands it is for may come twice."""
    ledger.write(("HSET", "notes", "a", 1))
    ledger.settle()
    with redis.pipeline() as busy:
        ledger.write(("HSET", "notes", "b", 1), ("HDEL", "notes", "a"))
        ledger._connection._sock.close()  # whether Redis has seen them, nobody knows
        busy.delete("notes").execute()
    ledger.write(("HSET", "notes", "a", 2), ("HDEL", "notes", "b"))
    ledger.settle()

    assert redis.hgetall("notes") == {"a": "2"}


def test_what_could_not_be_written_is_written_once_redis_is_there(pool, redis):
    away = ConnectionPool(port=1, socket_connect_timeout=1)
    pools = iter([away, away, pool])
    ledger = Ledger(lambda: next(pools))
    with pytest.raises(RedisError):
        ledger.write(("RPUSH", "notes", 1))
    ledger.write(("RPUSH", "notes", 2))
    ledger.settle()

    assert redis.lrange("notes", 0, -1) == ["1", "2"]


def test_whoever_is_interrupted_while_it_waits_leaves_no_answer_to_be_taken_for_another(ledger, redis, monkeypatch):
    ledger.write(("RPUSH", "notes", 1))
    ledger.settle()
    with monkeypatch.context() as patch:
        patch.setattr(ledger._connection, "read_response", interrupt)
        with pytest.raises(KeyboardInterrupt):
            ledger.write(*[("SET", "last", n) for n in range(100)])
    ledger.write(("RPUSH", "notes", 2))
    ledger.settle()

    assert (redis.lrange("notes", 0, -1), redis.get("last")) == (["1", "2"], "99")


def test_so_does_whoever_is_interrupted_while_it_sends_again(pool, redis, monkeypatch):
    """One connection is lost, on the next it is interrupted; the third takes all of it."""
    away = ConnectionPool(port=1, socket_connect_timeout=1)
    pools = iter([away, pool, pool])
    ledger = Ledger(lambda: next(pools))
    second = pool.get_connection(*ledgers._FOR_A_COMMAND)
    pool.release(second)
    with monkeypatch.context() as patch:
        patch.setattr(second, "send_packed_command", interrupt)
        with pytest.raises(KeyboardInterrupt):
            ledger.write(("RPUSH", "notes", 1))
    ledger.write(("RPUSH", "notes", 2))
    ledger.settle()

    assert redis.lrange("notes", 0, -1) == ["1", "2"]


def interrupt(*_, **__):
    raise KeyboardInterrupt


def test_a_health_check_takes_no_answer_for_its_own(ledger, redis):
    """The connection of a broker is checked when it was idle for long; the answers to notes are no PONG."""
    ledger.write(("RPUSH", "notes", 1))
    ledger._connection.next_health_check = 0
    ledger.write(("RPUSH", "notes", 2))
    ledger._connection.next_health_check = 0
    ledger.settle()

    assert redis.lrange("notes", 0, -1) == ["1", "2"]
