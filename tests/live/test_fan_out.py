"""Rounds as chords on the wire: many are fanned out by the threads of one worker at once, and each is joined."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest
from celery.app.task import Context
from structlog.testing import capture_logs

from chordage.config.settings import load
from chordage.orchestrator.core.groups import Group
from chordage.orchestrator.core.intents import CallTools
from chordage.tasks import names
from chordage.tasks.courier import Courier, round_body
from chordage.workers import chord_backend
from chordage.workers.app import make_app
from chordage.workers.bootstrap import redis_from
from chordage.workers.fleet.member import free_port

CHAT, TOOLS = "chordage:celery:chat", "chordage:celery:chat.tools"
AT_ONCE = 30  # more than Celery keeps producers
WIDTH = 3


@pytest.fixture
def settings(tmp_path, redis_url):
    return load(room=tmp_path, redis_url=redis_url)


def a_round(number: int) -> CallTools:
    batches = tuple((f"call-{number}-{place}",) for place in range(WIDTH))
    return CallTools(run_id=f"r{number}", step=2, batches=batches, group=Group.CHAT)


def fan_out(settings) -> None:
    courier = Courier(make_app(settings))
    together = Barrier(AT_ONCE)

    def one(number: int) -> None:
        together.wait()
        courier.send([a_round(number)])

    with ThreadPoolExecutor(AT_ONCE) as threads:
        list(threads.map(one, range(AT_ONCE)))


@pytest.mark.redis
def test_more_rounds_at_once_than_there_are_producers_are_all_sent(settings) -> None:
    fan_out(settings)

    with redis_from(settings) as redis:
        assert redis.llen(TOOLS) == AT_ONCE * WIDTH


@pytest.mark.redis
def test_a_round_leaves_no_subscription_behind(settings) -> None:
    fan_out(settings)

    with redis_from(settings) as redis:
        assert redis.pubsub_channels("*celery-task-meta*") == []


@pytest.mark.redis
def test_calls_that_come_one_after_the_other_have_the_time_limit_of_all_of_them(settings) -> None:
    app = make_app(settings)
    limit = app.tasks[names.CALL_TOOLS].time_limit
    batches = (("alone",), ("first", "second", "third"))
    Courier(app).send([CallTools(run_id="r", step=2, batches=batches, group=Group.CHAT)])

    with redis_from(settings) as redis:
        sent = [json.loads(message)["headers"]["timelimit"][0] for message in redis.lrange(TOOLS, 0, -1)]
    assert sorted(sent) == [limit, 3 * limit]


BODY = round_body(a_round(1))


def header(place: int, body=BODY) -> Context:
    return Context(id=f"task-{place}", group="one-round", group_index=place, chord=body)


@pytest.mark.redis
def test_the_body_is_sent_when_the_last_header_has_returned_however_each_ended(settings) -> None:
    backend = make_app(settings).backend
    ends = [(0, "SUCCESS"), (2, "FAILURE"), (2, "FAILURE"), (1, "REVOKED")]

    with redis_from(settings) as redis:
        sent = [backend.on_chord_part_return(header(place), state, None) or redis.llen(CHAT) for place, state in ends]

    assert sent == [0, 0, 0, 1]


@pytest.mark.redis
def test_a_header_that_comes_again_after_the_last_sends_the_body_again_under_the_same_id(settings) -> None:
    """The process that returned last may have been killed before it could send it."""
    backend = make_app(settings).backend
    for place in (0, 1, 2, 2):
        backend.on_chord_part_return(header(place), "SUCCESS", None)

    with redis_from(settings) as redis:
        sent = [json.loads(message)["headers"]["id"] for message in redis.lrange(CHAT, 0, -1)]
        kept = [redis.ttl(key) for key in redis.keys("*one-round*")]

    assert sent == [BODY["options"]["task_id"]] * 2
    assert kept
    assert 0 < max(kept) <= chord_backend.AFTERWARDS


@pytest.mark.redis
def test_foreign_chord_is_joined_as_celery_joins_it(settings) -> None:
    app = make_app(settings)
    body = app.signature("somebody.else", queue="chat", kwargs={})

    app.backend.on_chord_part_return(header(0, body), "SUCCESS", "its result")

    with redis_from(settings) as redis:
        (entry,) = redis.zrange(app.backend.get_key_for_group("one-round", ".j"), 0, -1)
    assert b"its result" in entry


def test_a_header_that_finds_no_redis_is_over_all_the_same(tmp_path) -> None:
    away = load(room=tmp_path, redis_url=f"redis://127.0.0.1:{free_port()}/0")

    with capture_logs() as told:
        make_app(away).backend.on_chord_part_return(header(0), "SUCCESS", None)

    warnings = [line["event"] for line in told if line["log_level"] == "warning"]
    assert warnings == ["chord not joined; rescue will commit its round"]
