"""Many rounds are fanned out by the threads of one worker at once."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest

from chordage.config.settings import load
from chordage.orchestrator.core.groups import Group
from chordage.orchestrator.core.intents import CallTools
from chordage.tasks.courier import Courier
from chordage.workers.app import make_app
from chordage.workers.bootstrap import redis_from

AT_ONCE = 30  # more than Celery keeps producers
WIDTH = 3


@pytest.fixture
def settings(tmp_path, redis_url):
    return load(room=tmp_path, redis_url=redis_url)


def fan_out(settings) -> None:
    courier = Courier(make_app(settings))
    together = Barrier(AT_ONCE)

    def one(number: int) -> None:
        batches = tuple((f"call-{number}-{place}",) for place in range(WIDTH))
        round_ = CallTools(run_id=f"r{number}", thread_id="t", step=2, batches=batches, group=Group.CHAT)
        together.wait()
        courier.send([round_])

    with ThreadPoolExecutor(AT_ONCE) as threads:
        list(threads.map(one, range(AT_ONCE)))


@pytest.mark.redis
def test_more_rounds_at_once_than_there_are_producers_are_all_sent(settings) -> None:
    fan_out(settings)

    with redis_from(settings) as redis:
        assert redis.llen("chat.tools") == AT_ONCE * WIDTH


@pytest.mark.redis
def test_a_round_leaves_no_subscription_behind(settings) -> None:
    fan_out(settings)

    with redis_from(settings) as redis:
        assert redis.pubsub_channels("*celery-task-meta*") == []
