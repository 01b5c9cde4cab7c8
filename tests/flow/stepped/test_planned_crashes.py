"""The process dies at every commit of a planned turn that is driven by `next` and `plan`: nothing is lost, or twice."""

from __future__ import annotations

import random

import pytest

from chordage.orchestrator.core.agent import PlanSpec
from chordage.orchestrator.core.intents import CallModel, CallTools, CommitRound, StepOn
from chordage.orchestrator.core.stepping import Control, Standing
from support.driving import Consumer
from support.invariants import check_all
from support.one_turn import change_agent
from support.planning import plan_of, planner, planner_request
from support.world import Died, World

OTHER = {"execution_commands": [{"tool_name": "idempotent", "tool_kwargs": {"n": 7}}]}
VERBS = [("next", {}), ("next", {}), ("next", {}), ("plan", {"plan": OTHER}), *[("next", {})] * 4]
COMMITS = 28


def begin(world: World) -> Consumer:
    change_agent(world, plan=PlanSpec())
    world.models.script = planner(plan_of("idempotent", "idempotent"), plan_of("pure"))
    turn = None
    for _ in range(5):
        try:
            turn = turn or world.submit("find out", control=Control.STEP, strategy="plan_execute", dedupe_key="d")
            world.run_dry()
            break
        except Died:
            forget(world)
    it = Consumer(world, turn or str(world.row("turns")["id"]))
    while it.look().standing is not Standing.READY:
        world.sweep(seconds=40)
        world.run_dry()
    return it


def forget(world: World) -> None:
    world.pending.clear()
    world.forget_the_dead()


def carry_on(world: World, it: Consumer, key: str, verb: str, args: dict) -> None:
    """One verb, again and again until it is done and the turn waits for its consumer."""
    for _ in range(40):
        try:
            world.step(it.turn, verb, key=key, **args)
            world.run_dry()
        except Died:
            forget(world)
            world.sweep(seconds=40)
            continue
        if it.look().standing in {Standing.HELD, Standing.DONE}:
            return
        world.sweep(seconds=40)
    raise AssertionError(f"{verb} does not come to its end: {it.look().standing}")


def drive(world: World) -> Consumer:
    it = begin(world)
    for number, (verb, args) in enumerate(VERBS):
        carry_on(world, it, f"k{number}", verb, args)
    return it


def check(world: World, it: Consumer) -> None:
    ended = world.row("journal", kind="RunFinished")["body"]["extra"]
    results = [log["result"] for log in ended["tool_logs"]]
    assert (results, ended["planning"]["rounds"]) == (["idempotent0", "idempotent1", "idempotent7"], 2)
    assert it.look().disposition == "answered"
    assert len(world.rows("journal", kind="PlanCommitted")) == 3
    assert len(world.rows("journal", kind="ReplyHeld")) == 4
    assert len(world.rows("journal", kind="ToolResultsCommitted")) == 2
    assert (len(world.rows("calls")), it.look().iteration) == (3, 4)
    check_all(world.store)


def test_without_a_crash(world):
    it = drive(world)

    check(world, it)
    assert (len(world.models.prompts), it.runs) == (4, 3)
    assert world.commits <= COMMITS


@pytest.mark.parametrize("before", [False, True], ids=["after", "before"])
@pytest.mark.parametrize("at", range(2, COMMITS + 1))
def test_A57_a_planned_turn_survives_death_at_any_commit(world, at, before):
    world.die_at, world.die_before = at, before

    it = drive(world)

    check(world, it)
    assert len(world.models.prompts) <= 5, "more model calls than the one that was cut"
    assert it.runs <= 5, "more executions than the round that was cut"


@pytest.mark.parametrize("at", range(1, 14))
def test_a_planned_turn_that_runs_to_its_end_survives_death_at_any_commit(world, at):
    it = begin(world)
    carry_on(world, it, "first", "next", {})
    world.step(it.turn, "plan", plan=OTHER)
    world.die_at = world.commits + at
    for _ in range(20):
        try:
            world.step(it.turn, "run", key="run")
            world.run_dry()
        except Died:
            forget(world)
        if it.look().standing is Standing.DONE:
            break
        world.sweep(seconds=40)

    assert it.look().disposition == "answered"
    assert [call["arguments"]["n"] for call in world.rows("calls")] == [7, 0]
    check_all(world.store)


@pytest.mark.parametrize("seed", range(8))
def test_intents_doubled_and_late_change_nothing(world, seed):
    """Every wake-up is delivered twice, the second time whenever it comes; also those of steps long gone."""
    chance, old = random.Random(seed), []
    it = begin(world)

    def run_dry():
        while world.pending:
            intent = world.pending.pop(chance.randrange(len(world.pending)))
            if isinstance(intent, CallModel | CallTools | CommitRound | StepOn):
                old.append(intent)
            world.deliver(intent)
            if old and chance.random() < 0.5:
                world.deliver(chance.choice(old))

    for number, (verb, args) in enumerate(VERBS):
        world.step(it.turn, verb, key=str(number), **args)
        run_dry()
        for intent in old:
            world.deliver(intent)
        run_dry()

    check(world, it)
    assert (len(world.models.prompts), it.runs) == (4, 3)
    assert len([prompt for prompt in world.models.prompts if planner_request(prompt)]) == 3
