"""What a worker leaves when it ends, or is ended, goes on elsewhere, and soon."""

from __future__ import annotations

import signal
from collections import Counter

import psutil
import psycopg
import pytest

from support.rig import Plan, seconds_between
from support.rig_checks import check_rig
from support.waiting import until

pytestmark = [pytest.mark.redis, pytest.mark.slow]

NOISE = 2.0  # what two shared cores may add to a bound
IDEAL, MARGIN = 5.0, 1.5


@pytest.mark.parametrize("role", ["turns", "tools"])
def test_a_run_moves_again_within_lease_and_sweep_whatever_the_visibility_timeout(role, make_rig, database_url):
    rig = make_rig(database_url, lease=3, beat=1, sweep=1)
    rules = rig.settings
    assert rules.visibility_timeout == 3600
    for name in ("one", "two"):
        rig.worker(f"{role}-{name}", "--role", role, "--concurrency", "2")
    rig.worker("rest", "--role", "tools" if role == "turns" else "turns", "--concurrency", "4")
    rig.ready()
    slow = {"latency": 2.5} if role == "turns" else {"seconds": 2.5}

    rig.submit(Plan(id="cut", tools=("idempotent",), **slow))
    begun = until(lambda: _begun(rig, role), "work begins")
    holder = _holder(rig, role, begun)
    killed_at = _kill(rig, holder)
    rig.wait_until_done(60)

    again = _begun(rig, role, after=killed_at)
    assert again, "the work was cut and had to be done again"
    assert again[0]["at"] - killed_at <= rules.lease + rules.sweep + NOISE
    assert rig.row("turns")["disposition"] == "answered"
    check_rig(rig)


def _begun(rig, role, after=0.0):
    what = {"what": "model"} if role == "turns" else {"what": "tool", "phase": "begin"}
    return [fact for fact in rig.ledger(**what) if fact["at"] > after]


def _holder(rig, role, begun):
    """The worker that does the work: for a tool, the parent of the process that it ran in."""
    if role == "tools":
        parent = psutil.Process(begun[0]["pid"]).ppid()
        return next(worker for worker in rig.workers.values() if worker.pid == parent)
    until(lambda: rig.row("runs")["claim_worker"], "a heartbeat says who has it")
    pid = int(rig.row("runs")["claim_worker"].rpartition(":")[2])
    return next(worker for worker in rig.workers.values() if worker.pid == pid)


def _kill(rig, worker):
    import time

    worker.kill()
    return time.time()
