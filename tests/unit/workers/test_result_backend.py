"""Results of our tasks: stored as Celery stores them, in fewer commands, and only where somebody wants them."""

from __future__ import annotations

import json

import pytest
from celery.app.task import Context
from celery.backends.redis import RedisBackend
from redis.exceptions import RedisError

from chordage.config.settings import load
from chordage.tasks import names
from chordage.workers.app import make_app

pytestmark = pytest.mark.redis

KEY = "chordage:celery:celery-task-meta-t1"


@pytest.fixture
def app(tmp_path, redis_url):
    return make_app(load(room=tmp_path, redis_url=redis_url))


def asked_by(task=names.SUBMIT, **headers):
    return Context(id="t1", task=task, **headers)


@pytest.fixture
def stored(redis):
    def read():
        text = redis.get(KEY)
        return text if text is None else {**json.loads(text), "date_done": "some time"}

    return read


def test_result_is_stored_as_celery_stores_it_in_two_commands(app, redis, stored):
    celerys = RedisBackend(app=app, url=app.conf.broker_url)
    celerys.set(KEY, "")  # connected
    redis.delete(KEY)
    celerys.store_result("t1", "turn-1", "SUCCESS", request=asked_by())
    expected = stored()
    app.backend.mark_as_done("t0", "warm-up", asked_by())
    redis.config_resetstat()
    app.backend.mark_as_done("t1", "turn-1", asked_by())
    commands = {name.removeprefix("cmdstat_") for name in redis.info("commandstats")}

    assert stored() == expected
    assert 3500 < redis.ttl(KEY) <= 3600
    assert commands - {"config|resetstat", "info"} == {"set", "publish"}
    assert app.AsyncResult("t1").get(timeout=60) == "turn-1"


def test_result_that_cannot_be_stored_directly_is_stored_as_celery_does(app, stored, monkeypatch):
    """With its tries, and with its error in the end."""

    def away(*_):
        raise RedisError("away")

    monkeypatch.setattr(app.backend._trips, "ask", away)
    app.backend.mark_as_done("t1", "turn-1", asked_by())
    assert stored()["result"] == "turn-1"

    monkeypatch.setattr(app.backend, "set", away)
    with pytest.raises(RedisError):
        app.backend.mark_as_done("t1", "turn-1", asked_by())


def test_who_waits_for_a_result_is_told(app, redis):
    with redis.pubsub() as listening:
        listening.subscribe(KEY)
        assert listening.get_message(timeout=60)["type"] == "subscribe"
        app.backend.mark_as_done("t1", "turn-1", asked_by())

        assert json.loads(listening.get_message(timeout=60)["data"])["result"] == "turn-1"


def test_nothing_is_stored_for_a_caller_who_wants_no_result(app, redis):
    app.backend.mark_as_done("t1", "turn-1", asked_by(ignore_result=True))

    assert redis.keys("*t1*") == []


def test_success_is_not_replaced_by_a_failure_and_not_by_a_success_of_others(app, stored):
    app.backend.mark_as_done("t1", "turn-1", asked_by())
    app.backend.mark_as_failure("t1", RuntimeError("late"), request=asked_by())
    app.backend.mark_as_done("t1", "theirs", asked_by(task="somebody.else"))

    assert (stored()["status"], stored()["result"]) == ("SUCCESS", "turn-1")
