"""Exploring finds planted faults, makes their schedules small, and reports nothing about tools that are right."""

from __future__ import annotations

import time

import pytest

from chordage import Context, tool
from chordage.orchestrator.core.agent import Placement, ToolMode
from chordage.testing import (
    DoubledEffect,
    FaultKind,
    FaultSchedule,
    ImpureTool,
    NoReplyLeft,
    ScheduleFailed,
    ScheduleRefused,
    World,
    WorldError,
    explore,
)


def asks(*calls):
    return {"tool_calls": [{"name": name, "arguments": arguments} for name, arguments in calls]}


def test_agent_of_a_world_takes_what_a_file_would_have() -> None:
    with World() as world:
        world.agent(
            "clerk", model=["Hello."], tool_mode="sequential", limits={"max_rounds": 3}, placements={"a": "here"}
        )
        spec = world.get("clerk")
    assert spec.limits.max_rounds == 3
    assert spec.tool_mode is ToolMode.SEQUENTIAL
    assert spec.placements["a"] is Placement.HERE


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"tool_mode": "sequentiel"}, "tool_mode: the value must be one of parallel, "),
        ({"limits": {"max_round": 3}}, "limits: .*max_round"),
        ({"plan": {"on_error": "give_up"}}, "plan: on_error: "),
        ({"colour": "red"}, "colour"),
    ],
)
def test_agent_of_a_world_refuses_what_a_file_could_not_have(options: dict, why: str) -> None:
    with World() as world, pytest.raises(WorldError, match=f"agent 'clerk': .*{why}"):
        world.agent("clerk", model=["Hello."], **options)


def run(world: World, tools, *calls, **agent) -> str:
    world.agent("cashier", tools=tools, model=[asks(*calls), "Done. {results}"], **agent)
    turn = world.submit("Please refund order 17.")
    world.run()
    return turn


def refunding(key, effect="idempotent", **options):
    """A scenario with a tool that pays; `key` says under which key."""

    def scenario(world: World) -> None:
        @tool(effect=effect, **options)
        def refund(cents: int, ctx: Context) -> str:
            world.effect("paid", key=key(ctx), cents=cents)
            return f"refunded {cents}"

        turn = run(world, [refund], ("refund", {"cents": 5}), ("refund", {"cents": 7}))
        world.assert_answered(turn)

    return scenario


def failure_of(scenario, **options) -> ScheduleFailed:
    with pytest.raises(ScheduleFailed) as failed:
        explore(scenario, **{"schedules": 0, **options})
    return failed.value


# Planted faults


def test_an_effect_without_a_key_is_found_and_the_schedule_has_one_fault():
    failure = failure_of(refunding(lambda _: None))

    assert isinstance(failure.error, DoubledEffect)
    assert failure.schedule == FaultSchedule.of((FaultKind.KILL_AFTER_TOOL, 1))
    assert "refund took effect twice for one call: paid cents=5." in str(failure)


def test_an_effect_that_is_lost_because_its_guard_was_stored_before_is_found():
    def scenario(world):
        marked = set()

        @tool(effect="idempotent")
        def refund(cents: int, ctx: Context) -> str:
            if ctx.idempotency_key not in marked:
                marked.add(ctx.idempotency_key)
                world.effect("marked", key=ctx.idempotency_key)
                world.effect("paid", key=ctx.idempotency_key)
            return "refunded"

        world.assert_answered(run(world, [refund], ("refund", {"cents": 5})))
        assert any(effect.name == "paid" for effect in world.effects)

    failure = failure_of(scenario)

    assert failure.schedule.token == "kill-after-effect:1"
    assert "inside the tool" in str(failure)


def test_a_tool_that_needs_another_of_its_round_to_come_first_is_found():
    def scenario(world):
        reserved = set()

        @tool(effect="idempotent")
        def reserve(seat: int) -> str:
            reserved.add(seat)
            return "reserved"

        @tool(effect="idempotent")
        def confirm(seat: int) -> str:
            return "confirmed" if seat in reserved else "no such seat"

        turn = run(world, [reserve, confirm], ("reserve", {"seat": 3}), ("confirm", {"seat": 3}))
        world.assert_answered(turn, "confirmed")

    failure = failure_of(scenario)

    assert len(failure.schedule.faults) == 1


def test_a_pure_tool_with_an_effect_is_found_without_any_fault():
    with pytest.raises(ImpureTool, match="refund is declared pure, and it has an effect: paid cents=5"):
        explore(refunding(lambda _: None, effect="pure"), schedules=0)


def test_a_tool_whose_result_depends_on_how_often_it_ran_is_found():
    def scenario(world):
        runs = []

        @tool(effect="pure")
        def number() -> int:
            runs.append(1)
            return len(runs)

        world.assert_answered(run(world, [number], ("number", {})), "Done. 1")

    assert len(failure_of(scenario).schedule.faults) == 1


def test_a_reconcile_hook_that_does_not_see_the_effect_is_found():
    failure = failure_of(refunding(lambda _: None, effect="reconcilable", reconcile=lambda: None))

    assert isinstance(failure.error, DoubledEffect)
    assert "the hook returned None" in str(failure)


def test_a_decision_that_is_applied_twice_is_found():
    def scenario(world):
        @tool(effect="idempotent")
        def refund(cents: int, ctx: Context) -> str:
            if ctx.decision is None:
                ctx.suspend("May I?")
            world.effect("paid", cents=cents)
            return "refunded"

        turn = run(world, [refund], ("refund", {"cents": 5}))
        (question,) = world.inbox()
        world.decide(question)
        world.run()
        world.assert_answered(turn)

    failure = failure_of(scenario)

    assert isinstance(failure.error, DoubledEffect)
    assert len(failure.schedule.faults) == 1


def test_a_fault_that_needs_two_faults_is_found_by_the_drawn_schedules_and_made_small():
    def scenario(world):
        @tool(effect="idempotent")
        def refund(cents: int, ctx: Context) -> str:
            return f"execution {sum(name == 'refund' for name, _ in world.executions)}"

        world.assert_answered(run(world, [refund], ("refund", {"cents": 5})))
        assert len(world.executions) < 3

    failure = failure_of(scenario, schedules=300)

    assert len(failure.schedule.faults) == 2
    assert "several faults, seed 0" in str(failure)


# Tools that are right


def test_tools_that_are_right_raise_no_alarm():
    seen = {}

    def looked_up(ctx: Context) -> str | None:
        return seen.get(ctx.idempotency_key)

    def scenario(world):
        seen.clear()

        @tool(effect="idempotent")
        def refund(cents: int, ctx: Context) -> str:
            world.effect("paid", key=ctx.idempotency_key, cents=cents)
            return "refunded"

        @tool(effect="unsafe")
        def post(text: str) -> str:
            world.effect("posted", text=text)
            return "posted"

        @tool(effect="reconcilable", reconcile=looked_up)
        def book(seat: int, ctx: Context) -> str:
            seen[ctx.idempotency_key] = f"booked {seat}"
            world.effect("booked", seat=seat)
            return f"booked {seat}"

        @tool(effect="pure")
        def look_up(order: int) -> int:
            return order

        calls = [("refund", {"cents": 5}), ("post", {"text": "hi"}), ("book", {"seat": 2}), ("look_up", {"order": 3})]
        world.agent("cashier", tools=[refund, post, book, look_up], model=[asks(*calls), "Done. {results}"])
        turn = world.submit("one")
        world.run()
        world.assert_answered(turn)
        names = [effect.name for effect in world.effects]
        assert names.count("paid") == names.count("booked") == 1
        assert names.count("posted") <= 1

    tried = explore(scenario, schedules=40)

    assert tried.single > 80
    assert tried.runs == 2 + tried.single + 40


def test_approvals_and_sub_agents_raise_no_alarm():
    def scenario(world):
        @tool(effect="idempotent", placement="spread")
        def refund(cents: int, ctx: Context) -> str:
            if ctx.decision is None:
                ctx.suspend("May I?")
            world.effect("paid", key=ctx.idempotency_key)
            return f"refunded: {ctx.decision}"

        world.agent(
            "front", agents=["cashier"], model=[asks(("ask_cashier", {"message": "refund"})), "Done. {results}"]
        )
        world.agent("cashier", tools=[refund], model=[asks(("refund", {"cents": 5})), "I say: {results}"])
        turn = world.submit("Please.")
        world.run()
        (question,) = world.inbox()
        world.decide(question, {"by": "me"})
        world.run()
        world.assert_answered(turn, "I say: refunded")

    assert explore(scenario, schedules=5).runs > 50


# Reports and replays


def test_the_report_replays_exactly():
    failure = failure_of(refunding(lambda _: None))

    again = failure_of(refunding(lambda _: None), replay=failure.schedule.token)

    assert again.steps == failure.steps
    assert f"explore(..., replay={failure.schedule.token!r})" in str(failure)
    assert explore(refunding(lambda ctx: ctx.idempotency_key), replay=failure.schedule.token).runs == 1


def test_a_schedule_gives_the_same_run_each_time():
    token = "here,drop:2,double:3,kill-after-commit:5,stall-in-tool:2,lose-redis:9"
    runs = []
    for _ in range(2):
        with World(schedule=FaultSchedule.read(token)) as world:
            refunding(lambda ctx: ctx.idempotency_key)(world)
            runs.append((world.steps, world.engine.rows("journal")))

    assert runs[0] == runs[1]
    assert {"LOST", "DOUBLED", "KILLED"} <= {word for step in runs[0][0] for word in step.split()}


def test_a_kill_before_a_commit_happens_once():
    with World(schedule=FaultSchedule.read("kill-before-commit:2")) as world:
        refunding(lambda ctx: ctx.idempotency_key)(world)

        assert sum("KILLED" in step for step in world.steps) == 1


def test_a_scenario_that_fails_without_a_fault_raises_its_own_error_with_its_steps():
    def scenario(world):
        run(world, [])
        raise ZeroDivisionError("mine")

    with pytest.raises(ZeroDivisionError, match="mine") as raised:
        explore(scenario)

    assert "scenario fails without any fault" in raised.value.__notes__[0]


def test_a_scenario_that_does_not_fail_each_time_is_reported_as_that():
    fails = iter([False, False, True])

    def scenario(world):
        run(world, [])
        assert not next(fails, False)

    assert "it does not fail each time" in str(failure_of(scenario))


def test_a_scenario_that_carries_nothing_out_is_refused():
    with pytest.raises(WorldError, match="carries nothing out.*world.run"):
        explore(lambda world: None)


def test_a_token_that_is_none_is_refused_with_what_there_is():
    with pytest.raises(ScheduleRefused, match=r"'kill:3' is none of drop:NUMBER, .*, here"):
        explore(lambda world: None, replay="kill:3")


def test_a_script_that_runs_out_fails_the_scenario_with_the_conversation():
    def scenario(world):
        world.agent("cashier", model=[asks(("refund", {}))])
        world.submit("Please refund order 17.")
        world.run()

    with pytest.raises(NoReplyLeft, match=r"(?s)no reply number 2 to 'Please refund.*assistant: refund\(\)"):
        explore(scenario)


def test_exploring_takes_seconds():
    began = time.process_time()

    tried = explore(refunding(lambda ctx: ctx.idempotency_key), schedules=40)

    assert tried.runs > 100
    assert time.process_time() - began < 10
