"""What a worker leaves when it ends, or is ended, continues elsewhere, and soon."""

from __future__ import annotations

import signal
import time

import psutil
import pytest

from support.rig import Plan
from support.rig_checks import check_rig
from support.waiting import until

pytestmark = [pytest.mark.redis, pytest.mark.slow]

NOISE = 2.0  # what two shared cores may add to a bound


@pytest.mark.parametrize("role", ["turns", "tools"])
def test_a_run_moves_again_within_lease_and_sweep_whatever_the_visibility_timeout(
    role, make_rig, migrated_database_url
):
    rig = make_rig(migrated_database_url("sqlite"), lease=3, beat=1, sweep=1)
    rules = rig.settings
    assert rules.visibility_timeout == 3600
    for name in ("one", "two"):
        rig.worker(f"{role}-{name}", "--role", role, "--concurrency", "2")
    rig.worker("rest", "--role", "tools" if role == "turns" else "turns", "--concurrency", "4")
    rig.ready()
    slow = {"latency": 3.0} if role == "turns" else {"seconds": 3.0}

    rig.submit(Plan(id="cut", tools=("idempotent",), **slow))
    until(lambda: _begun(rig, role), "work begins")
    killed_at = _kill_the_holder(rig, role)
    rig.wait_until_done(60)

    again = [fact for fact in _begun(rig, role) if fact["at"] > killed_at]
    assert again, "the work was cut and had to be done again"
    assert again[0]["at"] - killed_at <= rules.lease + rules.sweep + NOISE
    assert rig.row("turns")["disposition"] == "answered"
    check_rig(rig)


def _begun(rig, role):
    return rig.facts(what="model") if role == "turns" else rig.facts(what="tool", phase="begin")


def _kill_the_holder(rig, role):
    _holder(rig, role).kill()
    return time.time()


def _holder(rig, role):
    """Once the heartbeat has put on record who it is. A tool runs in a child of its worker."""
    table, column = ("runs", "claim_worker") if role == "turns" else ("calls", "worker")
    claimed_by = until(lambda: rig.row(table)[column], "a heartbeat says who has it")
    pid = int(claimed_by.rpartition(":")[2])
    holder = pid if role == "turns" else psutil.Process(pid).ppid()
    return next(worker for worker in rig.workers.values() if worker.pid == holder)


LATENCY = 15.0  # of a model call; on two shared cores it takes seconds to begin five hundred


@pytest.mark.postgres
def test_five_hundred_model_calls_wait_at_once_at_little_cost(make_rig, migrated_database_url):
    rig = make_rig(migrated_database_url("postgres"), sweep=60, budgets={"chat": 600}, log_level="WARNING")
    rig.agent("slow", "scripted:slow.yaml", f"[{{text: 'done: {{user}}', latency: {LATENCY}}}]")
    workers = [rig.worker(f"turns-{n}", "--role", "turns", "--concurrency", "300") for n in (1, 2)]
    rig.ready()
    rig.submit(Plan(id="warm-up", rounds=0))
    rig.wait_until_done()
    turns = [rig.admit(Plan(id=f"p{n}"), f"t{n}", agent="slow") for n in range(500)]
    peak = Peak(rig, workers)

    began = time.time()
    rig.send(turns)
    rig.wait_until_done(60, meanwhile=peak.look)
    took = max(row["done_at"].timestamp() for row in rig.rows("turns")) - began

    assert {row["disposition"] for row in rig.rows("turns")} == {"answered"}
    assert peak.each < 2**20, f"a turn in flight takes {peak.each / 2**20:.2f} MiB"
    assert peak.connections <= 10, f"a process had {peak.connections} database connections"
    assert peak.running == 500, "all were in flight at once"
    print(f"500 calls of {LATENCY} s were answered {took - LATENCY:.2f} s after the ideal")
    assert took < 2 * LATENCY, f"all were answered after {took:.2f} s: one has waited for the end of another's call"


class Peak:
    """What the workers took when most turns were in flight."""

    def __init__(self, rig, workers):
        self._rig, self._workers = rig, workers
        self._idle = self._memory()
        self.running, self.each, self.connections = 0, 0.0, 0

    def look(self):
        running = self._rig.running()
        self.connections = max(self.connections, *(_connections(worker, self._rig) for worker in self._workers))
        if running >= self.running:
            self.running = running
            self.each = (self._memory() - self._idle) / running

    def _memory(self):
        return sum(psutil.Process(worker.pid).memory_info().rss for worker in self._workers)


def _connections(worker, rig):
    port = rig.runtime.store.engine.url.port
    return sum(c.raddr and c.raddr.port == port for c in psutil.Process(worker.pid).net_connections("tcp"))


def test_turns_of_a_stopping_worker_are_answered_by_the_other(make_rig, migrated_database_url):
    rig = make_rig(migrated_database_url("sqlite"), lease=30, beat=10, sweep=60, budgets={"chat": 600})
    rig.agent("slow", "scripted:slow.yaml", "[{text: 'done: {user}', latency: 5.0}]")
    leaving, staying = (rig.worker(f"turns-{n}", "--role", "turns", "--concurrency", "300") for n in (1, 2))
    rig.ready()
    rig.send([rig.admit(Plan(id=f"p{n}"), f"t{n}", agent="slow") for n in range(100)])
    until(lambda: rig.running() == 100, "all are in flight", pause=0.2)
    until(lambda: rig.runs_held_by(leaving), "the heartbeat says that it has turns in hand", pause=0.1)

    leaving.process.send_signal(signal.SIGTERM)
    told = time.time()
    code = leaving.process.wait(10)
    gone = time.time() - told
    rig.wait_until_done(40)
    after = max(row["done_at"].timestamp() for row in rig.rows("turns")) - told

    assert code == 0
    assert gone < 5.0, f"the process took {gone:.2f} s to go"
    assert staying.alive
    assert after < 5.0 + 5.0, f"nothing waited for a lease of 30 s, but the last turn took {after:.2f} s"
    assert {row["disposition"] for row in rig.rows("turns")} == {"answered"}
    check_rig(rig)


def test_four_tools_of_one_second_take_little_more_than_one(make_rig, database_url):
    rig = make_rig(database_url, log_level="WARNING")
    for name in ("one", "two"):
        rig.worker(f"tools-{name}", "--role", "tools", "--concurrency", "2")
    rig.worker("turns", "--role", "turns", "--concurrency", "4")
    rig.ready()
    rig.submit(Plan(id="warm-up", tools=("pure",) * 4, seconds=0.3))
    rig.wait_until_done()

    turn = rig.submit(Plan(id="round", tools=("pure", "unsafe", "idempotent", "pure"), seconds=1.0))
    rig.wait_until_done()

    run = rig.row("turns", id=turn)["run_id"]
    asked = rig.rows("journal", run_id=run, kind="AssistantTurnCommitted")[0]["at"].timestamp()
    committed = rig.facts(what="model", plan="round", index=1)[0]["at"]
    assert committed - asked < 1.6, f"the round took {committed - asked:.2f} s"
    places = [row["place"] for row in sorted(rig.rows("calls", run_id=run), key=lambda row: row["ended_at"])]
    assert sorted(places) == [0, 1, 2, 3]
    contents = "pure round.0.0 unsafe round.0.1 idempotent round.0.2 pure round.0.3"
    assert " ".join(rig.answer(turn).split()) == f"done round: {contents}"
    check_rig(rig)


def test_a_tool_within_the_grace_is_finished_and_its_worker_ends_well(make_rig, migrated_database_url):
    rig, leaving = _with_a_tool_at_work(make_rig(migrated_database_url("sqlite"), lease=30, soft_shutdown=10), 7.0)

    leaving.process.send_signal(signal.SIGTERM)
    assert leaving.process.wait(11) == 0
    rig.wait_until_done()

    assert len(rig.facts(what="tool", phase="begin")) == 1, "it was not run again"
    assert rig.row("turns")["disposition"] == "answered"
    check_rig(rig)


def test_repeatable_tool_beyond_the_grace_is_released_at_once(make_rig, migrated_database_url):
    rig, leaving = _with_a_tool_at_work(make_rig(migrated_database_url("sqlite"), lease=30, soft_shutdown=1), 10.0)

    leaving.process.send_signal(signal.SIGTERM)
    told = time.time()
    leaving.process.wait(9)
    assert not rig.facts(what="tool", phase="end"), "it was cut"
    until(lambda: len(rig.facts(what="tool", phase="begin")) == 2, "it runs again elsewhere", patience=8)
    again = rig.facts(what="tool", phase="begin")[1]["at"] - told
    rig.wait_until_done()

    assert again < 1 + 5, f"the lease is 30 s, but it was let go: it ran again after {again:.1f} s"
    assert rig.row("turns")["disposition"] == "answered"
    check_rig(rig)


def _with_a_tool_at_work(rig, seconds):
    """An idempotent call that is on record since the first heartbeat, and the worker that has it."""
    rig.worker("turns", "--role", "turns", "--concurrency", "4")
    for name in ("one", "two"):
        rig.worker(f"tools-{name}", "--role", "tools", "--concurrency", "2")
    rig.ready()
    rig.submit(Plan(id="held", tools=("idempotent",), seconds=seconds))
    until(lambda: rig.rows("calls"), "a round is opened")
    return rig, _holder(rig, "tools")
