"""Turns that plan their rounds, in real processes: killed in every round and at random, shown, and not paid to the end.

What the planner was asked is read from the requests that came in over HTTP, what was done from rows and ledger.
"""

from __future__ import annotations

import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from contextlib import closing, suppress
from functools import partial

import psutil
import pytest
from redis import Redis

from support.databases import BACKENDS
from support.processes import descendants
from support.rig import Plan, Rig
from support.rig_checks import check_rig
from support.rig_plans import (
    check_no_plan_was_requested_again,
    check_planned,
    key_of,
    lingering,
    planner_requests,
    times,
)
from support.waiting import until

pytestmark = [pytest.mark.redis, pytest.mark.slow]

ROUNDS, WIDTH = 5, 4
IN_EVERY_ROUND = ("pure", "lingers", "idempotent", "lingers")
LEASE = {"lease": 10, "beat": 1, "sweep": 0.5}  # a process that lives does not lose its own, also on a busy machine


@pytest.fixture(scope="module", params=BACKENDS)
def fleet(request, databases, redis_databases, tmp_path_factory):
    url, redis_url = databases.migrated(request.param), next(redis_databases)
    with Redis.from_url(redis_url) as redis:
        redis.flushdb()
    with closing(Rig(tmp_path_factory.mktemp("rig"), url, redis_url, poison_after=10_000, **LEASE)) as rig:
        rig.worker("turns", "--role", "turns", "--concurrency", "8")
        rig.worker("tools", "--role", "tools", "--concurrency", str(WIDTH))
        rig.ready()
        yield rig
    databases.drop(url)


@pytest.fixture
def rig(fleet):
    """The fleet of all these tests, and no prompts of earlier tests."""
    fleet.model.requests.clear()
    fleet.restart_the_dead()
    fleet.ready()
    return fleet


def kill_all(rig: Rig) -> None:
    for worker in rig.workers.values():
        worker.kill()
    assert rig.restart_the_dead() == list(rig.workers)


def kill_processes_of(rig: Rig, calls: list[dict]) -> None:
    """The processes that work on these calls, and not the worker that they belong to."""
    pids = {fact["key"]: fact["pid"] for fact in rig.facts(what="tool", phase="begin")}
    for call in calls:
        os.kill(pids[key_of(call)], signal.SIGKILL)


BOTH = 2  # the round in which all workers die with all their processes; in the others those die that have calls in hand


def test_a_sigkill_in_every_round_loses_and_doubles_no_record_and_pays_for_no_plan_twice(rig):
    plan = Plan(id="killed", rounds=9, tools=IN_EVERY_ROUND)
    turn, began = rig.submit(plan, agent="planner"), time.monotonic()

    for index in range(ROUNDS):
        calls = until(partial(lingering, rig, turn, index), f"round {index} is half done")
        assert [info["round_index"] for info in planner_requests(rig, plan)] == list(range(index + 1))
        if index == BOTH:
            kill_all(rig)
        else:
            kill_processes_of(rig, calls)
    rig.wait_until_done()

    print(f"{ROUNDS} rounds with a SIGKILL each: {time.monotonic() - began:.1f} s")
    logs = check_planned(rig, plan, turn, rounds=ROUNDS)
    assert Counter(info["round_index"] for info in planner_requests(rig, plan)) == dict.fromkeys(range(ROUNDS), 1)
    same = [{**log, "call_id": ""} for log in logs[WIDTH - 1 :: WIDTH]]
    assert same == [same[0]] * ROUNDS, "identical records are kept"
    rows = {key_of(row): row for row in rig.rows("calls", run_id=rig.row("turns", id=turn)["run_id"])}
    begun, ended = times(rig, "begin"), times(rig, "end")
    assert {key: ended[key] for key in rows} == dict.fromkeys(rows, 1)
    assert {key: begun[key] for key in rows} == {key: 1 + (row["tool"] == "lingers") for key, row in rows.items()}
    check_rig(rig)


TURNS, MOST, KILLS = 10, 100, 4
LATENCY = 0.5  # of the planner


class Mischief:
    """At random a worker is lost, or one of its children, each with something in hand. A supervisor starts others.

    A kill counts if what was in hand has come to no end before it.
    """

    def __init__(self, rig: Rig) -> None:
        self._rig = rig
        self._chance = random.Random(14)
        self.victims = [self._chance.choice(("turns", "tools", "child", "child")) for _ in range(KILLS)]
        self._next = time.monotonic() + 0.5
        self.kills: list[str] = []

    def go_on(self) -> None:
        self._rig.restart_the_dead()
        if self.victims and time.monotonic() > self._next and self._kill(self.victims[0]):
            self.kills.append(self.victims.pop(0))
            self._next = time.monotonic() + self._chance.uniform(0.2, 0.8)

    def _kill(self, name: str) -> bool:
        """False: it had nothing in hand."""
        worker = self._rig.workers["turns" if name == "turns" else "tools"]
        in_hand = self._planners() if name == "turns" else self._calls()
        if not in_hand or not worker.is_ready:
            return False
        if name == "child":
            in_hand = in_hand[:1]
            with suppress(psutil.NoSuchProcess):
                child = psutil.Process(in_hand[0]["pid"])
                child.kill()
                psutil.wait_procs([child], timeout=10)
        else:
            worker.kill()
        return bool(self._without_plan(in_hand) if name == "turns" else self._without_end(in_hand))

    def _planners(self) -> list[dict]:
        """Those who were asked a moment ago and have not answered."""
        asked = [fact for fact in self._rig.facts(what="planner") if time.time() - fact["at"] < LATENCY / 2]
        return self._without_plan(asked)

    def _without_plan(self, asked: list[dict]) -> list[dict]:
        plan_of = {row["run_id"]: json.loads(row["text"])["id"] for row in self._rig.rows("turns")}
        bodies = [(plan_of[row["run_id"]], row["body"]) for row in self._rig.rows("journal", kind="PlanCommitted")]
        recorded = {(plan, body["round"]) for plan, body in bodies}
        return [fact for fact in asked if (fact["plan"], fact["round"]) not in recorded]

    def _calls(self) -> list[dict]:
        """Those that the children have in hand."""
        pids = {child.pid for child in descendants(self._rig.workers["tools"].pid)}
        return self._without_end([f for f in self._rig.facts(what="tool", phase="begin") if f["pid"] in pids])

    def _without_end(self, begun: list[dict]) -> list[dict]:
        ended = times(self._rig, "end")
        return [fact for fact in begun if not ended[fact["key"]]]


def test_ten_turns_that_plan_survive_random_kills(rig):
    tools = ("pure", "idempotent", "pure", "idempotent")
    plans: list[Plan] = []
    turns: list[str] = []
    began, mischief = time.monotonic(), Mischief(rig)
    while not plans or mischief.victims:
        assert len(plans) < MOST, f"nothing was in hand of {mischief.victims}"
        more = range(len(plans), len(plans) + TURNS)
        plans += [Plan(id=f"p{n}", rounds=9, tools=tools, seconds=0.1, latency=LATENCY) for n in more]
        turns += [rig.submit(plan, agent="planner") for plan in plans[more.start :]]
        rig.wait_until_done(meanwhile=mischief.go_on)
    took = time.monotonic() - began

    for plan, turn in zip(plans, turns, strict=True):
        check_planned(rig, plan, turn, rounds=ROUNDS)
    asked = sum(len(planner_requests(rig, plan)) for plan in plans)
    begun = Counter(fact["key"] for fact in rig.facts(what="tool", phase="begin") if fact["name"] in tools)
    again = [key for key, count in begun.items() if count > 1]
    print(f"{took:.1f} s, kills {mischief.kills}, {len(again)} calls begun again")
    print(f"{asked} planner requests for {len(plans) * ROUNDS} plans")
    assert len(mischief.kills) == KILLS
    assert again, "some calls were begun again: their process was lost meanwhile"
    assert asked > len(plans) * ROUNDS, "some planners were asked again: their turns worker was lost meanwhile"
    assert {row["disposition"] for row in rig.rows("turns")} == {"answered"}
    check_no_plan_was_requested_again(rig)
    check_rig(rig)


def chordage(rig: Rig, *arguments: str) -> str:
    command = [sys.executable, "-m", "chordage.workers.cli", *arguments]
    done = subprocess.run(command, cwd=rig.folder, env=rig.env, capture_output=True, text=True, check=False, timeout=99)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_plans_are_shown_where_they_were_made(rig):
    turn = rig.submit(Plan(id="shown", rounds=2, tools=("pure", "idempotent")), agent="planner")
    rig.wait_until_done()

    shown = chordage(rig, "show", rig.row("turns", id=turn)["run_id"])
    steps = re.findall(r"^  (\d+)  (plan|tools|model)\b.*?(\d commands|ends: \w+|$)", shown, re.MULTILINE)
    assert [step[1:] for step in steps] == [
        ("plan", "2 commands"), ("tools", ""), ("plan", "2 commands"), ("tools", ""), ("plan", "ends: response"),
        ("model", ""),
    ]  # fmt: skip
    assert [int(number) for number, *_ in steps] == list(range(1, 7))


TAIL = 20.0  # seconds for which the planner's stream would continue


def test_planner_stream_is_ignored_after_response(rig):
    turn = rig.submit(Plan(id="cut", rounds=0, tail=TAIL), agent="planner")
    rig.wait_until_done()

    body = rig.row("journal", run_id=rig.row("turns", id=turn)["run_id"], kind="PlanCommitted")["body"]
    (asked,), (answered,) = rig.facts(what="planner", plan="cut"), rig.facts(what="model", plan="cut")
    after = answered["at"] - asked["at"]
    print(f"of a stream of {TAIL:g} s {body['text']!r} was heard; {after * 1000:.0f} ms from the planner to the answer")
    assert body["ends"] == "response"
    assert len(body["text"]) <= 50, "of more than 400 characters"
    assert after < TAIL / 2
