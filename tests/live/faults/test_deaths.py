"""How soon a killed worker's turns move on, with the default settings."""

from __future__ import annotations

import time

import psutil
import pytest

from support import far_worker
from support.rig import Plan, Rig
from support.rig_checks import check_rig
from support.waiting import until

pytestmark = [pytest.mark.redis, pytest.mark.slow]

DEFAULTS = {"lease": 30, "beat": 10, "sweep": 5, "log_level": "INFO"}
TURNS = 24
FAR = (far_worker.__file__,)


def two_workers(rig: Rig, **more) -> None:
    for name in ("one", "two"):
        rig.worker(name, "--role", "all", "--concurrency", "8", **more)
    rig.ready()


def seconds_after_a_kill(rig: Rig, after: float, *, tools: tuple[str, ...] = ("pure", "idempotent")) -> float:
    """Under a load of turns; nothing restarts the worker."""
    for n in range(TURNS):
        rig.submit(Plan(id=f"p{n}", tools=tools, latency=0.3, seconds=0.3), f"t{n}")
    time.sleep(after)
    rig.workers["one"].kill()
    killed = time.monotonic()
    assert rig.unfinished(), "the kill came too late"
    rig.wait_until_done(60)
    return time.monotonic() - killed


@pytest.mark.parametrize("after", [0.1, 0.5, 1.0])
def test_turns_of_a_killed_worker_end_within_ten_seconds(make_rig, database_url, after):
    rig = make_rig(database_url, **DEFAULTS)
    two_workers(rig)

    assert seconds_after_a_kill(rig, after) < 10
    assert {row["disposition"] for row in rig.rows("turns")} == {"answered"}
    check_rig(rig)


@pytest.mark.parametrize("victim", ["child", "worker"])
def test_call_that_is_on_record_is_made_again_soon(make_rig, database_url, victim):
    """Long enough for a heartbeat to have renewed its lease."""
    rig = make_rig(database_url, **DEFAULTS)
    for name, role in (("turns", "turns"), ("tools-1", "tools"), ("tools-2", "tools")):
        rig.worker(name, "--role", role, "--concurrency", "2")
    rig.ready()
    rig.submit(Plan(id="p", tools=("pure",), seconds=4.0))
    holder = until(lambda: [row["worker"] for row in rig.rows("calls") if row["worker"]], "a heartbeat says who has it")
    child = psutil.Process(int(holder[0].rpartition(":")[2]))
    if victim == "child":
        child.kill()
    else:
        next(worker for worker in rig.workers.values() if worker.pid == child.ppid()).kill()
    killed = time.monotonic()

    rig.wait_until_done(60)

    assert time.monotonic() - killed < 10
    assert len(rig.facts(what="tool", phase="begin")) == 2
    check_rig(rig)


def test_turns_of_a_lost_machine_end_within_fifteen_seconds(make_rig, database_url):
    rig = make_rig(database_url, **DEFAULTS)
    two_workers(rig, program=FAR)

    assert seconds_after_a_kill(rig, 0.5) < 15
    assert {row["disposition"] for row in rig.rows("turns")} == {"answered"}
    check_rig(rig)
