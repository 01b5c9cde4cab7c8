"""What happens beside a plan that is driven: questions, sub-agents, other messages, code that breaks, odd plans."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import pytest

from chordage.orchestrator import views
from chordage.orchestrator.core.agent import MixedRound, OnPlannerError, PlanSpec, SubAgent, ToolMode, WhenBusy
from chordage.orchestrator.core.errors import InvalidMessage, StepRefused
from chordage.orchestrator.core.phases import Hook
from chordage.orchestrator.core.stepping import Control, Standing, StepTerms
from chordage.orchestrator.core.verdicts import Exclude
from chordage.orchestrator.gateways.ports import ToolOutcome
from support import hooks
from support.driving import USER, Consumer
from support.invariants import check_all
from support.one_turn import change_agent
from support.planning import plan_of, planner, planner_request
from support.questions import approve, asks_once

FINISH = {"next_action": "response"}


def consume(world, *plans: str, spec: PlanSpec | None = None, **terms: Any) -> Consumer:
    change_agent(world, plan=spec or PlanSpec())
    world.models.script = planner(*plans)
    turn = world.submit("find out", strategy="plan_execute", control=Control.STEP, step=StepTerms(**terms))
    world.run_dry()
    return Consumer(world, turn)


def planner_requests(world) -> list[dict]:
    return [found for prompt in world.models.prompts if (found := planner_request(prompt))]


def statuses(it: Consumer) -> list[str]:
    shown = it.look().round
    assert shown is not None
    return [record["status"] for record in shown.records]


def logs(world) -> list[Any]:
    (ended,) = world.rows("journal", kind="RunFinished")
    return [log["result"] for log in ended["body"]["extra"]["tool_logs"]]


def refused(it: Consumer, verb: str, **args: Any) -> StepRefused:
    with pytest.raises(StepRefused) as error:
        it.world.step(it.turn, verb, **args)
    return error.value


# questions and sub-agents


@pytest.mark.parametrize("mode", list(ToolMode))
def test_call_with_a_question_leaves_its_round_with_the_consumer_until_it_is_answered(world, mode):
    world.tools.asks = asks_once(1)
    it = consume(world, plan_of("pure", "pure", "pure"))
    change_agent(world, tool_mode=mode)
    it.next()
    it.next()
    assert (it.look().standing, statuses(it)[:2]) == (Standing.HELD, ["ok", "waiting"])

    approve(world, world.inbox()[0])

    assert (it.look().standing, statuses(it)) == (Standing.HELD, ["ok", "ok", "ok"])
    it.do("run")
    assert (logs(world), it.look().disposition) == (["pure0", "pure1", "pure2"], "answered")
    check_all(world.store)


def test_planner_waits_with_a_mixed_round_and_is_called_once(world):
    world.tools.asks = asks_once(0)
    it = consume(world, plan_of("pure", "pure"))
    change_agent(world, mixed_round=MixedRound.WAIT)
    it.next()
    it.next()
    assert it.next().standing is Standing.WAITING
    assert len(planner_requests(world)) == 1

    approve(world, world.inbox()[0])

    assert (it.look().standing, it.look().plan.ends, len(planner_requests(world))) == (Standing.HELD, "response", 2)
    assert [one["status"] for one in planner_requests(world)[1]["info"]["done_plans"]] == ["ok", "ok"]
    it.do("run")
    check_all(world.store)


def test_an_answer_that_comes_while_the_next_plan_is_held_changes_the_record_and_not_the_plan(world):
    world.tools.asks = asks_once(1)
    it = consume(world, plan_of("pure", "pure"), plan_of("idempotent"))
    for _ in range(3):
        it.next()
    plan = it.look().plan
    approve(world, world.inbox()[0])
    assert (it.look().plan, it.look().standing) == (plan, Standing.HELD)
    it.next()

    assert statuses(it) == ["ok"]
    it.do("run")
    assert logs(world) == ["pure0", "pure1", "idempotent0"]
    check_all(world.store)


def test_answer_that_arrives_during_a_consumer_plan_leaves_the_plan_in_place(world):
    world.tools.asks = asks_once(0)
    it = consume(world, plan_of("pure"))
    it.next()
    it.next()
    it.do("plan", plan={"tool_command": {"tool_name": "idempotent", "tool_kwargs": {"n": 7}}})
    approve(world, world.inbox()[0])
    assert [one["tool_name"] for one in it.look().plan.commands] == ["idempotent"]
    it.next()
    it.do("run")

    assert (logs(world), len(planner_requests(world))) == (["pure0", "idempotent7"], 2)
    check_all(world.store)


def test_a_run_that_would_answer_waits_for_what_a_plan_has_left_open(world):
    world.tools.asks = asks_once(0)
    it = consume(world, plan_of("pure"))
    it.do("run")
    assert it.look().standing is Standing.WAITING

    approve(world, world.inbox()[0])

    assert (it.look().disposition, logs(world)) == ("answered", ["pure0"])
    check_all(world.store)


def test_a_sub_agent_of_a_plan_is_waited_for_without_losing_the_round(world):
    agents = world.agents.agents
    it = consume(world, plan_of("pure"))
    change_agent(world, agents=(SubAgent(agent="bob"),))
    agents["bob"] = type(agents["ada"])(name="bob", model="fake", instructions="bob")
    it.next()
    it.do("plan", plan={"tool_command": {"tool_name": "ask_bob", "tool_kwargs": {"message": "who?"}}})
    it.next()

    assert (it.look().standing, statuses(it)) == (Standing.HELD, ["ok"])
    it.do("run")
    assert [turn["disposition"] for turn in world.rows("turns")] == ["answered", "answered"]
    check_all(world.store)


# verbs


def test_the_same_key_is_the_same_plan_and_another_plan_under_it_is_refused(world):
    it = consume(world, plan_of("pure"))
    it.next()
    first = world.step(it.turn, "plan", key="k", plan=FINISH)
    again = world.step(it.turn, "plan", key="k", plan=FINISH)

    assert (again.rev, again.duplicate) == (first.rev, True)
    assert refused(it, "plan", key="k", plan={"use_tool": False}).code == "key_reused"
    assert refused(it, "plan", if_rev=first.rev - 1, plan=FINISH).code == "stale_rev"
    assert world.row("stepped")["rev"] == first.rev


@pytest.mark.parametrize(
    ("verb", "args"), [("plan", {"plan": FINISH}), ("messages", {"messages": [USER]}), ("next", {})]
)
def test_while_a_round_is_out_nothing_is_decided_over_its_head(world, verb, args):
    it = consume(world, plan_of("pure"))
    it.next()
    world.step(it.turn, "next")

    assert (refused(it, verb, **args).code, it.look().standing) == ("not_allowed", Standing.TOOLING)
    world.run_dry()
    assert statuses(it) == ["ok"]


def test_a_result_for_a_command_that_is_out_counts_before_its_own(world):
    it = consume(world, plan_of("idempotent", "pure"))
    it.next()
    world.step(it.turn, "next")
    rows = world.rows("calls")
    while len(rows) < 2:
        world.deliver(world.pending.pop(0))
        rows = world.rows("calls")
    standing = it.look().standing
    if standing is Standing.TOOLING:
        with pytest.raises(InvalidMessage, match="is no call of what is held"):
            world.step(it.turn, "tool_results", results=[{"ask_id": "elsewhere", "content": "mine"}])
    world.run_dry()
    assert statuses(it) == ["ok", "ok"]


@pytest.mark.parametrize(
    "plan",
    [
        {"execution_commands": [{"tool_name": "pure", "tool_kwargs": "{}"}] * 300},
        '{"next_action": " EXECUTE ", "tool_command": {"tool_name": "pure", "tool_kwargs": {"n": 0, "x": 1e400}}}',
        '{"execution_commands": [{"tool_name": "pu\\u0000re"}, {"tool_name": "pure"}]}',
        {"execution_commands": [{"tool_name": " pure "}, {"tool_name": "pure", "tool_kwargs": {"n": "x"}}]},
        {"execution_commands": [None, 1, {"tool_name": ""}, {"tool_name": "pure", "purpose": ["p"], "next": {"a": 1}}]},
        {"execution_commands": [{"tool_name": "pure", "tool_kwargs": {"n": 10**30}}]},
        {"next_action": None, "use_tool": None, "tool_commands": [{"tool_name": "pure", "tool_kwargs": []}]},
    ],
)
def test_an_odd_plan_is_refused_or_carried_out_and_never_more_than_that(world, plan):
    it = consume(world, plan_of("pure"))
    it.next()
    try:
        world.step(it.turn, "plan", plan=plan)
    except InvalidMessage as error:
        assert error.field == "plan"
    it.do("run")

    assert it.look().disposition == "answered"
    check_all(world.store)


def test_an_empty_plan_behind_a_round_ends_planning_and_steers_are_not_lost(world):
    it = consume(world, plan_of("pure"))
    it.next()
    it.next()
    it.do("plan", plan={"execution_commands": []})
    it.do("steer", text="S")
    it.next()
    assert it.look().reply.text.startswith("answer: find out S")
    it.next()
    check_all(world.store)


def test_planner_sees_only_the_replaced_history(world):
    it = consume(world, plan_of("pure"))
    it.do("params", params={}, messages=[USER])
    it.next()
    assert planner_requests(world)[0]["input"]["user_input"] == "U"
    it.do("run")

    assert it.look().answer.startswith("answer: U ")
    check_all(world.store)


def test_a_tool_that_a_plugin_keeps_back_is_kept_back_from_the_consumers_plan_too(world):
    hooks.install(world, hooks.plugin_for(Hook.BEFORE_INFERENCE, Exclude(tools=frozenset({"unsafe"}))))
    it = consume(world, plan_of("pure"))
    it.next()
    it.do("plan", plan={"tool_command": {"tool_name": "unsafe"}})
    assert it.look().plan.refused["0"]["status"] == "not_offered"
    it.next()

    assert (statuses(it), it.runs) == (["not_offered"], 0)


# other messages


@pytest.mark.parametrize("at", [1, 2, 3, 4])
@pytest.mark.parametrize("when_busy", [WhenBusy.INTERRUPT, WhenBusy.ROLLBACK])
def test_a_message_that_ends_the_run_ends_it_wherever_it_is_held(world, at, when_busy):
    it = consume(world, plan_of("pure"))
    for _ in range(at):
        it.next()
    turn = world.submit("instead", strategy="react", when_busy=when_busy)
    world.run_dry()

    assert it.look().standing is Standing.DONE
    assert views.turn(world.store, turn).disposition == "answered"
    assert ("find out" in views.turn(world.store, turn).answer) == (when_busy is WhenBusy.INTERRUPT)
    check_all(world.store)


@pytest.mark.parametrize("at", [1, 2, 3, 4])
def test_a_message_that_steers_is_planned_for_wherever_the_run_is_held(world, at):
    it = consume(world, plan_of("pure"))
    for _ in range(at):
        it.next()
    world.submit("and more", strategy="plan_execute", when_busy=WhenBusy.STEER)
    world.run_dry()
    it.do("run")

    assert planner_requests(world)[-1]["input"]["user_input"] == "find out\n\nand more"
    assert it.look().answer.startswith("answer: find out and more")
    assert {turn["disposition"] for turn in world.rows("turns")} == {"answered", "steered"}
    assert logs(world) == ["pure0"]
    check_all(world.store)


def test_a_message_that_is_queued_starts_when_the_driven_run_is_done(world):
    it = consume(world, plan_of("pure"))
    it.next()
    turn = world.submit("later", strategy="direct")
    world.run_dry()
    assert world.row("turns", id=turn)["status"] == "queued"
    it.do("run")

    assert world.row("turns", id=turn)["disposition"] == "answered"
    check_all(world.store)


# code that breaks


@pytest.fixture
def own_code(monkeypatch, request):
    """A module of its own for each test: planners are looked up once per process."""
    module = ModuleType(f"own_{abs(hash(request.node.name))}")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    return module


@pytest.mark.parametrize("policy", list(OnPlannerError))
def test_custom_planner_that_raises_leaves_the_run_with_its_consumer(world, own_code, policy):
    def breaks_down(_asked):
        raise ZeroDivisionError("in the planner")

    own_code.plan = breaks_down
    it = consume(world, spec=PlanSpec(planner=f"{own_code.__name__}:plan", on_error=policy))
    it.next()
    standing = Standing.HELD if policy is OnPlannerError.RESPOND else Standing.FAILED
    assert it.look().standing is standing
    it.do("plan", plan={"tool_command": {"tool_name": "pure", "tool_kwargs": {"n": 7}}})
    it.next()
    assert statuses(it) == ["ok"]
    it.do("plan", plan=FINISH)
    it.do("run")

    assert (it.look().disposition, logs(world)) == ("answered", ["pure7"])
    check_all(world.store)


def test_planner_that_raises_in_an_automatic_run_ends_it_and_keeps_the_records(world, own_code):
    def once(asked):
        if asked["info"]["done_plans"]:
            raise ZeroDivisionError("in the planner")
        return {"tool_command": {"tool_name": "pure", "tool_kwargs": {"n": 7}}}

    own_code.plan = once
    it = consume(world, spec=PlanSpec(planner=f"{own_code.__name__}:plan", on_error=OnPlannerError.FAIL))
    it.do("run")

    assert (it.look().code, [call["content"] for call in world.rows("calls")]) == ("planner", ["pure7"])
    check_all(world.store)


def test_an_executor_that_fails_is_the_failure_of_each_command_and_shown_to_the_consumer(world):
    it = consume(world, plan_of("pure", "unsafe"), spec=PlanSpec(executor="idempotent"))
    world.tools.run = lambda *_given, **_more: ToolOutcome(content="Error: out of order", code="error")
    it.next()
    it.next()

    assert statuses(it) == ["error", "error"]
    it.do("run")
    assert it.look().disposition == "answered"
    check_all(world.store)
