"""plan_execute in the engine: a planner lays down each round, the rows keep what came of it, an answer ends it."""

from __future__ import annotations

import json
from contextlib import suppress

import pytest

from chordage.orchestrator import stages
from chordage.orchestrator.core.agent import OnPlannerError, OutOfScope, PlanSpec
from chordage.orchestrator.core.errors import ModelFailed
from chordage.orchestrator.core.model import Fault
from chordage.orchestrator.core.transcript import ACTION_RESULTS
from chordage.orchestrator.core.verdicts import Block
from support.hooks import before_tool, install
from support.invariants import check_all
from support.one_turn import change_agent
from support.planning import plan_of, planner, planner_request
from support.questions import approve, asks_once
from support.world import Died, Header


def play(world, *plans, **spec):
    change_agent(world, strategy="plan_execute", plan=PlanSpec(**spec))
    world.models.script = planner(*plans)
    world.submit("find out", strategy="plan_execute")
    world.run_dry()
    return world.row("turns")


def planned(world) -> list[dict]:
    return [row["body"] for row in world.rows("journal", kind="PlanCommitted")]


def finished(world) -> dict:
    return world.row("journal", kind="RunFinished")["body"]


def test_two_rounds_are_planned_carried_out_and_answered_from(world):
    turn = play(world, plan_of("pure", "pure"), plan_of("pure"))

    asked = [found for prompt in world.models.prompts if (found := planner_request(prompt))]
    assert turn["disposition"] == "answered"
    assert [len(one["info"]["done_plans"]) for one in asked] == [0, 2, 3]
    assert [len(one["info"]["last_round_result"]) for one in asked] == [0, 2, 1]
    assert [one["input"]["user_input"] for one in asked] == ["find out"] * 3
    assert finished(world)["extra"]["planning"] == {"rounds": 2, "ends": "response"}
    assert [log["result"] for log in finished(world)["extra"]["tool_logs"]] == ["pure0", "pure1", "pure0"]
    check_all(world.store)


def test_answer_is_written_from_the_results_and_without_tools(world):
    play(world, plan_of("pure"))

    last = world.models.prompts[-1]
    assert (last.offers, last.said[0].text) == ((), "find out")
    assert last.said[-1].text.startswith(ACTION_RESULTS)
    assert "pure0" in last.said[-1].text


def test_plans_are_no_part_of_the_conversation(world):
    play(world, plan_of("pure"))
    world.submit("and now?", strategy="plan_execute")
    world.run_dry()

    said = [said.text for said in world.models.prompts[-1].said]
    assert said[0] == "find out"
    assert said[1].startswith("answer:")
    assert said[2] == "and now?"


def test_nothing_is_put_before_the_answer_where_nothing_was_done(world):
    play(world)
    assert [said.text for said in world.models.prompts[-1].said] == ["find out"]
    assert finished(world)["extra"]["tool_logs"] == []


def test_at_the_limit_of_rounds_no_further_plan_is_paid_for(world):
    turn = play(world, *[plan_of("pure")] * 9, max_rounds=2)

    assert turn["disposition"] == "answered"
    assert len([prompt for prompt in world.models.prompts if planner_request(prompt)]) == 2
    assert finished(world)["extra"]["planning"] == {"rounds": 2, "ends": "max_rounds"}


def test_a_tool_that_was_not_offered_is_a_failed_record_and_the_others_run(world):
    play(world, plan_of("pure", "nowhere"))

    assert [call["place"] for call in world.rows("calls")] == [0]
    assert [log["status"] for log in finished(world)["extra"]["tool_logs"]] == ["ok", "not_offered"]


def test_an_agent_may_refuse_a_plan_as_a_whole_that_is_out_of_scope(world):
    play(world, plan_of("pure", "nowhere"), out_of_scope=OutOfScope.REFUSE_BATCH)

    assert world.rows("calls") == []
    assert finished(world)["extra"]["planning"]["ends"] == "not_offered"
    assert [log["status"] for log in finished(world)["extra"]["tool_logs"]] == ["cancelled", "not_offered"]


def failing_at(index: int, plans):
    usual = planner(*plans)

    def reply(prompt):
        asked = planner_request(prompt)
        if asked is not None and asked["info"]["round_index"] == index:
            raise ModelFailed("no planner", fault=Fault.SERVER, attempts=())
        return usual(prompt)

    return reply


def test_failing_planner_loses_no_record_and_the_answer_is_written(world):
    change_agent(world, plan=PlanSpec())
    world.models.script = failing_at(1, [plan_of("pure")])
    world.submit("find out", strategy="plan_execute")
    world.run_dry()

    assert world.row("turns")["disposition"] == "answered"
    assert finished(world)["extra"]["planning"] == {"rounds": 1, "ends": "planner_error"}
    assert [log["result"] for log in finished(world)["extra"]["tool_logs"]] == ["pure0"]


def test_an_agent_may_rather_fail_than_answer_without_a_planner(world):
    change_agent(world, plan=PlanSpec(on_error=OnPlannerError.FAIL))
    world.models.script = failing_at(1, [plan_of("pure")])
    world.submit("find out", strategy="plan_execute")
    world.run_dry()

    run = world.row("runs")
    assert (run["reason"], run["code"]) == ("error", "model_server")
    assert [call["status"] for call in world.rows("calls")] == ["succeeded"]


def test_what_cannot_be_read_as_a_plan_ends_planning(world):
    play(world, "I would rather not say")
    assert finished(world)["extra"]["planning"]["ends"] == "unreadable"


def test_identical_records_are_kept(world):
    play(world, plan_of("pure"), plan_of("pure"), plan_of("pure"))
    assert [log["purpose"] for log in finished(world)["extra"]["tool_logs"]] == ["p0"] * 3


@pytest.mark.parametrize("before", [False, True])
@pytest.mark.parametrize("death", range(1, 17))
def test_a_death_at_any_commit_loses_no_record_and_doubles_none(world, death, before):
    change_agent(world, plan=PlanSpec())
    world.models.script = planner(plan_of("pure", "pure"), plan_of("pure"))
    world.submit("find out", strategy="plan_execute")
    world.die_at, world.die_before = world.commits + death, before
    with suppress(Died):
        world.run_dry()
    world.revive()
    world.recover()

    logs = finished(world)["extra"]["tool_logs"]
    assert [(log["purpose"], log["result"]) for log in logs] == [("p0", "pure0"), ("p1", "pure1"), ("p0", "pure0")]
    assert [body["round"] for body in planned(world)] == [0, 1, 2]
    check_all(world.store)


def test_a_call_of_a_plan_may_wait_for_a_person(world):
    world.tools.asks = asks_once(0)
    play(world, plan_of("pure"))
    assert world.row("runs")["status"] == "waiting"
    (row,) = world.inbox()
    approve(world, row)
    assert world.row("turns")["disposition"] == "answered"
    assert [log["status"] for log in finished(world)["extra"]["tool_logs"]] == ["ok"]


def test_one_tool_may_carry_out_a_whole_round(world):
    world.tools.says = lambda order: json.dumps(
        [{"result": f"did {one['purpose']}", "success": True} for one in order.arguments["commands"]]
    )
    play(world, plan_of("pure", "pure"), executor="unsafe")

    assert [call["tool"] for call in world.rows("calls")] == ["unsafe"]
    assert [log["result"] for log in finished(world)["extra"]["tool_logs"]] == ["did p0", "did p1"]
    assert "unsafe" not in json.dumps([planner_request(prompt) for prompt in world.models.prompts])


@pytest.mark.parametrize("nothing", ["null", "[]", "no list"])
def test_round_counts_even_if_its_tool_reports_nothing_of_it(world, nothing):
    """A11"""
    world.tools.says = lambda order: nothing
    play(world, *[plan_of("pure")] * 9, executor="unsafe", max_rounds=3)

    assert len(world.rows("calls")) == 3
    assert finished(world)["extra"]["planning"] == {"rounds": 3, "ends": "max_rounds"}


def test_command_refused_in_a_whole_round_keeps_its_position(world):
    """A18"""
    world.tools.says = lambda order: json.dumps(["did"] * len(order.arguments["commands"]))
    play(world, plan_of("nowhere", "pure"), executor="unsafe")
    assert [log["status"] for log in finished(world)["extra"]["tool_logs"]] == ["not_offered", "ok"]


def test_the_failure_of_a_tool_that_runs_whole_rounds_is_that_of_each_command(world):
    """A10"""
    change_agent(world, strategy="plan_execute", plan=PlanSpec(executor="unsafe"))
    install(world, before_tool(lambda context: [Block("not today")]))
    world.models.script = planner(plan_of("pure", "pure"))
    world.submit("find out")
    world.run_dry()

    logs = finished(world)["extra"]["tool_logs"]
    assert [(log["status"], log["error"]) for log in logs] == [("denied", "not today")] * 2


def test_no_round_is_planned_when_the_time_is_up(world):
    """A52: the limit is real, asked at each transition, and the answer says that the work was cut short."""
    world.tools.before = lambda order: world.clock.pass_by(30)
    play(world, *[plan_of("pure")] * 9, timeout=50)

    assert finished(world)["extra"]["planning"] == {"rounds": 2, "ends": "deadline"}
    assert "the time was up" in world.models.prompts[-1].said[-1].text


def test_the_same_failure_in_two_rounds_ends_planning(world):
    install(world, before_tool(lambda context: [Block("no")]))
    play(world, *[plan_of("pure")] * 9)
    assert finished(world)["extra"]["planning"] == {"rounds": 2, "ends": "stuck"}


def test_what_was_done_is_announced_before_the_first_text_of_the_answer(world):
    """A37"""
    play(world, plan_of("pure"))
    kinds = [kind for _, kind, _ in world.events.seen]
    assert kinds.index("tool.settled") < kinds.index("model.replied")
    assert kinds.count("plan.made") == 2


def test_runs_at_once_do_not_share_their_plans(world):
    """A54"""
    change_agent(world, plan=PlanSpec())
    world.models.script = planner(plan_of("pure", "pure"))
    for number in range(5):
        world.submit(f"question {number}", thread=f"t{number}", strategy="plan_execute")
    world.run_dry()

    ends = [row["body"]["extra"] for row in world.rows("journal", kind="RunFinished")]
    assert [len(end["tool_logs"]) for end in ends] == [2] * 5
    check_all(world.store)


def test_a_cancel_in_a_planned_round_ends_the_run_and_keeps_what_was_done(world):
    """A29"""
    change_agent(world, plan=PlanSpec())
    world.models.script = planner(plan_of("pure", "pure"))
    turn = world.submit("find out", strategy="plan_execute")
    while not any(call["status"] == "succeeded" for call in world.rows("calls")):
        world.deliver(world.pending.pop(0))
    _, following = stages.cancel_turn(world.runtime, turn, "enough")
    world.pending += following
    world.run_dry()

    assert world.row("turns")["disposition"] == "cancelled"
    assert [call["status"] for call in world.rows("calls")] == ["succeeded", "cancelled"]
    check_all(world.store)


def test_tools_of_a_plan_that_come_back_in_another_order_are_recorded_in_the_plans(world):
    """A18, A19"""
    change_agent(world, plan=PlanSpec())
    world.models.script = planner(plan_of("pure", "unsafe", "idempotent"))
    world.submit("find out", strategy="plan_execute")
    while not any(isinstance(intent, Header) for intent in world.pending):
        world.deliver(world.pending.pop(0))
    world.pending.reverse()
    world.run_dry()

    results = [log["result"] for log in finished(world)["extra"]["tool_logs"]]
    assert results == ["pure0", "unsafe1", "idempotent2"]


@pytest.mark.parametrize("history", [True, False])
def test_the_planner_knows_what_a_question_refers_to_unless_it_is_not_to(world, history):
    play(world, plan_of("pure"))
    change_agent(world, plan=PlanSpec(history=history))
    world.submit("and Berlin?", strategy="plan_execute")
    world.run_dry()

    asked = [prompt for prompt in world.models.prompts if planner_request(prompt)][-1]
    said = [one.text.partition(" [")[0] for one in asked.said[:-1]]
    assert said[:1] == ["find out"][:history]
    assert (len(said), planner_request(asked)["input"]["user_input"]) == (2 * history, "and Berlin?")
    check_all(world.store)


def test_a_follow_up_in_rounds_sends_the_same_history_first_each_time(world):
    """So that a provider's cache keeps it; what changes comes last."""
    play(world, plan_of("pure"))
    world.submit("and Berlin?", strategy="plan_execute")
    world.run_dry()

    first, second = [prompt for prompt in world.models.prompts if planner_request(prompt)][-2:]
    assert (first.system, first.said[:-1]) == (second.system, second.said[:-1])
