"""Strategies of one's own in the hands of a consumer: a view in, a move out, held after each reply as any."""

from __future__ import annotations

import sys
from types import ModuleType

import pytest

from chordage.orchestrator.core.errors import StepRefused
from chordage.orchestrator.core.moves import Finish, Infer, Plan, RunPlan, RunTools
from chordage.orchestrator.core.planning.state import Execute
from chordage.orchestrator.core.reasons import NATURAL_END
from chordage.orchestrator.core.stepping import Control, Standing
from support.driving import USER, Consumer, asks, in_turn, text
from support.invariants import check_all
from support.one_turn import change_agent
from support.planning import plan_of, planner, planner_request


def one_round(view):
    if view.reply is None:
        return Infer(offer_tools=view.rounds < 1)
    return RunTools() if view.reply.asks and view.rounds < 1 else Finish(ending=NATURAL_END)


def greedy(view):
    """Carries out what was asked for though nothing was offered."""
    if view.reply is None:
        return Infer(offer_tools=False)
    return RunTools() if view.reply.asks else Finish(ending=NATURAL_END)


def one_plan(view):
    if view.plan is not None:
        judged = view.planning.judge(view.plan)
        return RunPlan(commands=judged.commands) if isinstance(judged, Execute) else Infer(offer_tools=False)
    if view.reply is not None:
        return Finish(ending=NATURAL_END)
    return Infer(offer_tools=False) if view.planning and view.planning.rounds else Plan()


def breaks(view):
    if view.reply is not None:
        raise ZeroDivisionError("in the strategy")
    return Infer()


def plans_too_late(view):
    return Plan() if view.reply is not None else Infer()


@pytest.fixture(autouse=True)
def _importable(monkeypatch):
    module = ModuleType("own_steps")
    for function in (one_round, greedy, one_plan, breaks, plans_too_late):
        setattr(module, function.__name__, function)
    monkeypatch.setitem(sys.modules, "own_steps", module)


def consume(world, name: str, script) -> Consumer:
    change_agent(world, strategy=f"own_steps:{name}")
    world.models.script = script
    turn = world.submit(control=Control.STEP)
    world.run_dry()
    return Consumer(world, turn)


def test_it_is_held_after_each_reply_and_decides_what_follows(world):
    it = consume(world, "one_round", in_turn(asks("a"), text("done")))
    assert it.next().reply.asks[0].id == "a"
    assert it.next().reply.text == "done"
    it.next()

    assert (it.look().standing, it.look().answer, it.runs) == (Standing.DONE, "done", 1)
    assert [len(prompt.offers) > 0 for prompt in world.models.prompts] == [True, False]
    check_all(world.store)


def test_what_its_consumer_pushes_counts_as_with_any(world):
    it = consume(world, "one_round", in_turn(asks("a"), text("done")))
    it.next()
    it.push(USER)
    it.do("run")

    assert (it.asked[-1], it.runs, it.look().answer) == (["hi", "U"], 0, "done")
    check_all(world.store)


def test_tool_that_was_not_offered_does_not_run_when_the_model_calls_it(world):
    it = consume(world, "greedy", in_turn(asks("a"), text("done")))
    it.do("run")

    assert (it.runs, it.look().answer, world.row("calls")["status"]) == (0, "done", "failed")
    check_all(world.store)


def test_one_that_plans_is_held_after_the_plan_and_behind_the_round(world):
    it = consume(world, "one_plan", planner(plan_of("pure"), plan_of("pure")))
    assert len(it.next().plan.commands) == 1
    it.do("plan", plan={"tool_command": {"tool_name": "idempotent", "tool_kwargs": {"n": 7}}})
    assert it.next().round.records[0]["result"] == "idempotent7"
    assert it.next().reply.text.startswith("answer:")
    it.next()

    assert len([prompt for prompt in world.models.prompts if planner_request(prompt)]) == 1
    check_all(world.store)


def test_one_that_does_not_plan_takes_no_plan(world):
    it = consume(world, "one_round", in_turn(text("done")))
    with pytest.raises(StepRefused, match="would not ask a planner") as error:
        world.step(it.turn, "plan", plan={"next_action": "response"})

    assert error.value.code == "no_plan"


@pytest.mark.parametrize(
    ("name", "told"), [("breaks", "raised ZeroDivisionError"), ("plans_too_late", "returned Plan after a reply")]
)
def test_failing_strategy_ends_its_run_with_the_reason(world, name, told):
    it = consume(world, name, in_turn(text("R")))
    it.next()
    it.next()

    shown = it.look()
    assert (shown.standing, shown.reason, shown.code) == (Standing.DONE, "error", "strategy")
    assert told in shown.detail
    check_all(world.store)
