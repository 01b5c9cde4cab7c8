"""Waiting for a turn: quick while Redis brings word, sure while it does not."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from chordage.config.settings import Settings
from chordage.orchestrator import stages
from chordage.orchestrator.gateways.redis_events import done_channel
from chordage.orchestrator.runtime import Runtime
from chordage.workers import turn_waiter
from chordage.workers.bootstrap import redis_from, runtime_from
from chordage.workers.turn_waiter import TurnWaiter, wait_for_turn, waiter_for
from support.waiting import PATIENCE, until
from support.web_server import finish, with_redis

pytestmark = pytest.mark.redis


def test_notification_of_a_done_turn_ends_the_wait(settings, rt, monkeypatch):
    """Nothing else can, long before its time: the row is not read again within an hour."""
    monkeypatch.setattr(turn_waiter, "READ_EVERY", 3600.0)
    redis, waiter = redis_from(settings), waiter_for(settings)
    for number in range(10):
        turn_id = _submitted(rt, f"hello {number}")
        with ThreadPoolExecutor() as threads:
            waiting = threads.submit(wait_for_turn, waiter, rt, turn_id, PATIENCE)
            channel = done_channel(settings.prefix, turn_id)
            until(lambda channel=channel: redis.pubsub_numsub(channel)[0][1], "it listens", pause=0.001)
            quiet = runtime_from(settings, with_redis=False)
            finish(quiet, turn_id)
            quiet.store.close()
            published = time.monotonic()
            redis.publish(channel, "1")
            assert waiting.result().answer
            assert time.monotonic() - published < PATIENCE / 2, "it was not the time that ended the wait"
    redis.close()
    waiter.close()


def _submitted(rt: Runtime, text: str) -> str:
    from chordage.tasks.schema import request_from

    return stages.admit(rt, request_from({"text": text}, source="test", space=None))[0].turn_id


def test_a_wait_survives_the_loss_of_redis(settings, rt, start_valkey):
    server = start_valkey()
    waiter = waiter_for(with_redis(settings, server.url))
    turn_id = _submitted(rt, "hello")
    with ThreadPoolExecutor() as threads:
        waiting = threads.submit(wait_for_turn, waiter, rt, turn_id, PATIENCE)
        until(lambda: server_has_listeners(server, settings, turn_id), "it listens")
        server.kill()
        finish(rt, turn_id)
        began = time.monotonic()
        turn = waiting.result()
    waiter.close()

    assert turn.answer == "You said: hello"
    assert time.monotonic() - began < PATIENCE / 2, "it was not the time that ended the wait"


def server_has_listeners(server: object, settings: Settings, turn_id: str) -> int:
    import redis

    with redis.Redis.from_url(server.url) as client:
        return client.pubsub_numsub(done_channel(settings.prefix, turn_id))[0][1]


@pytest.mark.parametrize("redis", ["none", "dead"])
def test_without_redis_a_wait_queries_the_database(settings, rt, redis):
    dead = with_redis(settings, "redis://127.0.0.1:1/0")
    client = TurnWaiter(None, prefix="") if redis == "none" else waiter_for(dead)
    turn_id = _submitted(rt, "hello")
    with ThreadPoolExecutor() as threads:
        waiting = threads.submit(wait_for_turn, client, rt, turn_id, PATIENCE)
        finish(rt, turn_id)

        assert waiting.result().answer == "You said: hello"


def test_a_wait_is_over_when_its_time_is_over(settings, rt):
    turn_id = _submitted(rt, "hello")

    assert wait_for_turn(TurnWaiter(None, prefix=""), rt, turn_id, 0.05).status == "queued"


def test_a_turn_that_is_done_is_not_waited_for(settings, rt):
    turn_id = _submitted(rt, "hello")
    finish(rt, turn_id)
    waiter = waiter_for(settings)

    assert wait_for_turn(waiter, rt, turn_id, 0).answer == "You said: hello"
    waiter.close()


def test_next_wait_listens_on_the_connection_of_the_one_before(settings, rt):
    waiter, redis = waiter_for(settings), redis_from(settings)
    others = {one["id"] for one in redis.client_list()}
    heard = []
    for number in range(5):
        turn_id = _submitted(rt, f"hello {number}")
        with waiter.subscribed(turn_id) as word:
            redis.publish(done_channel(settings.prefix, "of somebody else"), "1")
            redis.publish(done_channel(settings.prefix, turn_id), "1")
            began = time.monotonic()
            word.wait(PATIENCE)
            heard.append(time.monotonic() - began)
    listening = [one for one in redis.client_list() if one["sub"] != "0" and one["id"] not in others]
    redis.close()
    waiter.close()

    assert [one["sub"] for one in listening] == ["1"], "one connection, and it has left the channels before"
    assert max(heard) < PATIENCE / 2, "it was not the time that ended the wait"


def test_connection_that_broke_without_a_waiter_is_not_used_again(settings, rt, start_valkey):
    server = start_valkey()
    waiter = waiter_for(with_redis(settings, server.url))
    with waiter.subscribed("a turn"):
        pass
    import redis

    with redis.Redis.from_url(server.url) as client:
        client.client_kill_filter(_type="pubsub")
    with waiter.subscribed("another") as word:
        assert word.can_come
    waiter.close()


def test_without_notifications_a_look_is_cheap(rt, monkeypatch):
    turn_id, looked = _submitted(rt, "hello"), []
    monkeypatch.setattr(turn_waiter, "READ_EVERY_ALONE", 0.01)
    turn, is_done = turn_waiter.views.turn, turn_waiter.views.is_done
    monkeypatch.setattr(turn_waiter.views, "turn", lambda *given: looked.append("dear") or turn(*given))
    monkeypatch.setattr(turn_waiter.views, "is_done", lambda *given: looked.append("cheap") or is_done(*given))

    wait_for_turn(TurnWaiter(None, prefix=""), rt, turn_id, PATIENCE, gave_up=lambda: looked.count("cheap") == 3)

    assert looked[:3] == ["cheap"] * 3
    assert looked.count("dear") == 1
