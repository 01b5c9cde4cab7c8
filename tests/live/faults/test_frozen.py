"""Processes that are stopped for longer than a lease and resume: they were not dead, and their results count."""

from __future__ import annotations

import time

import psutil
import pytest

from support.rig import Plan
from support.rig_checks import check_rig
from support.waiting import until

pytestmark = [pytest.mark.redis, pytest.mark.slow]
LEASE = 3
LONG = 2.5 * LEASE
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
    rig.wait_until_done(60)

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
    rig.wait_until_done(60)

    assert len(begun(rig, "unsafe")) == 1
    assert questions(rig) == []
    check_rig(rig)


def test_suspended_machine_takes_no_process_for_dead_when_it_resumes(rig):
    fleet(rig, "tools")
    rig.submit(Plan(id="sleep", tools=("unsafe",), seconds=1.0))
    rig.submit(Plan(id="model", rounds=0, latency=2.0))
    until(lambda: begun(rig, "unsafe") and rig.facts(what="model", plan="model"), "both are at work")
    everybody = [one for worker in rig.workers.values() for one in tree(worker.pid)]

    for one in everybody:
        one.suspend()
    wait_longer_than_a_lease(LONG)
    for one in reversed(everybody):
        one.resume()
    rig.wait_until_done(60)

    assert len(begun(rig, "unsafe")) == 1
    assert questions(rig) == []
    assert len(rig.facts(what="model", plan="model")) == 1
    check_rig(rig)


def test_child_whose_call_was_reassigned_ends_before_it_acts(rig):
    """A worker with all its processes is stopped while others run: for them it is dead. Then it resumes."""
    fleet(rig, "one", "two")
    rig.submit(Plan(id="pay", tools=("charge_on_record",), seconds=8 * LEASE))
    first = until(lambda: begun(rig, "charge_on_record"), "the call begins")[0]
    holder = next(w for w in rig.workers.values() if first["pid"] in {one.pid for one in tree(w.pid)})

    stopped = tree(holder.pid)
    for one in stopped:
        one.suspend()
    until(lambda: len(begun(rig, "charge_on_record")) == 2, "another has it", patience=30)
    for one in stopped:
        one.resume()
    until(lambda: not psutil.pid_exists(first["pid"]), "the child is ended")
    rig.wait_until_done(90)

    assert "another worker has claimed this call" in holder.said()
    book = (rig.room / "book.jsonl").read_text().splitlines()
    assert len(book) == 1
    assert rig.row("turns", dedupe_key="pay")["disposition"] == "answered"


def tree(pid):
    """The parent first: the process that resumes first may end the others."""
    parent = psutil.Process(pid)
    return [parent, *parent.children(recursive=True)]


def wait_longer_than_a_lease(seconds):
    """Longer than a lease."""
    over = time.monotonic() + seconds
    until(lambda: time.monotonic() > over, "time passes", patience=seconds + 5)
