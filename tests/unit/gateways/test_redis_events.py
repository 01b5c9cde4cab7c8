"""Live news of processes that end, and of those that fork."""

from __future__ import annotations

import subprocess
import sys
import threading

import pytest
from redis import Redis

from chordage.orchestrator.gateways import redis_events
from chordage.orchestrator.gateways.redis_direct import RedisHints
from chordage.orchestrator.gateways.redis_events import EVERY_RUN, RedisEvents, watch
from support.waiting import PATIENCE, until

pytestmark = pytest.mark.redis

PROGRAM = """
import os, sys, time
from redis import Redis
from chordage.orchestrator.gateways.redis_direct import RedisHints
from chordage.orchestrator.gateways.redis_events import RedisEvents

redis = Redis.from_url(sys.argv[1])
events = RedisEvents(redis, RedisHints(redis), prefix="news:")
events.emit("first", "run.started")
{then}
"""


@pytest.fixture
def watched(redis_url):
    with Redis.from_url(redis_url) as redis:
        watch(redis, EVERY_RUN, 60, prefix="news:")


def said_by(redis_url: str, then: str) -> list[str]:
    """Kinds of the news of the run `first`, when the program has ended."""
    subprocess.run([sys.executable, "-c", PROGRAM.format(then=then), redis_url], check=True, timeout=PATIENCE)
    with Redis.from_url(redis_url, decode_responses=True) as redis:
        return [fields["kind"] for _, fields in redis.xrange("news:live:first")]


@pytest.mark.usefixtures("watched")
def test_process_that_ends_has_published_all_its_events_in_order(redis_url):
    """Its thread waits for more when the process ends."""
    took_one = "time.sleep(0.01)"  # less than it waits

    assert said_by(redis_url, f'{took_one}; events.emit("first", "tool.progress")') == ["run.started", "tool.progress"]


@pytest.mark.usefixtures("watched")
def test_fork_publishes_its_own_events_and_not_those_of_its_parent(redis_url):
    child = 'events.emit("other", "run.started"); events.flush(); os._exit(0)'
    fork = f"pid = os.fork()\nif pid == 0:\n    {child}\nassert os.waitpid(pid, 0)[1] == 0"

    said = said_by(redis_url, f'for _ in range(50): events.emit("first", "tool.progress")\n{fork}')

    assert said.count("tool.progress") == 50
    with Redis.from_url(redis_url) as redis:
        assert redis.xlen("news:live:other") == 1


@pytest.mark.usefixtures("watched")
def test_events_arrive_within_a_moment_and_also_after_a_silence(redis_url):
    with Redis.from_url(redis_url) as redis:
        events = RedisEvents(redis, RedisHints(redis), prefix="news:")
        for number in range(1, 4):
            events.emit("first", "run.started")
            until(lambda number=number: redis.xlen("news:live:first") == number, "it was told")


@pytest.mark.usefixtures("watched")
def test_notification_of_a_done_turn_waits_for_no_other_event(redis_url, monkeypatch):
    monkeypatch.setattr(redis_events, "GATHER", 3600)
    with Redis.from_url(redis_url) as redis, redis.pubsub() as listening:
        listening.subscribe(redis_events.done_channel("news:", "t1"))
        assert listening.get_message(timeout=PATIENCE)["type"] == "subscribe"
        events = RedisEvents(redis, RedisHints(redis), prefix="news:")
        events.emit("first", "run.finished")
        events.turn_done("t1")

        assert listening.get_message(timeout=PATIENCE)["data"] == b"1"
        assert redis.xlen("news:live:first") == 1


@pytest.mark.usefixtures("watched")
def test_notification_comes_after_events_that_are_being_sent(redis, monkeypatch):
    events = RedisEvents(redis, RedisHints(redis), prefix="news:")
    send, begun, may_send = events._send_news, threading.Event(), threading.Event()

    def waits(*news):
        begun.set()
        may_send.wait(PATIENCE)
        send(*news)

    monkeypatch.setattr(events, "_send_news", waits)
    with redis.pubsub() as listening:
        listening.subscribe(redis_events.done_channel("news:", "t1"))
        assert listening.get_message(timeout=PATIENCE)["type"] == "subscribe"
        events.emit("first", "run.finished")
        assert begun.wait(PATIENCE)
        events.turn_done("t1")
        may_send.set()

        assert listening.get_message(timeout=PATIENCE)["data"] == b"1"
        assert redis.xlen("news:live:first") == 1


def test_turn_that_is_not_watched_starts_no_thread(redis, commands):
    events = RedisEvents(redis, RedisHints(redis), prefix="news:")
    events._watched._due = float("inf")  # it was read a moment ago
    redis.config_resetstat()
    events.emit("first", "run.finished")
    events.turn_done("t1")

    until(lambda: commands("publish") == 1, "its waiters are notified")
    assert events._sender is None


@pytest.mark.usefixtures("watched")
def test_a_stream_that_cannot_be_written_keeps_no_other_news_back(redis_url):
    with Redis.from_url(redis_url) as redis, redis.pubsub() as listening:
        redis.set("news:live:first", "no stream")
        listening.subscribe(redis_events.done_channel("news:", "t1"))
        assert listening.get_message(timeout=PATIENCE)["type"] == "subscribe"
        events = RedisEvents(redis, RedisHints(redis), prefix="news:")
        events.emit("first", "run.finished")
        events.emit("second", "run.finished")
        events.turn_done("t1")

        assert listening.get_message(timeout=PATIENCE)["data"] == b"1"
        assert redis.xlen("news:live:second") == 1
        assert redis.ttl("news:live:second") > 0


@pytest.mark.usefixtures("watched")
def test_a_client_that_fails_in_a_way_of_its_own_ends_no_news(redis_url, monkeypatch):
    with Redis.from_url(redis_url) as redis:
        events = RedisEvents(redis, RedisHints(redis), prefix="news:")
        send, failed = events._send, []

        def fails_at_first(batch):
            if not failed:
                failed.append(batch)
                raise AttributeError("closed meanwhile")
            send(batch)

        monkeypatch.setattr(events, "_send", fails_at_first)
        events.emit("first", "run.started")
        until(lambda: failed, "the first news failed")
        events.emit("first", "run.finished")

        until(lambda: redis.xlen("news:live:first") == 1, "the next was told")


@pytest.fixture
def redis(redis_url):
    with Redis.from_url(redis_url) as client:
        yield client


@pytest.fixture
def commands(redis):
    """Counts commands by name, until now."""
    return lambda name: redis.info("commandstats").get(f"cmdstat_{name}", {"calls": 0})["calls"]


def keys_of(redis):
    return {name.decode() for name in redis.scan_iter("news:*")}


def test_events_of_a_run_that_nobody_watches_are_not_sent(redis, commands, monkeypatch):
    monkeypatch.setattr(redis_events, "READ_WATCHERS_EVERY", 3600.0)
    redis.config_resetstat()
    events = RedisEvents(redis, RedisHints(redis), prefix="news:")
    for number in range(1000):
        events.emit("first", "model.delta", text=str(number))
    events.flush()
    for number in range(1000):
        events.emit("first", "model.delta", text=str(number))
    events.flush()

    assert keys_of(redis) == set()
    assert commands("zrange") == 1  # one in so many seconds, however many events
    assert commands("evalsha") == commands("xadd") == 0


def test_who_waits_for_a_turn_is_told_though_nobody_watches(redis, commands):
    with redis.pubsub() as listening:
        listening.subscribe(redis_events.done_channel("news:", "t1"))
        assert listening.get_message(timeout=PATIENCE)["type"] == "subscribe"
        redis.config_resetstat()
        events = RedisEvents(redis, RedisHints(redis), prefix="news:")
        events.emit("first", "run.finished")
        events.turn_done("t1")

        assert listening.get_message(timeout=PATIENCE)["data"] == b"1"
        assert commands("publish") == 1


def test_watcher_of_a_run_gets_its_events_and_no_others(redis):
    watch(redis, "first", 60, prefix="news:")
    events = RedisEvents(redis, RedisHints(redis), prefix="news:")
    for run in ("first", "second"):
        events.emit(run, "run.started")
        events.emit(run, "model.delta")
    events.flush()

    assert keys_of(redis) == {"news:watched", "news:live:first"}
    assert redis.xlen("news:live:first") == 2


def test_watcher_that_comes_late_gets_the_events_from_about_a_second_on(redis, monkeypatch):
    monkeypatch.setattr(redis_events, "READ_WATCHERS_EVERY", 0.1)
    events = RedisEvents(redis, RedisHints(redis), prefix="news:")
    events.emit("first", "run.started")
    events.flush()
    watch(redis, "first", 60, prefix="news:")

    def emitted():
        events.emit("first", "model.delta")
        return redis.xlen("news:live:first")

    until(emitted, "its events are sent")


def test_watch_that_is_over_is_forgotten(redis, monkeypatch):
    monkeypatch.setattr(redis_events, "READ_WATCHERS_EVERY", 0.0)
    watch(redis, "first", 60, prefix="news:")
    watch(redis, "second", -1, prefix="news:")
    events = RedisEvents(redis, RedisHints(redis), prefix="news:")
    events.emit("second", "run.started")
    events.flush()

    assert redis.zrange("news:watched", 0, -1) == [b"first"]
    assert redis.exists("news:live:second") == 0


def test_what_cannot_be_read_of_watchers_keeps_no_notification_back(redis):
    redis.set("news:watched", "no sorted set")
    with redis.pubsub() as listening:
        listening.subscribe(redis_events.done_channel("news:", "t1"))
        assert listening.get_message(timeout=PATIENCE)["type"] == "subscribe"
        events = RedisEvents(redis, RedisHints(redis), prefix="news:")
        events.emit("first", "run.finished")
        events.turn_done("t1")

        assert listening.get_message(timeout=PATIENCE)["data"] == b"1"
