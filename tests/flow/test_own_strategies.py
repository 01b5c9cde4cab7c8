"""Strategies and planners that are user code: found by name, and unable to break more than their run."""

from __future__ import annotations

import sys
from types import ModuleType

import pytest

from chordage.orchestrator.core.agent import OnPlannerError, PlanSpec
from chordage.orchestrator.core.errors import InvalidMessage
from chordage.orchestrator.core.moves import Finish, Infer, RunTools
from chordage.orchestrator.core.reasons import NATURAL_END
from support.fakes import rounds_of, spoken
from support.one_turn import change_agent, play


def two_rounds_and_no_more(view):
    if view.reply is None:
        return Infer(offer_tools=view.rounds < 2)
    return RunTools() if view.reply.asks else Finish(ending=NATURAL_END)


def leaves(view):
    raise SystemExit(3)


def breaks(view):
    raise ZeroDivisionError("in the strategy")


def says_nothing(view):
    return None


def one_round(asked):
    if asked["info"]["done_plans"]:
        return {"next_action": "response"}
    return {"tool_command": {"tool_name": "pure", "tool_kwargs": {"n": 7}}}


def breaks_down(asked):
    raise ZeroDivisionError("in the planner")


@pytest.fixture(autouse=True)
def _importable(monkeypatch):
    module = ModuleType("own_code")
    for function in (two_rounds_and_no_more, leaves, breaks, says_nothing, one_round, breaks_down):
        setattr(module, function.__name__, function)
    monkeypatch.setitem(sys.modules, "own_code", module)


def test_custom_strategy_decides(world):
    change_agent(world, strategy="own_code:two_rounds_and_no_more")
    world.submit()
    world.models.script = lambda prompt: rounds_of(1, rounds=9)(prompt) if prompt.offers else spoken("enough")
    world.run_dry()

    assert [len(prompt.offers) > 0 for prompt in world.models.prompts] == [True, True, False]
    assert world.row("turns")["disposition"] == "answered"


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("breaks", "strategy 'own_code:breaks' raised ZeroDivisionError: in the strategy"),
        ("leaves", "strategy 'own_code:leaves' raised SystemExit: 3"),
        ("says_nothing", "strategy 'own_code:says_nothing' returned None, which is no move"),
    ],
)
def test_failing_custom_strategy_ends_its_run_with_the_reason(world, name, told):
    change_agent(world, strategy=f"own_code:{name}")
    play(world)

    run = world.row("runs")
    assert (run["reason"], run["code"], run["detail"]) == ("error", "strategy", told)


def test_message_cannot_name_code(world):
    with pytest.raises(InvalidMessage, match="use one of: direct, plan_execute, react"):
        world.submit(strategy="own_code:two_rounds_and_no_more")


def test_A7_a_function_may_plan_instead_of_a_model(world):
    change_agent(world, strategy="plan_execute", plan=PlanSpec(planner="own_code:one_round"))
    play(world, script=lambda prompt: spoken("done"))

    assert [order.arguments for order in world.tools.orders] == [{"n": 7}]
    assert len(world.models.prompts) == 1
    assert world.row("turns")["disposition"] == "answered"


@pytest.mark.parametrize(
    ("policy", "came_of_it"),
    [(OnPlannerError.RESPOND, ("natural_end", None)), (OnPlannerError.FAIL, ("error", "planner"))],
)
def test_a_function_that_breaks_ends_planning_or_the_run(world, policy, came_of_it):
    change_agent(world, strategy="plan_execute", plan=PlanSpec(planner="own_code:breaks_down", on_error=policy))
    play(world, script=lambda prompt: spoken("done"))

    run = world.row("runs")
    assert (run["reason"], run["code"]) == came_of_it
