"""Commands past the client of the library: none is lost with a connection but hints, which may be."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from redis import Connection, ConnectionPool, Redis
from redis.backoff import NoBackoff
from redis.exceptions import RedisError, ResponseError
from redis.retry import Retry
from structlog.testing import capture_logs

from chordage.orchestrator.gateways import redis_direct
from chordage.orchestrator.gateways.redis_direct import CommandWriter, RedisHints, RedisTrips
from support.waiting import until

pytestmark = pytest.mark.redis


@pytest.fixture
def redis(redis_url):
    with Redis.from_url(redis_url, decode_responses=True) as client:
        yield client


@pytest.fixture
def pool(redis_url):
    pool = ConnectionPool.from_url(redis_url, client_name="writer", health_check_interval=1)
    yield pool
    pool.disconnect()


@pytest.fixture
def writer(pool):
    return CommandWriter(lambda: pool)


@pytest.mark.parametrize(
    "command",
    [("SET", "clé", "ü\r\n", "PX", 5), ("PUBLISH", b"\x00\xff", ""), ("ZADD", "key", 1783.25, "x" * 10_000)],
    ids=lambda command: command[0],
)
def test_commands_go_over_the_wire_as_the_client_writes_them(command):
    assert b"".join(redis_direct.packed([command, command])) == b"".join(Connection().pack_commands([command, command]))


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
        assert len(writer._unanswered) <= redis_direct.UNANSWERED


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
    away = CommandWriter(lambda: ConnectionPool(port=1, socket_connect_timeout=1))

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
    writer = CommandWriter(lambda: next(pools))
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
    writer = CommandWriter(lambda: next(pools))
    second = pool.get_connection(*redis_direct._COMMAND_NAME)
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


@pytest.fixture
def hints(pool):
    return RedisHints(Redis(connection_pool=pool))


def test_hints_that_belong_together_are_one_write(hints, redis):
    hints.write(("RPUSH", "notes", 0))
    hints.flush()
    hints.write(("RPUSH", "notes", 1), more=True)
    assert redis.lrange("notes", 0, -1) == ["0"]
    hints.write(("RPUSH", "notes", 2))
    hints.flush()

    assert redis.lrange("notes", 0, -1) == ["0", "1", "2"]
    assert len(connections(redis)) == 1


def test_threads_share_the_connection_of_hints(hints, redis):
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda _: [hints.write(("INCR", "count")) for _ in range(100)], range(8)))
    hints.flush()

    assert redis.get("count") == "800"
    assert len(connections(redis)) == 1


def test_a_hint_survives_the_loss_of_an_idle_connection(hints, redis, monkeypatch):
    monkeypatch.setattr(redis_direct, "IDLE", 0.0)
    hints.write(("RPUSH", "notes", 1))
    hints.flush()
    redis.client_kill_filter(_id=connections(redis)[0]["id"])
    hints.write(("RPUSH", "notes", 2))

    until(lambda: redis.lrange("notes", 0, -1) == ["1", "2"], "it was sent over another connection")


def test_hints_are_dropped_while_redis_is_away_and_that_is_logged_once(redis_url, redis, monkeypatch):
    client = Redis(port=1, retry=Retry(NoBackoff(), 0))
    hints = RedisHints(client)
    with capture_logs() as logs:
        for n in range(1000):
            hints.write(("RPUSH", "notes", n))
        monkeypatch.setattr(redis_direct, "PAUSE", 0.0)
        hints._resume_at = 0.0
        hints.write(("RPUSH", "notes", 1000))
    assert [log["log_level"] for log in logs if log["log_level"] == "warning"] == ["warning"]

    client.connection_pool = ConnectionPool.from_url(redis_url)
    hints.write(("RPUSH", "notes", "later"))
    hints.flush()
    assert redis.lrange("notes", 0, -1) == ["later"]


def test_hints_wait_for_a_redis_that_does_not_answer_once_and_not_long():
    """The backlog of the socket takes the connection, and no process accepts it."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        hints = RedisHints(
            Redis(port=port, socket_timeout=0.2, socket_connect_timeout=0.2, retry=Retry(NoBackoff(), 0))
        )
        begun = time.monotonic()
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(lambda n: hints.write(("RPUSH", "notes", n)), range(100)))

    assert time.monotonic() - begun < 20.0  # one connects, twice; a hundred times it would take forty seconds


PROGRAM = """
import os, sys
from redis import Redis
from chordage.orchestrator.gateways.redis_direct import RedisHints, RedisTrips

redis = Redis.from_url(sys.argv[1], client_name="writer")
hints, trips = RedisHints(redis), RedisTrips(redis)
{program}
"""


def run(redis_url, program):
    subprocess.run([sys.executable, "-c", PROGRAM.format(program=program), redis_url], check=True, timeout=120)


def test_process_that_ends_has_sent_all_its_hints(redis_url, redis):
    """A reply is unread and Redis is busy: to close the connection now would throw away what is still to be sent."""
    busy = "local n = 0 while n < 3e7 do n = n + 1 end"
    run(
        redis_url,
        f"""
hints.write(("INCR", "count"))
trips.ask(("PING",))
hints.write(("EVAL", "{busy}", 0), ("SET", "big", "x" * 1_000_000), ("INCR", "count"))
""",
    )

    until(lambda: redis.get("count") == "2", "the last has arrived")
    assert redis.strlen("big") == 1_000_000


def test_a_child_of_a_fork_has_connections_of_its_own(redis_url, redis):
    """Also where another thread of the parent was writing when it forked."""
    child = (
        'hints.write(("INCR", "count")); hints.flush(); assert trips.ask(("GET", "mine")) == [b"1"]; '
        'assert sum(c["name"] == "writer" for c in redis.client_list()) >= 4; os._exit(0)'
    )
    program = f"""
hints.write(("INCR", "count"), ("SET", "mine", 1))
trips.ask(("INCR", "count"))
hints._lock.acquire()
pid = os.fork()
if pid == 0:
    {child}
assert os.waitpid(pid, 0)[1] == 0
hints._lock.release()
hints.write(("INCR", "count"))
assert trips.ask(("GET", "mine")) == [b"1"]
"""
    run(redis_url, program)

    assert redis.get("count") == "4"


@pytest.fixture
def trips(pool):
    return RedisTrips(Redis(connection_pool=pool))


def test_a_trip_brings_all_replies_in_their_order(trips, redis):
    assert trips.ask(("SET", "a", 1, "NX"), ("SET", "a", 2, "NX"), ("GET", "a")) == [b"OK", None, b"1"]
    assert trips.ask(("INCR", "a")) == [2]
    assert len(connections(redis)) == 1


def test_a_refusal_is_raised_and_leaves_no_reply_behind(trips, redis):
    redis.set("text", "no list")
    with pytest.raises(ResponseError):
        trips.ask(("RPUSH", "text", 1), ("SET", "a", 1))

    assert trips.ask(("GET", "a")) == [b"1"]
    assert len(connections(redis)) == 1


def test_threads_that_ask_at_once_get_their_own_replies(trips):
    def ask(n):
        return [trips.ask(("ECHO", f"{n}-{turn}")) == [f"{n}-{turn}".encode()] for turn in range(50)]

    with ThreadPoolExecutor(8) as pool:
        assert all(all(right) for right in pool.map(ask, range(8)))


def test_the_client_asks_where_a_connection_was_lost(trips, redis):
    trips.ask(("SET", "a", 1))
    redis.client_kill_filter(_id=connections(redis)[0]["id"])

    assert trips.ask(("GET", "a")) == [b"1"]
    assert trips.ask(("GET", "a")) == [b"1"]


def test_interrupted_trip_leaves_no_reply_that_another_would_read(trips, monkeypatch):
    trips.ask(("SET", "a", 1))
    (connection,) = trips._idle
    with monkeypatch.context() as patch:
        patch.setattr(connection, "read_response", interrupt)
        with pytest.raises(KeyboardInterrupt):
            trips.ask(("GET", "a"))

    assert trips.ask(("ECHO", "mine")) == [b"mine"]


def test_who_asks_gets_an_error_while_redis_is_away():
    with pytest.raises(RedisError):
        RedisTrips(Redis(port=1, retry=Retry(NoBackoff(), 0))).ask(("GET", "a"))
