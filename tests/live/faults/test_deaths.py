"""A killed worker's turns move on soon, and not when their leases run out, as by default."""

from __future__ import annotations

import time

import psutil
import pytest

from support import far_worker
from support.rig import Plan, Rig
from support.rig_checks import check_rig
from support.waiting import until

pytestmark = [pytest.mark.redis, pytest.mark.slow]

LEASE = 60  # seconds, twice as long as by default: nothing here may wait for it
SETTINGS = {"lease": LEASE, "beat": 10, "sweep": 5, "log_level": "INFO"}
SOON = 40  # seconds, also on a busy machine: who waits for a lease that was taken before the kill needs longer
TURNS = 24
MOMENTS = {
    "models are asked": {"what": "model", "index": 0},
    "tools are at work": {"what": "tool", "phase": "begin"},
    "first turns are about to end": {"what": "model", "index": 1},
}
FAR = (far_worker.__file__,)


def two_workers(rig: Rig, **more) -> None:
    for name in ("one", "two"):
        rig.worker(name, "--role", "all", "--concurrency", "8", **more)
    rig.ready()


def seconds_after_a_kill(rig: Rig, moment: str) -> float:
    """Under a load of more turns than two workers have slots; nothing restarts the worker."""
    plans = [Plan(id=f"p{n}", tools=("pure", "idempotent"), latency=0.3, seconds=0.3) for n in range(TURNS)]
    rig.send([rig.admit(plan, f"t-{plan.id}") for plan in plans])
    until(lambda: rig.facts(**MOMENTS[moment]), moment, pause=0.02)
    rig.workers["one"].kill()
    killed = time.monotonic()
    assert rig.unfinished(), "the kill came too late"
    rig.wait_until_done()
    return time.monotonic() - killed


@pytest.mark.parametrize("moment", MOMENTS)
def test_turns_of_a_killed_worker_do_not_wait_for_their_leases(make_rig, database_url, moment):
    rig = make_rig(database_url, **SETTINGS)
    two_workers(rig)

    assert seconds_after_a_kill(rig, moment) < SOON
    assert {row["disposition"] for row in rig.rows("turns")} == {"answered"}
    check_rig(rig)


@pytest.mark.parametrize("victim", ["child", "worker"])
def test_call_that_is_on_record_is_made_again_soon(make_rig, database_url, victim):
    """Long enough for a heartbeat to have renewed its lease."""
    rig = make_rig(database_url, **SETTINGS)
    for name, role in (("turns", "turns"), ("tools-1", "tools"), ("tools-2", "tools")):
        rig.worker(name, "--role", role, "--concurrency", "2")
    rig.ready()
    rig.submit(Plan(id="p", tools=("lingers",)))
    holder = until(lambda: [row["worker"] for row in rig.rows("calls") if row["worker"]], "a heartbeat says who has it")
    child = psutil.Process(int(holder[0].rpartition(":")[2]))
    if victim == "child":
        child.kill()
    else:
        next(worker for worker in rig.workers.values() if worker.pid == child.ppid()).kill()
    killed = time.monotonic()

    rig.wait_until_done()

    assert time.monotonic() - killed < SOON
    assert len(rig.facts(what="tool", phase="begin")) == 2
    check_rig(rig)


def test_turns_of_a_lost_machine_do_not_wait_for_their_leases(make_rig, database_url):
    rig = make_rig(database_url, **SETTINGS)
    two_workers(rig, program=FAR)

    assert seconds_after_a_kill(rig, "tools are at work") < SOON
    assert {row["disposition"] for row in rig.rows("turns")} == {"answered"}
    check_rig(rig)
