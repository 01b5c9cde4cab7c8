"""Marks of work in Redis: what keeps others off it is gone with the lease, that it was begun is known for longer."""

from __future__ import annotations

import pytest
from redis import Redis

from chordage.orchestrator.gateways.redis_locks import RedisLocks
from support.waiting import until

pytestmark = pytest.mark.redis


@pytest.fixture
def locks(redis_url):
    with Redis.from_url(redis_url) as client:
        yield RedisLocks(client, prefix="test:", lease=0.2)


def test_work_is_begun_once_within_a_lease(locks):
    assert locks.once("k")
    assert not locks.once("k")
    assert (locks.alive(["k", "other"]), locks.begun(["k", "other"])) == ({"k"}, {"k"})


def test_that_work_was_begun_is_known_when_its_lease_is_up_and_not_for_ever(locks):
    locks.once("k")

    until(lambda: not locks.alive(["k"]), "the lease is up")

    assert locks.begun(["k"]) == {"k"}
    until(lambda: not locks.begun(["k"]), "no thread looks any more")


def test_released_work_was_not_begun(locks):
    locks.once("k")
    locks.forget("k")

    assert (locks.alive(["k"]), locks.begun(["k"])) == (set(), set())
    assert locks.once("k")


def test_work_continues_while_redis_is_away():
    with Redis(port=1) as nobody:
        locks = RedisLocks(nobody, prefix="test:", lease=1)

        assert locks.once("k")
        locks.forget("k")
