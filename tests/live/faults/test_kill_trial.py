"""Workers are killed under load, with calls wherever a turn may have them: nothing is lost, doubled or asked in vain.

`KILLS=200 pytest -s tests/live/faults/test_kill_trial.py` is the trial at length. It prints how long turns took.
"""

from __future__ import annotations

import itertools
import json
import os
import random
import statistics
import time
from collections import Counter
from datetime import datetime
from typing import Any

import pytest

from chordage.workers.presence import worker_name
from support.invariants import check_all
from support.rig import Plan, Rig, whole_lines
from support.rig_inbox import answer, inbox
from support.waiting import until

pytestmark = [pytest.mark.redis, pytest.mark.slow]

KILLS = int(os.environ.get("KILLS", "4"))
THREADS, IN_HAND = 60, 60
KINDS = (("pure", "pure"), ("idempotent", "pure"), ("unsafe",), ("pure", "unsafe", "idempotent"), ())
PLACEMENTS = ("here", "together", "spread", "auto")
SOON = 10  # seconds, in which a turn of a killed worker shall end
UNKNOWN = "outcome of an unsafe call is unknown"
AGENT = 'model = "fake:model"\nplacement = "{placement}"\non_unknown = "ask"\ntools = ["rig_tools"]\n'


class Trial:
    """Kills a worker with all its processes every second or so, answers questions, and starts workers again."""

    def __init__(self, rig: Rig) -> None:
        self._rig = rig
        self._chance = random.Random(13)
        self._next = time.monotonic() + 1.0
        self.kills = 0
        self.asked: Counter[str] = Counter()
        self.cut: Counter[str] = Counter()  # by what the ledger has of the call

    def go_on(self) -> None:
        self._rig.restart_the_dead()
        self._answer_questions()
        workers = list(self._rig.workers.values())
        if self.kills < KILLS and time.monotonic() >= self._next and all(worker.is_ready for worker in workers):
            self._chance.choice(workers).kill()
            self._next = time.monotonic() + self._chance.uniform(0.5, 1.5)
            self.kills += 1

    def _answer_questions(self) -> None:
        """What the ledger says of a call is final: its process is dead. The process may have died between the claim of
        the call and its first line, or between its last line and the commit: nothing can tell those apart.
        """
        for row in inbox(self._rig):
            key = key_of(self._rig.row("calls", id=row["call_id"]))
            phases = [fact["phase"] for fact in self._rig.facts(key=key)]
            assert row["why"] == "outcome_unknown"
            assert phases in ([], ["begin"], ["begin", "end"]), f"it ran twice: {key}"
            assert not self._holder_lives(row["call_id"]), "its process lives"
            self.asked[key] += 1
            self.cut[" and ".join(phases) or "claim"] += 1
            answer(self._rig, row, payload={"answer": "failed"})

    def _holder_lives(self, call_id: str) -> bool:
        """Who it was the worker says that judged it. Another process may have its number by now, and not its name."""
        lines = itertools.chain.from_iterable(whole_lines(worker.log) for worker in self._rig.workers.values())
        said = [json.loads(line) for line in lines if call_id in line and UNKNOWN in line]
        holder: str = said[-1]["worker"]
        return worker_name(int(holder.rpartition(":")[2])) == holder

    def makes_room(self) -> bool:
        self.go_on()
        return self._rig.unfinished() < IN_HAND


def key_of(call: dict[str, Any]) -> str:
    return f"{call['run_id']}:{call['ask_id']}:{call['generation']}"


def test_kills_lose_double_and_ask_nothing_in_vain(make_rig, migrated_database_url):
    rig = make_rig(migrated_database_url("postgres"), lease=30, beat=10, sweep=2, poison_after=10_000, log_level="INFO")
    for placement in PLACEMENTS:
        (rig.room / "agents" / f"{placement}.toml").write_text(AGENT.format(placement=placement))
    for name, role, size in (
        ("turns-1", "turns", 8),
        ("turns-2", "turns", 8),
        ("tools-1", "tools", 2),
        ("all", "all", 4),
    ):
        rig.worker(name, "--role", role, "--concurrency", str(size))
    rig.ready()
    trial, chance = Trial(rig), random.Random(17)

    for n in itertools.takewhile(lambda n: n < 40 or trial.kills < KILLS, itertools.count()):
        tools = chance.choice(KINDS)
        plan = Plan(id=f"p{n}", rounds=bool(tools), tools=tools, latency=0.2, seconds=chance.choice((0.0, 0.001, 0.1)))
        rig.submit(plan, f"t{n % THREADS}", agent=chance.choice(PLACEMENTS))
        until(trial.makes_room, "turns are answered", patience=150)
    rig.wait_until_done(150, meanwhile=trial.go_on)

    check_all(rig.runtime.store)
    turns = rig.rows("turns")
    assert len(turns) == n + 1
    assert {turn["disposition"] for turn in turns} == {"answered"}
    check_ledger(rig, trial)
    show(turns, trial)


def check_ledger(rig: Rig, trial: Trial) -> None:
    calls = {key_of(call): call for call in rig.rows("calls")}
    begun = Counter((fact["name"], fact["key"]) for fact in rig.facts(what="tool", phase="begin"))
    ended = {fact["key"] for fact in rig.facts(what="tool", phase="end")}
    effects = {key for name, key in begun if name != "pure"}
    assert effects <= set(calls), "an effect under a key that is not on record"
    assert [key for (name, key), times in begun.items() if name == "unsafe" and times > 1] == []
    assert max(trial.asked.values(), default=1) == 1, "a question was asked twice"
    failed = {key for key, call in calls.items() if call["status"] != "succeeded"}
    assert failed == set(trial.asked), "a call failed that no question was asked about, or the other way round"
    assert set(calls) - failed <= ended, "a call succeeded that never ended"


def show(turns: list[dict[str, Any]], trial: Trial) -> None:
    """How long turns took since they were the first of their thread. Those with an unsafe call may wait for its lease,
    and so are not looked at.
    """
    before: dict[str, datetime] = {}
    seconds = []
    for turn in sorted(turns, key=lambda turn: turn["arrival"]):
        first = max(turn["queued_at"], before.get(turn["thread_id"], turn["queued_at"]))
        before[turn["thread_id"]] = turn["done_at"]
        if "unsafe" not in json.loads(turn["text"])["tools"]:
            seconds.append((turn["done_at"] - first).total_seconds())
    seconds.sort()
    p95, slow = seconds[int(len(seconds) * 0.95)], [round(one, 1) for one in seconds if one > SOON]
    print(
        f"{trial.kills} kills, {len(turns)} turns, {len(trial.asked)} questions {dict(trial.cut)}; {len(seconds)} "
        f"turns without an unsafe call took {statistics.median(seconds):.1f} s in the median, {p95:.1f} s at the 95th "
        f"percentile, {seconds[-1]:.1f} s at worst; over {SOON} s: {slow}"
    )
