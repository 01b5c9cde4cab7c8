"""Redis is killed, emptied and paused under load. Turns cost seconds by it, and nothing else."""

from __future__ import annotations

import contextlib
import time

import pytest
from redis.exceptions import RedisError

from support.rig import Plan
from support.rig_checks import check_rig
from support.waiting import until

pytestmark = [pytest.mark.redis, pytest.mark.slow]

TURNS = 120
HEARING = 24  # more than the 16 that one worker of turns can hold


def killed_and_empty(rig):
    rig.broker.kill()
    time.sleep(1.0)  # the fault itself: this long there is no Redis
    rig.broker.start()


def flushed(rig):
    rig.redis.flushall()


def paused(rig):
    rig.broker.pause(10)


def killed_with_a_file(rig):
    rig.broker.kill()
    time.sleep(2.0)  # the fault itself
    rig.broker.start()


FAULTS = [
    pytest.param(killed_and_empty, "postgres", False, marks=pytest.mark.postgres),
    pytest.param(flushed, "sqlite", False),
    pytest.param(paused, "postgres", False, marks=pytest.mark.postgres),
    pytest.param(killed_with_a_file, "sqlite", True),
]


def everybody_hears(rig):
    """More work than one worker of turns can hold: one that still consumes holds some, as its heartbeat shows."""
    for n in range(HEARING):
        rig.submit(Plan(id=f"hear{n}", rounds=0, gated=True))
    turns = [worker for worker in rig.workers.values() if worker.name.startswith("turns")]

    def everybody_works() -> bool:
        rig.restart_the_dead()  # a worker that Celery keeps from hearing Redis again ends itself
        return all(rig.runs_held_by(worker) for worker in turns)

    until(everybody_works, "each of them has work in hand")
    (rig.room / "gate").touch()
    rig.wait_until_done()


@pytest.mark.parametrize(("fault", "backend", "appendonly"), FAULTS)
def test_nothing_is_lost_or_doubled(fault, backend, appendonly, make_rig, migrated_database_url):
    rig = make_rig(migrated_database_url(backend), appendonly=appendonly, log_level="WARNING")
    rig.worker("turns-1", "--role", "turns", "--concurrency", "16")
    rig.worker("turns-2", "--role", "turns", "--concurrency", "16")
    rig.worker("tools", "--role", "tools", "--concurrency", "4")
    rig.ready()
    for n in range(TURNS // 2):
        rig.submit(Plan(id=f"a{n}", seconds=0.05, latency=0.1), f"t{n % 20}")
    until(lambda: TURNS // 2 - rig.unfinished() >= 5, "the load is on its way", pause=0.02)

    fault(rig)
    for n in range(TURNS // 2):
        rig.submit(Plan(id=f"b{n}", seconds=0.05, latency=0.1), f"t{n % 20}")
    rig.wait_until_done(meanwhile=rig.restart_the_dead)
    everybody_hears(rig)

    assert len(rig.rows("turns")) == TURNS + HEARING
    assert {turn["disposition"] for turn in rig.rows("turns")} == {"answered"}
    check_rig(rig)


def test_worker_with_work_in_flight_and_free_slots_survives_the_loss_of_redis(make_rig, migrated_database_url):
    """Celery ends here without `_connparams` of workers/transport.py."""
    rig = make_rig(migrated_database_url("sqlite"), lease=30, beat=1)
    worker = rig.worker("all", "--role", "all", "--concurrency", "4")
    rig.ready()
    pid = worker.pid
    rig.submit(Plan(id="in-hand", rounds=0, gated=True))
    until(lambda: rig.facts(what="model"), "the model is asked")

    rig.broker.kill()
    rig.broker.start()
    (rig.room / "gate").touch()
    rig.wait_until_done()
    rig.submit(Plan(id="after"))
    rig.wait_until_done()

    assert worker.alive
    assert worker.pid == pid
    assert len(rig.facts(what="model", plan="in-hand")) == 1, "the call in hand was finished, not made again"
    check_rig(rig)


def test_turns_are_taken_in_while_there_is_no_redis(make_rig, migrated_database_url):
    rig = make_rig(migrated_database_url("sqlite"))
    rig.worker("all", "--role", "all", "--concurrency", "4")
    rig.ready()

    rig.broker.kill()
    rig.submit(Plan(id="meanwhile"))
    with contextlib.suppress(RedisError):
        assert rig.redis.ping() is None
    rig.broker.start()
    rig.wait_until_done(meanwhile=rig.restart_the_dead)

    assert rig.row("turns")["disposition"] == "answered"
    check_rig(rig)
