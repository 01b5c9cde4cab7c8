"""Processes that are stopped for longer than a lease and resume: they were not dead, and their results count."""

from __future__ import annotations

import time
from collections import Counter
from contextlib import suppress

import psutil
import pytest

from chordage.orchestrator.core.errors import Unavailable
from chordage.workers.presence import worker_name
from support import far_worker
from support.invariants import check_all
from support.rig import Plan, whole_lines
from support.rig_checks import check_rig
from support.waiting import until

pytestmark = [pytest.mark.redis, pytest.mark.slow]
LEASE = 6  # seconds: a process that lives does not lose its own, also where other tests have the processors
LONG = 1.75 * LEASE
FAR = (far_worker.__file__,)
TOOLS = 'tools = ["rig_tools", "rig_holding", "rig_payments"]'


@pytest.fixture
def rig(make_rig, migrated_database_url):
    rig = make_rig(migrated_database_url("sqlite"), lease=LEASE, beat=1, sweep=1)
    agent = rig.room / "agent.toml"
    text = agent.read_text().replace('tools = ["rig_tools"]', TOOLS)
    agent.write_text(text.replace('on_unknown = "fail"', 'on_unknown = "ask"'))
    return rig


def fleet(rig, *names):
    rig.worker("turns", "--role", "turns", "--concurrency", "4")
    for name in names:
        rig.worker(name, "--role", "tools", "--concurrency", "1")
    rig.ready()
    time_of_steadiness(rig)


def time_of_steadiness(rig):
    """Until leases are judged: the turns worker has been up for a beat."""
    rig.submit(Plan(id="warm-up", tools=("pure",)))
    rig.wait_until_done()


def begun(rig, name):
    return rig.facts(what="tool", phase="begin", name=name)


def questions(rig):
    return [row for row in rig.rows("suspensions") if row["why"] == "outcome_unknown"]


@pytest.mark.parametrize("tool", ["hogs", "hogs_purely"])
def test_a_tool_that_keeps_the_interpreter_to_itself_is_not_taken_for_dead(rig, tool):
    fleet(rig, "tools")
    rig.submit(Plan(id="hog", tools=(tool,), seconds=LONG))
    rig.wait_until_done()

    (call,) = (row for row in rig.rows("calls") if row["tool"] == tool)
    assert (call["status"], call["expiries"]) == ("succeeded", 0)
    assert len(begun(rig, tool)) == 1
    assert questions(rig) == []
    check_rig(rig)


def test_stopped_child_is_not_taken_for_dead(rig):
    fleet(rig, "tools")
    rig.submit(Plan(id="stop", tools=("unsafe",), seconds=0.5))
    pid = until(lambda: begun(rig, "unsafe"), "the call begins")[0]["pid"]

    psutil.Process(pid).suspend()
    wait_longer_than_a_lease(LONG)
    psutil.Process(pid).resume()
    rig.wait_until_done()

    assert len(begun(rig, "unsafe")) == 1
    assert questions(rig) == []
    check_rig(rig)


def test_suspended_machine_takes_no_process_for_dead_when_it_resumes(rig):
    fleet(rig, "tools")
    rig.submit(Plan(id="sleep", tools=("unsafe",), seconds=1.0))
    rig.submit(Plan(id="model", rounds=0, latency=2.0))
    until(lambda: begun(rig, "unsafe") and rig.facts(what="model", plan="model"), "both are at work")
    everybody = suspend([one for worker in rig.workers.values() for one in tree(worker.pid)])
    wait_longer_than_a_lease(LONG)
    resume(everybody)
    rig.wait_until_done()

    assert len(begun(rig, "unsafe")) == 1
    assert questions(rig) == []
    assert len(rig.facts(what="model", plan="model")) == 1
    check_rig(rig)


def test_child_whose_call_was_reassigned_ends_before_it_acts(rig):
    """A worker with all its processes is stopped while others run: for them it is dead. Then it resumes."""
    fleet(rig, "one", "two")
    rig.submit(Plan(id="pay", tools=("charge_in_time",)))
    first = until(lambda: begun(rig, "charge_in_time"), "the call begins")[0]
    holder = next(w for w in rig.workers.values() if first["pid"] in {one.pid for one in tree(w.pid)})

    child, stopped = psutil.Process(first["pid"]), stop_outside_transactions(rig, holder)
    until(lambda: rig.facts(what="tool", name="charge_in_time", phase="again"), "another has it")
    resume(stopped[::-1])  # the parent first: it has to end the child
    until(lambda: not child.is_running(), "the child is ended")
    (rig.room / "gate").touch()
    rig.wait_until_done()

    assert "another worker has claimed this call" in holder.said()
    assert len(whole_lines(rig.room / "book.jsonl")) == 1
    assert rig.row("turns", dedupe_key="pay")["disposition"] == "answered"


@pytest.mark.parametrize("placement", ["here", "together", "spread"])
def test_machine_that_is_frozen_until_it_counts_as_gone_changes_nothing_when_it_comes_back(
    make_rig, migrated_database_url, placement
):
    """As a pod with a single worker, with the default settings but for the longer lease. Its pure and idempotent calls
    are made again by the other one; an unsafe call keeps its lease, and so its result. On PostgreSQL, as machines share
    no SQLite: there a process that is stopped inside a transaction keeps every other one from writing.
    """
    rig = make_rig(
        migrated_database_url("postgres"), placement=placement, lease=90, beat=10, sweep=2, poison_after=10,
    )  # fmt: skip
    agent = rig.room / "agent.toml"
    agent.write_text(agent.read_text().replace('on_unknown = "fail"', 'on_unknown = "ask"'))
    for name in ("one", "two"):
        rig.worker(name, "--role", "all", "--concurrency", "4", program=FAR)
    rig.ready()
    time_of_steadiness(rig)

    victim, stopped = stop_a_worker_with_both(rig)
    began = time.monotonic()
    until(lambda: row_of(rig, victim)["gone_at"], "it counts as gone")
    silence = (row_of(rig, victim)["gone_at"] - row_of(rig, victim)["seen_at"]).total_seconds()
    assert silence >= rig.settings.gone_after, "not sooner"
    assert time.monotonic() - began < 30, "and not when its leases of 90 s run out"
    until(lambda: repeated(rig), "the other worker makes a call of it again", patience=50)
    resume(stopped)
    rig.wait_until_done()

    check_all(rig.runtime.store)
    assert {turn["disposition"] for turn in rig.rows("turns")} == {"answered"}
    assert {call["status"] for call in rig.rows("calls")} == {"succeeded"}
    assert max(Counter(fact["key"] for fact in begun(rig, "unsafe")).values()) == 1
    assert rig.rows("suspensions") == []
    until(lambda: row_of(rig, victim)["gone_at"] is None, "it shows that it lives")


def row_of(rig, worker):
    return rig.row("processes", id=worker_name(worker.pid))


def stop_a_worker_with_both(rig):
    """A worker that has an unsafe call in hand, and one that may run again, also when it has stopped; its processes."""
    for wave in range(10):
        for n in range(4):
            rig.submit(Plan(id=f"u{wave}-{n}", tools=("unsafe",), seconds=2.0))
            rig.submit(Plan(id=f"p{wave}-{n}", tools=("pure", "idempotent"), seconds=1.0))
        while True:
            worker = until(lambda: all_done(rig) or holds_both(rig, *rig.workers.values()), "one has both, or none")
            if worker is True:
                break
            stopped = suspend(tree(worker.pid))
            if holds_both(rig, worker) is not None:
                return worker, stopped
            resume(stopped)
    raise AssertionError("no worker had both at once in ten waves")


def stop_outside_transactions(rig, worker):
    """On SQLite a process that is stopped inside one keeps all others from writing."""
    for _ in range(10):
        stopped = suspend(tree(worker.pid))
        with suppress(Unavailable), rig.runtime.store.write():
            return stopped
        resume(stopped)
    raise AssertionError("it was stopped inside a transaction ten times")


def suspend(processes):
    for one in processes:
        one.suspend()
    return processes


def resume(stopped):
    """The last first. A parent that resumes may end the others at once."""
    for one in reversed(stopped):
        with suppress(psutil.NoSuchProcess):
            one.resume()


def holds_both(rig, *workers):
    for worker in workers:
        pids = {one.pid for one in tree(worker.pid)}
        ended = {fact["key"] for fact in rig.facts(what="tool", phase="end")}
        facts = [fact for fact in rig.facts(what="tool", phase="begin") if fact["pid"] in pids]
        in_hand = {fact["name"] for fact in facts if fact["key"] not in ended}
        if "unsafe" in in_hand and in_hand & {"pure", "idempotent"}:
            return worker
    return None


def all_done(rig):
    return {turn["status"] for turn in rig.rows("turns")} == {"done"}


def repeated(rig):
    times = Counter(fact["key"] for name in ("pure", "idempotent") for fact in begun(rig, name))
    return [key for key, count in times.items() if count > 1]


def tree(pid):
    """The parent first."""
    parent = psutil.Process(pid)
    return [parent, *parent.children(recursive=True)]


def wait_longer_than_a_lease(seconds):
    """Longer than a lease."""
    over = time.monotonic() + seconds
    until(lambda: time.monotonic() > over, "time passes", patience=seconds + 60)
