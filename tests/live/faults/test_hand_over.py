"""What a worker leaves when it ends, or is ended, continues elsewhere, and soon."""

from __future__ import annotations

import os
import signal
import time

import psutil
import pytest

from support.rig import Plan
from support.rig_checks import check_rig
from support.waiting import until

pytestmark = [pytest.mark.redis, pytest.mark.slow]

NOISE = 20.0  # seconds that a busy machine may add


@pytest.mark.parametrize("role", ["turns", "tools"])
def test_a_run_moves_again_within_lease_and_sweep_whatever_the_visibility_timeout(
    role, make_rig, migrated_database_url
):
    rig = make_rig(migrated_database_url("sqlite"), lease=6, beat=1, sweep=1)
    rules = rig.settings
    assert rules.visibility_timeout == 3600, "a message that waits for it would move much later"
    for name in ("one", "two"):
        rig.worker(f"{role}-{name}", "--role", role, "--concurrency", "2")
    rig.worker("rest", "--role", "tools" if role == "turns" else "turns", "--concurrency", "4")
    rig.ready()
    cut = {"hangs": True, "tools": ("idempotent",)} if role == "turns" else {"tools": ("lingers",)}

    rig.submit(Plan(id="cut", **cut))
    until(lambda: _begun(rig, role), "work begins")
    killed_at = _kill_the_holder(rig, role)
    rig.wait_until_done()

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


# To open a pipe for reading waits, without an effort, until the test opens it for writing.
GATED_SCRIPT = """
def reply(prompt, attempt):
    open({gate!r}, "rb").close()
    return "done"
"""


@pytest.mark.postgres
def test_five_hundred_model_calls_wait_at_once_at_little_cost(make_rig, migrated_database_url):
    rig = make_rig(
        migrated_database_url("postgres"), lease=30, beat=10, sweep=60, budgets={"chat": 600}, log_level="WARNING"
    )
    gate = rig.folder / "gate"
    os.mkfifo(gate)
    rig.agent("slow", "scripted:slow.py", GATED_SCRIPT.format(gate=str(gate)))
    workers = [rig.worker(f"turns-{n}", "--role", "turns", "--concurrency", "300") for n in (1, 2)]
    rig.ready()
    rig.submit(Plan(id="warm-up", rounds=0))
    rig.wait_until_done()
    turns = [rig.admit(Plan(id=f"p{n}"), f"t{n}", agent="slow") for n in range(500)]
    peak = Peak(rig, workers)

    rig.send(turns)
    until(lambda: peak.look() == 500, "all are in flight at once: none has waited for the end of another's call")
    assert rig.unfinished() == 500, "and none has ended"
    opened = time.time()
    with gate.open("r+b", buffering=0):
        rig.wait_until_done(meanwhile=peak.look)
    took = max(row["done_at"].timestamp() for row in rig.rows("turns")) - opened

    assert {row["disposition"] for row in rig.rows("turns")} == {"answered"}
    assert peak.each < 2**20, f"a turn in flight takes {peak.each / 2**20:.2f} MiB"
    assert peak.connections <= 10, f"a process had {peak.connections} database connections"
    assert peak.running == 500, "all were in flight at once"
    print(f"500 turns were answered within {took:.2f} s behind the last reply")


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
            self.each = (self._memory() - self._idle) / max(running, 1)
        return running

    def _memory(self):
        return sum(psutil.Process(worker.pid).memory_info().rss for worker in self._workers)


def _connections(worker, rig):
    port = rig.runtime.store.engine.url.port
    return sum(c.raddr and c.raddr.port == port for c in psutil.Process(worker.pid).net_connections("tcp"))


LATENCY = 15.0  # of a model call: all are in flight at once also where a busy machine takes seconds to begin them


def test_turns_of_a_stopping_worker_are_answered_by_the_other(make_rig, migrated_database_url):
    rig = make_rig(
        migrated_database_url("sqlite"), lease=60, beat=10, sweep=60, soft_shutdown=60, budgets={"chat": 600}
    )
    rig.agent("slow", "scripted:slow.yaml", f"[{{text: 'done: {{user}}', latency: {LATENCY}}}]")
    leaving, staying = (rig.worker(f"turns-{n}", "--role", "turns", "--concurrency", "300") for n in (1, 2))
    rig.ready()
    rig.send([rig.admit(Plan(id=f"p{n}"), f"t{n}", agent="slow") for n in range(100)])
    until(lambda: rig.running() == 100, "all are in flight", pause=0.2)
    until(lambda: rig.runs_held_by(leaving), "the heartbeat says that it has turns in hand", pause=0.1)

    leaving.process.send_signal(signal.SIGTERM)
    told = time.time()
    code = leaving.process.wait(60)
    gone = time.time() - told
    rig.wait_until_done()
    after = max(row["done_at"].timestamp() for row in rig.rows("turns")) - told

    assert code == 0
    assert gone < LATENCY - 3, f"it waits for the end of no call, but the process took {gone:.2f} s to go"
    assert staying.alive
    assert after < 2 * LATENCY, f"nothing waited for a lease of 60 s, but the last turn took {after:.2f} s"
    assert {row["disposition"] for row in rig.rows("turns")} == {"answered"}
    check_rig(rig)


TOOL = 3.0  # seconds


def test_four_tools_at_once_take_little_longer_than_one(make_rig, database_url):
    rig = make_rig(database_url, lease=30, beat=10, log_level="WARNING")
    for name in ("one", "two"):
        rig.worker(f"tools-{name}", "--role", "tools", "--concurrency", "2")
    rig.worker("turns", "--role", "turns", "--concurrency", "4")
    rig.ready()
    rig.submit(Plan(id="warm-up", tools=("pure",) * 4, seconds=0.3))
    rig.wait_until_done()

    turn = rig.submit(Plan(id="round", tools=("pure", "unsafe", "idempotent", "pure"), seconds=TOOL))
    rig.wait_until_done()

    run = rig.row("turns", id=turn)["run_id"]
    asked = rig.rows("journal", run_id=run, kind="AssistantTurnCommitted")[0]["at"].timestamp()
    committed = rig.facts(what="model", plan="round", index=1)[0]["at"]
    assert committed - asked < 2 * TOOL, f"two were carried out one after the other: {committed - asked:.2f} s"
    places = [row["place"] for row in sorted(rig.rows("calls", run_id=run), key=lambda row: row["ended_at"])]
    assert sorted(places) == [0, 1, 2, 3]
    contents = "pure round.0.0 unsafe round.0.1 idempotent round.0.2 pure round.0.3"
    assert " ".join(rig.answer(turn).split()) == f"done round: {contents}"
    check_rig(rig)


def test_a_tool_within_the_grace_is_finished_and_its_worker_ends_well(make_rig, migrated_database_url):
    rig = make_rig(migrated_database_url("sqlite"), lease=30, soft_shutdown=30)
    leaving = _worker_at_work(rig, "idempotent", 7.0)

    leaving.process.send_signal(signal.SIGTERM)
    assert leaving.process.wait(60) == 0
    rig.wait_until_done()

    assert len(rig.facts(what="tool", phase="begin")) == 1, "it was not run again"
    assert rig.row("turns")["disposition"] == "answered"
    check_rig(rig)


def test_repeatable_tool_beyond_the_grace_is_released_at_once(make_rig, migrated_database_url):
    rig = make_rig(migrated_database_url("sqlite"), lease=60, soft_shutdown=1)
    leaving = _worker_at_work(rig, "lingers")

    leaving.process.send_signal(signal.SIGTERM)
    told = time.time()
    leaving.process.wait(60)
    cut = rig.facts(what="tool", phase="begin")[0]["pid"]
    assert not rig.facts(what="tool", phase="end", pid=cut), "it was cut"
    until(lambda: len(rig.facts(what="tool", phase="begin")) == 2, "it runs again elsewhere")
    again = rig.facts(what="tool", phase="begin")[1]["at"] - told
    rig.wait_until_done()

    assert again < 40, f"the lease is 60 s, but it was let go: it ran again after {again:.1f} s"
    assert rig.row("turns")["disposition"] == "answered"
    check_rig(rig)


def _worker_at_work(rig, tool, seconds=0.0):
    """The worker that has an idempotent call, which is on record since the first heartbeat."""
    rig.worker("turns", "--role", "turns", "--concurrency", "4")
    for name in ("one", "two"):
        rig.worker(f"tools-{name}", "--role", "tools", "--concurrency", "2")
    rig.ready()
    rig.submit(Plan(id="held", tools=(tool,), seconds=seconds))
    until(lambda: rig.rows("calls"), "a round is opened")
    return _holder(rig, "tools")
