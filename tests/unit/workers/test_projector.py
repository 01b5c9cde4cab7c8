"""The timer of the bus: one of several workers has a slot, an error makes it pause, and it stops."""

from __future__ import annotations

import threading
from types import SimpleNamespace

import pytest
from redis import Redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from chordage.config.settings import load
from chordage.orchestrator.core.errors import Unavailable
from chordage.orchestrator.store import schema_version
from chordage.orchestrator.store.database import Store
from chordage.workers import timers as timers_module
from chordage.workers.app import make_app
from chordage.workers.bootstrap import redis_from
from chordage.workers.timers import Projector
from support.plain_room import forget_settings
from support.waiting import until

GONE = "redis://127.0.0.1:1/0"


class Worker:
    """Its timer, and how often it has looked at the journal. `ends` is what such a look comes to."""

    def __init__(self, ends=None, **given):
        settings = load(**{"redis_url": GONE, "project": 0.002, **given})
        self.looks = 0
        self.ends = ends
        self.store = Store("sqlite:///projector.db")  # in the folder of the test
        schema_version.upgrade(self.store)
        self.projector = Projector(make_app(settings), settings, self.look)

    def look(self):
        self.looks += 1
        if self.ends is not None:
            raise self.ends
        return SimpleNamespace(bus=None, store=self.store)  # nothing to do, as where there is no Redis


@pytest.fixture(autouse=True)
def _nothing_given(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    forget_settings(monkeypatch)


@pytest.fixture(autouse=True)
def _one_try(monkeypatch):
    """The client gives up at once: by itself it tries again for seconds."""
    monkeypatch.setattr(timers_module, "redis_from", lambda _: Redis.from_url(GONE, retry=Retry(NoBackoff(), 0)))


def timers():
    return [thread for thread in threading.enumerate() if thread.name == "chordage-projection"]


@pytest.mark.redis
def test_one_of_two_workers_has_the_slot_and_each_prefix_slots_of_its_own(redis_url):
    given = {"redis_url": redis_url, "project": 86_400.0}
    one, two, other = Worker(**given), Worker(**given), Worker(**given, prefix="other:")

    with Redis.from_url(redis_url) as redis:
        had = [worker.projector._has_slot(redis) for worker in (one, two, one, other)]
        (left, *_) = (redis.pttl(key) for key in redis.keys("*project:*"))

    assert had == [True, False, False, True]
    assert left > 0, "an unused slot is forgotten"


def test_while_redis_is_away_everybody_has_the_slot_for_the_claim_in_sql_decides():
    worker = Worker()

    with redis_from(load(redis_url=GONE)) as redis:
        assert worker.projector._has_slot(redis)


@pytest.mark.parametrize("error", [Unavailable("the database does not answer"), ZeroDivisionError()])
def test_an_error_makes_it_pause_for_a_beat_and_does_not_end_it(error):
    failing = Worker(error, lease=7200, beat=3600)
    well = Worker()
    for worker in (failing, well):
        worker.projector.start()

    until(lambda: well.looks > 5 and failing.looks, "the other continues meanwhile")
    assert failing.looks == 1
    failing.ends = None
    failing.projector._not_before = 0.0  # the pause is over
    until(lambda: failing.looks > 3, "it looks again")

    for worker in (failing, well):
        worker.projector.stop()
    until(lambda: not timers(), "both have stopped")


def test_it_stops_when_asked_and_looks_no_more():
    worker = Worker()
    worker.projector.start()
    until(lambda: worker.looks, "it looks")

    worker.projector.stop()

    until(lambda: not timers(), "it has stopped")
