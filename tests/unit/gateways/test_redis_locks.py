"""Locks of threads, and marks of work: what keeps others off work is gone with the lease, that it was begun is known
for longer.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from redis import Redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from chordage.orchestrator.gateways.ports import WorkMark
from chordage.orchestrator.gateways.redis_direct import RedisHints
from chordage.orchestrator.gateways.redis_locks import RedisLocks
from support.waiting import until

pytestmark = pytest.mark.redis


@pytest.fixture
def redis(redis_url):
    with Redis.from_url(redis_url, decode_responses=True) as client:
        yield client


@pytest.fixture
def hints(redis):
    return RedisHints(redis)


@pytest.fixture
def locks(redis, hints):
    return RedisLocks(redis, hints, prefix="test:", lease=0.2, worker="h:1")


@pytest.fixture
def long(redis, hints):
    return RedisLocks(redis, hints, prefix="test:", lease=30, worker="h:1")


def test_thread_is_held_by_one_run_until_that_run_releases_it(long, hints, redis):
    assert long.take("t1", "r1:1") is None
    assert long.take("t1", "r1:1") is None  # an answer was lost, and it asks again
    assert long.take("t1", "r2:1") == "r1:1"

    long.release("t1", "r2:1")
    hints.flush()
    assert redis.get("test:thread:t1") == "r1:1"
    long.release("t1", "r1:1")
    hints.flush()
    assert long.take("t1", "r2:1") is None


def test_thread_of_a_run_that_is_done_is_taken_over_from_that_run_and_from_no_other(long, redis):
    long.take("t1", "r1:1")

    assert long.take("t1", "r3:1", instead_of="r2:1") == "r1:1"
    assert long.take("t1", "r2:1", instead_of="r1:1") is None
    assert long.take("t1", "r2:1", instead_of="r1:1") is None  # an answer was lost, and it asks again
    assert long.take("t1", "r3:1", instead_of="r1:1") == "r2:1"
    assert long.take("t2", "r3:1", instead_of="r1:1") is None  # released meanwhile
    assert 2_000 < redis.pttl("test:thread:t1") <= 3_000


def test_thread_is_held_briefly_at_first_and_longer_when_the_run_goes_on(long, hints, redis):
    long.take("t1", "r1:1")
    assert 2_000 < redis.pttl("test:thread:t1") <= 3_000

    long.extend("t1", "r1:1")
    hints.flush()
    assert 59_000 < redis.pttl("test:thread:t1") <= 60_000


def test_lock_that_redis_lost_is_taken_again_and_not_from_another_run(long, hints, redis):
    long.extend("t1", "r1:1")
    hints.flush()
    assert redis.get("test:thread:t1") == "r1:1"
    assert 59_000 < redis.pttl("test:thread:t1") <= 60_000

    long.extend("t1", "r2:1")
    hints.flush()
    assert redis.get("test:thread:t1") == "r1:1"


def test_lock_is_the_one_of_the_library(long, hints, redis):
    """Its class reads what ours writes, and the other way round."""
    theirs = redis.lock("test:thread:t1", timeout=30, thread_local=False)
    assert theirs.acquire(token="r1:1", blocking=False)

    long.extend("t1", "r1:1")
    hints.flush()
    assert redis.pttl("test:thread:t1") > 30_000
    assert theirs.owned()
    long.release("t1", "r1:1")
    hints.flush()
    assert not theirs.locked()


def test_each_lock_is_one_command(long, hints, redis):
    long.take("t0", "r0:1")  # the connection is made
    long.extend("t0", "r0:1")
    hints.flush()
    redis.config_resetstat()
    long.take("t1", "r1:1")
    long.once("r1:1:1")
    long.extend("t1", "r1:1")
    long.release("t1", "r1:1")
    hints.flush()
    long.forget("r1:1:1")

    sent = {name: stats["calls"] for name, stats in redis.info("commandstats").items()}
    in_scripts = {"cmdstat_get": 2, "cmdstat_pexpire": 1}
    assert {name: sent.get(name) for name in in_scripts} == in_scripts
    assert (sent["cmdstat_set"], sent["cmdstat_eval"], sent["cmdstat_del"]) == (2, 2, 2)
    sent.pop("cmdstat_config|resetstat")
    assert sum(sent.values()) == 6 + 3


def test_work_whose_lease_is_up_may_be_begun_again_and_is_held_again(locks):
    locks.once("k")
    until(lambda: not locks.alive(["k"]), "the lease is up")

    assert locks.once("k")
    assert locks.alive(["k"]) == {"k": "h:1"}
    assert not locks.once("k")


def test_work_that_is_renewed_is_held_for_another_lease(locks):
    locks.once("k")
    until(lambda: not locks.alive(["k"]), "the lease is up")
    locks.renew({"k": "h:2"})

    assert not locks.once("k")


def test_work_is_begun_once_within_a_lease(locks):
    assert locks.once("k")
    assert not locks.once("k")
    assert (locks.alive(["k", "other"]), locks.begun(["k", "other"])) == ({"k": "h:1"}, {"k"})


def test_that_work_was_begun_is_known_when_its_lease_is_up_and_not_for_ever(locks):
    locks.once("k")

    until(lambda: not locks.alive(["k"]), "the lease is up")

    assert locks.begun(["k"]) == {"k"}
    until(lambda: not locks.begun(["k"]), "no thread looks any more")


def test_released_work_was_not_begun(locks):
    locks.once("k")
    locks.forget("k")

    assert (locks.alive(["k"]), locks.begun(["k"])) == ({}, set())
    assert locks.once("k")


def test_work_that_this_process_alone_knows_of_is_marked_and_released_in_order(locks, hints):
    locks.mark("k")
    hints.flush()
    assert (locks.alive(["k"]), locks.begun(["k"]), locks.once("k")) == ({"k": "h:1"}, {"k"}, False)

    for _ in range(100):
        locks.mark("other")
        locks.forget("other")
        assert locks.begun(["other"]) == set()


def test_those_who_ask_why_see_who_has_work_in_flight_and_until_when_it_pauses(long, hints):
    until_then = datetime.now(UTC) + timedelta(seconds=20)
    long.once("r1:1:1")
    long.once("r2:1:1")
    long.pause("r2:1:1", until_then)
    hints.flush()

    assert long.marks(["r1:1:1", "r2:1:1", "r3:1:1"]) == {
        "r1:1:1": WorkMark("h:1"), "r2:1:1": WorkMark("h:1", until_then),
    }  # fmt: skip
    assert long.marks([]) == {}


def test_pause_is_forgotten_when_it_is_over(long, hints):
    long.pause("r1:1:1", datetime.now(UTC) + timedelta(milliseconds=50))
    hints.flush()

    until(lambda: long.marks(["r1:1:1"]) == {}, "the pause is over")


def test_work_continues_while_redis_is_away():
    with Redis(port=1, retry=Retry(NoBackoff(), 0)) as nobody:
        locks = RedisLocks(nobody, RedisHints(nobody), prefix="test:", lease=1, worker="h:1")

        assert locks.once("k")
        locks.forget("k")
        assert locks.take("t1", "r1:1") is None
        assert locks.take("t1", "r1:1", instead_of="r0:1") is None
        locks.extend("t1", "r1:1")
        locks.release("t1", "r1:1")
        locks.pause("k", datetime.now(UTC))
        assert locks.marks(["k"]) == {}
