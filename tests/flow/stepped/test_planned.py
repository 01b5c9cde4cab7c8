"""plan_execute in the hands of a consumer: held after each plan, behind each round, and with the answer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from chordage.orchestrator import stages, views
from chordage.orchestrator.core.agent import OnPlannerError, OutOfScope, PlanSpec
from chordage.orchestrator.core.approvals import Question, Why
from chordage.orchestrator.core.errors import InvalidMessage, ModelFailed, StepRefused
from chordage.orchestrator.core.model import Fault
from chordage.orchestrator.core.phases import Hook
from chordage.orchestrator.core.reasons import Ending, Reason, stopped
from chordage.orchestrator.core.stepping import CapPolicy, Control, OnHeld, Standing, StepTerms
from chordage.orchestrator.core.verdicts import Terminate
from chordage.orchestrator.gateways.ports import ToolOutcome
from support import hooks
from support.driving import USER, Consumer
from support.invariants import check_all
from support.one_turn import change_agent
from support.planning import plan_of, planner, planner_request
from support.questions import approve

BEHAVIOR = Ending(reason=Reason.BEHAVIOR_REQUESTED)
FINISH = {"next_action": "response"}


def consume(world, *plans: str, spec: PlanSpec | None = None, **terms: Any) -> Consumer:
    change_agent(world, plan=spec or PlanSpec())
    world.models.script = planner(*plans)
    turn = world.submit("find out", strategy="plan_execute", control=Control.STEP, step=StepTerms(**terms))
    world.run_dry()
    return Consumer(world, turn)


def commands(*tools: str) -> dict[str, Any]:
    return {"execution_commands": [{"tool_name": tool, "tool_kwargs": {"n": n}} for n, tool in enumerate(tools)]}


def kinds(world) -> list[str]:
    return [row["kind"] for row in world.rows("journal")]


def planned(world) -> list[dict]:
    return [row["body"] for row in world.rows("journal", kind="PlanCommitted")]


def logs(world) -> list[Any]:
    return [log["result"] for log in world.row("journal", kind="RunFinished")["body"]["extra"]["tool_logs"]]


def planner_requests(world) -> list[dict]:
    return [found for prompt in world.models.prompts if (found := planner_request(prompt))]


def statuses(records: Sequence[dict[str, Any]]) -> list[str]:
    return [record["status"] for record in records]


def refused(it: Consumer, verb: str, **args: Any) -> StepRefused:
    with pytest.raises(StepRefused) as error:
        it.world.step(it.turn, verb, **args)
    return error.value


def test_it_is_held_after_the_plan_behind_the_round_and_with_the_answer(world):
    it = consume(world, plan_of("pure", "pure"))
    plan = it.next()
    assert (plan.standing, [one["tool_name"] for one in plan.plan.commands]) == (Standing.HELD, ["pure", "pure"])
    assert (plan.plan.ends, plan.round, it.runs, kinds(world)[-1]) == (None, None, 0, "ReplyHeld")

    came_of_it = it.next()
    assert (came_of_it.standing, came_of_it.reply, came_of_it.plan) == (Standing.HELD, None, None)
    assert [record["result"] for record in came_of_it.round.records] == ["pure0", "pure1"]
    assert len(planner_requests(world)) == 1

    assert it.next().plan.ends == "response"
    answer = it.next()
    assert (answer.standing, answer.plan, answer.reply.text[:7]) == (Standing.HELD, None, "answer:")
    it.next()
    assert (it.look().standing, it.look().answer, logs(world)) == (Standing.DONE, answer.reply.text, ["pure0", "pure1"])
    check_all(world.store)


def test_what_is_recorded_is_what_a_run_of_its_own_records(world):
    it = consume(world, plan_of("pure", "nowhere"), plan_of("pure"))
    it.do("run")
    stepped, driven = [body | {"worker": ""} for body in planned(world)], logs(world)
    turn = world.submit("find out", thread="t2", strategy="plan_execute")
    world.run_dry()
    run = world.row("turns", id=turn)["run_id"]
    own = [row["body"] | {"worker": ""} for row in world.rows("journal", kind="PlanCommitted", run_id=run)]

    assert (stepped, it.look().answer) == (own, views.turn(world.store, turn).answer)
    ended = world.rows("journal", kind="RunFinished", run_id=run)[0]["body"]["extra"]
    assert [log["result"] for log in ended["tool_logs"]] == driven
    check_all(world.store)


def test_another_decision_counts_in_place_of_the_planners_and_both_are_on_record(world):
    it = consume(world, plan_of("pure"))
    it.next()
    view = it.do("plan", plan=commands("idempotent", "pure"))
    assert ([one["tool_name"] for one in view.plan.commands], view.mutated) == (["idempotent", "pure"], False)
    it.next()

    assert [record["result"] for record in it.look().round.records] == ["idempotent0", "pure1"]
    names = [
        [one["tool_name"] for one in row["body"]["decision"]["execution_commands"]]
        for row in world.rows("journal")
        if "decision" in row["body"]
    ]
    assert names == [["pure"], ["idempotent", "pure"]]
    it.do("run")
    check_all(world.store)


def test_a_command_is_dropped_by_giving_the_others(world):
    it = consume(world, plan_of("unsafe", "pure"))
    view = it.next()
    it.do("plan", plan={"execution_commands": list(view.plan.commands[1:])})
    it.next()

    assert [record["tool_name"] for record in it.look().round.records] == ["pure"]
    assert [call["tool"] for call in world.rows("calls")] == ["pure"]


@pytest.mark.parametrize("plan", [FINISH, {"execution_commands": []}, '{"use_tool": false}'])
def test_planning_is_finished_from_a_held_plan(world, plan):
    it = consume(world, plan_of("pure"))
    it.next()
    it.do("plan", plan=plan)
    it.next()

    assert (it.look().reply.text, it.runs, len(planner_requests(world))) == ("answer: find out", 0, 1)
    it.next()
    assert it.look().disposition == "answered"
    check_all(world.store)


def test_planning_finishes_after_a_round_without_calling_the_planner_again(world):
    it = consume(world, plan_of("pure"), plan_of("pure"))
    it.next()
    it.next()
    it.do("plan", plan=FINISH)
    assert it.look().plan.ends == "response"
    it.next()

    assert ("pure0" in it.look().reply.text, len(planner_requests(world))) == (True, 1)
    it.next()
    assert (logs(world), planned(world)[-1]["model"]) == (["pure0"], "consumer")
    made = [
        (row["step"], row["kind"]) for row in world.rows("journal") if row["kind"] in {"PlanCommitted", "ReplyHeld"}
    ]
    assert made[2:] == [(3, "PlanCommitted"), (4, "ReplyHeld")], "each has a step of its own"
    check_all(world.store)


@pytest.mark.parametrize("rounds_before", [0, 1])
def test_consumer_may_decide_where_no_planner_was_called(world, rounds_before):
    it = consume(world, plan_of("pure"))
    for _ in range(2 * rounds_before):
        it.next()
    it.do("plan", plan=commands("idempotent"))
    it.next()

    assert [record["result"] for record in it.look().round.records] == ["idempotent0"]
    assert (it.look().round.index, len(planner_requests(world))) == (rounds_before, rounds_before)
    it.do("run")
    assert logs(world) == ["pure0"] * rounds_before + ["idempotent0"]
    check_all(world.store)


def test_what_is_no_plan_is_refused_and_the_one_that_is_held_stays(world):
    it = consume(world, plan_of("pure"))
    it.next()
    with pytest.raises(InvalidMessage, match="execution_commands") as error:
        world.step(it.turn, "plan", plan="let me think")

    assert (error.value.field, len(it.look().plan.commands)) == ("plan", 1)


def test_a_run_that_does_not_plan_and_an_answer_have_no_plan(world):
    other = Consumer(world, world.submit(control=Control.STEP, thread="t2"))
    it = consume(world)
    it.next()
    it.next()

    assert [refused(one, "plan", plan=FINISH).code for one in (other, it)] == ["no_plan", "no_plan"]


@pytest.mark.parametrize(
    ("verb", "args"),
    [
        ("messages", {"messages": [USER]}),
        ("params", {"params": {}, "messages": [USER]}),
        ("tool_response", {}),
        ("retry", {"ask_ids": ["plan-1-0"]}),
    ],
)
def test_a_plan_is_no_message(world, verb, args):
    it = consume(world, plan_of("pure"))
    it.next()

    error = refused(it, verb, **args)

    assert (error.code, error.standing) == ("plan_held", "held")


def test_message_after_a_round_reaches_the_planner_and_the_answer(world):
    it = consume(world, plan_of("pure"))
    it.next()
    it.next()
    it.push(USER)
    assert refused(it, "plan", plan=FINISH).code == "messages_pending"
    it.next()
    it.do("steer", text="S")
    it.next()

    assert planner_requests(world)[1]["input"]["user_input"] == "find out\n\nU"
    assert it.look().reply.text.startswith("answer: find out U S")
    it.next()
    check_all(world.store)


def test_a_steer_while_a_plan_is_carried_out_reaches_the_next_planner(world):
    it = consume(world, plan_of("pure"), plan_of("pure"))
    it.next()
    it.do("steer", text="S")
    it.do("run")

    assert planner_requests(world)[1]["input"]["user_input"] == "find out\n\nS"
    assert it.look().disposition == "answered"
    check_all(world.store)


def test_steer_just_before_the_planner_call_reaches_it(world):
    it = consume(world, plan_of("pure"))
    it.next()
    it.next()
    world.step(it.turn, "next")
    it.do("steer", text="S")

    assert planner_requests(world)[1]["input"]["user_input"] == "find out\n\nS"


def test_records_can_be_supplied_for_commands_that_were_not_carried_out(world):
    it = consume(world, plan_of("unsafe", "pure"))
    first, second = it.next().reply.asks
    it.do("tool_results", results=[{"ask_id": first.id, "content": "mine"}])
    it.next()

    assert [record["result"] for record in it.look().round.records] == ["mine", "pure1"]
    assert (it.runs, [call["code"] for call in world.rows("calls")]) == (1, ["client_supplied", None])
    assert second.id == world.rows("calls")[1]["ask_id"]
    it.do("run")
    check_all(world.store)


def test_commands_are_denied_or_held_back_by_their_ids(world):
    it = consume(world, plan_of("pure", "pure", "pure"))
    first, second, _ = (ask.id for ask in it.next().reply.asks)
    it.do("decide", ask_id=first, allow=False, reason="no")
    it.do("hold", ask_ids=[second])
    it.next()
    assert statuses(it.look().round.records) == ["denied", "waiting", "ok"]

    approve(world, world.inbox()[0])

    assert (it.look().standing, statuses(it.look().round.records)) == (Standing.HELD, ["denied", "ok", "ok"])
    it.do("run")
    assert logs(world)[1:] == ["pure1", "pure2"]
    check_all(world.store)


def test_new_plan_discards_what_was_set_for_the_calls_of_the_old_one(world):
    it = consume(world, plan_of("pure"))
    it.next()
    it.do("decide", ask_id="plan-1-0", allow=False)
    it.do("plan", plan=commands("idempotent"))
    it.next()

    assert statuses(it.look().round.records) == ["ok"]


def test_a_round_in_which_nothing_may_run_is_held_with_its_records(world):
    it = consume(world, plan_of("nowhere"))
    assert it.next().plan.refused["0"]["status"] == "not_offered"
    it.next()

    assert (statuses(it.look().round.records), world.rows("calls")) == (["not_offered"], [])
    it.do("run")
    check_all(world.store)


def test_calls_have_the_positions_of_their_commands(world):
    it = consume(world, plan_of("nowhere", "pure"))
    it.next()
    it.next()

    assert [record["result"] for record in it.look().round.records][1:] == ["pure1"]
    assert [call["place"] for call in world.rows("calls")] == [1]


def test_a_plan_out_of_scope_that_is_refused_as_a_whole_is_followed_by_the_answer(world):
    it = consume(world, plan_of("pure", "nowhere"), spec=PlanSpec(out_of_scope=OutOfScope.REFUSE_BATCH))
    assert it.next().plan.ends == "not_offered"
    it.next()

    assert (it.look().reply.text.startswith("answer:"), world.rows("calls")) == (True, [])


def test_a_tool_that_is_taken_away_while_the_plan_is_held_is_not_offered(world):
    it = consume(world, plan_of("pure", "unsafe"))
    it.next()
    it.do("params", params={"tools": ["pure"]})
    it.next()

    assert statuses(it.look().round.records) == ["ok", "not_offered"]
    it.next()
    assert [tool["name"] for tool in planner_requests(world)[1]["input"]["available_tools"]] == ["pure"]


def test_an_executor_carries_the_round_out_in_one_call(world):
    world.tools.run = lambda agent, order, **_: ToolOutcome(content='[{"result": "one"}, {"result": "two"}]')
    it = consume(world, plan_of("pure", "unsafe"), spec=PlanSpec(executor="idempotent"))
    assert [ask.name for ask in it.next().reply.asks] == ["idempotent"]
    it.next()

    assert [record["result"] for record in it.look().round.records] == ["one", "two"]
    it.do("run")
    check_all(world.store)


def test_at_the_limit_of_rounds_the_answer_follows(world):
    it = consume(world, plan_of("pure"), plan_of("pure"), spec=PlanSpec(max_rounds=1))
    for _ in range(3):
        it.next()

    assert (len(planner_requests(world)), it.look().reply.text.startswith("answer:")) == (1, True)


def test_at_the_cap_the_calls_of_a_plan_are_closed_or_run_by_policy(world):
    it = consume(world, plan_of("pure"), max_iterations=1)
    it.do("run")
    assert (it.look().code, it.runs, world.row("calls")["code"]) == ("max_iterations", 0, "not_run_cap")

    other = consume(world, plan_of("pure"), max_iterations=1, cap_policy=CapPolicy.RUN_TOOLS)
    other.next()
    other.next()
    assert statuses(other.look().round.records) == ["ok"]
    other.next()
    assert (other.look().code, len(planner_requests(world))) == ("max_iterations", 2)
    check_all(world.store)


@pytest.mark.parametrize("at", [1, 2, 3, 4])
def test_run_continues_to_the_end_from_every_hold(world, at):
    it = consume(world, plan_of("pure"))
    for _ in range(at):
        it.next()
    it.do("run")

    assert (it.look().disposition, logs(world), it.runs) == ("answered", ["pure0"], 1)
    assert it.look().answer.startswith("answer: find out")
    check_all(world.store)


@pytest.mark.parametrize("at", [1, 2])
def test_held_run_can_be_parked_and_continues(world, at):
    it = consume(world, plan_of("pure"))
    for _ in range(at):
        it.next()
    it.do("park")
    assert (it.look().standing, it.look().plan is None, it.look().round is None) == (Standing.PARKED, at == 2, at == 1)
    it.do("run")

    assert it.look().disposition == "answered"


@pytest.mark.parametrize("at", [1, 2])
def test_what_is_held_can_be_cancelled(world, at):
    it = consume(world, plan_of("pure"))
    for _ in range(at):
        it.next()
    it.do("cancel")

    assert (it.look().disposition, world.locks.threads) == ("cancelled", {})
    check_all(world.store)


def test_run_held_too_long_follows_its_policy(world):
    it = consume(world, plan_of("pure"), hold_seconds=60, on_held=OnHeld.RESUME)
    it.next()
    for standing in (Standing.HELD,) * 3 + (Standing.DONE,):
        assert world.sweep(seconds=59) == []
        world.sweep(seconds=2)
        world.run_dry()
        assert it.look().standing is standing

    assert (it.look().answer[:7], it.runs) == ("answer:", 1)
    check_all(world.store)


def test_a_wake_up_that_got_lost_while_a_round_is_out_is_sent_again(world):
    it = consume(world, plan_of("pure"))
    it.next()
    world.step(it.turn, "next")
    world.pending.clear()
    world.sweep(seconds=40)
    world.run_dry()

    assert statuses(it.look().round.records) == ["ok"]


def failing(times: int):
    left = [times]

    def before(_prompt):
        if left[0]:
            left[0] -= 1
            raise ModelFailed("down", fault=Fault.SERVER, attempts=())

    return before


def test_a_planner_that_fails_is_a_plan_to_answer_and_can_be_replaced(world):
    world.models.before_reply = failing(1)
    it = consume(world, plan_of("pure"))
    assert it.next().plan.ends == "planner_error"
    it.do("plan", plan=commands("pure"))
    it.next()

    assert statuses(it.look().round.records) == ["ok"]


def test_or_a_failure_that_is_tried_again_or_decided_without_it(world):
    it = consume(world, plan_of("pure"), plan_of("pure"), spec=PlanSpec(on_error=OnPlannerError.FAIL))
    world.models.before_reply = failing(1)
    assert it.next().standing is Standing.FAILED
    it.next()
    it.next()
    world.models.before_reply = failing(1)
    assert (it.next().standing, it.look().round) == (Standing.FAILED, None)
    it.do("plan", plan=FINISH)
    it.next()

    assert it.look().reply.text.startswith("answer:")
    it.next()
    assert logs(world) == ["pure0"]
    check_all(world.store)


@pytest.mark.parametrize("how", [stopped("budget"), BEHAVIOR])
def test_plugin_stop_leaves_time_to_read_and_finishes_a_round_where_it_only_stops(world, how):
    hooks.install(world, hooks.plugin_for(Hook.AFTER_INFERENCE, lambda _context: [Terminate(ending=how)]))
    it = consume(world, plan_of("pure"))
    it.next()
    assert len(it.look().plan.commands) == 1
    it.do("run")

    assert (it.look().reason, it.look().code, it.runs) == (how.reason.value, how.code, int(how.code == "budget"))
    check_all(world.store)


def test_failing_call_check_ends_the_run_and_keeps_the_plan(world):
    def broken(_context):
        raise RuntimeError("out of order")

    hooks.install(world, hooks.plugin_for(Hook.BEFORE_TOOL_EXECUTE, broken))
    it = consume(world, plan_of("pure"))
    it.next()
    it.next()

    assert (it.look().code, kinds(world)[-2:]) == ("plugin", ["PlanCommitted", "RunFinished"])
    check_all(world.store)


def test_commands_that_wait_for_a_person_are_waiting_in_the_records(world):
    asked: set[str] = set()
    question = Question(why=Why.TOOL, prompt="May I?")
    world.tools.asks = lambda order: None if order.call_id in asked else (asked.add(order.call_id) or question)
    it = consume(world, plan_of("pure"))
    it.next()
    it.next()
    assert statuses(it.look().round.records) == ["waiting"]
    it.next()
    assert it.look().standing is Standing.WAITING

    approve(world, world.inbox()[0])
    it.do("run")

    assert (logs(world), it.look().disposition) == (["pure0"], "answered")
    check_all(world.store)


def test_the_steps_of_the_run_show_each_plan_once(world):
    it = consume(world, plan_of("pure"))
    it.next()
    held = views.run(world.store, it.look().run_id).steps
    it.do("run")

    assert [(step.kind, step.asks) for step in held] == [("inference", 1)]
    shown = views.run(world.store, it.look().run_id).steps
    assert [step.kind for step in shown] == ["inference", "tool_round", "inference", "inference"]
    assert [step.plan is not None for step in shown if step.kind == "inference"] == [True, True, False]


def test_a_later_message_that_interrupts_leaves_the_plan_behind(world):
    it = consume(world, plan_of("pure"))
    it.next()
    _, following = stages.cancel_turn(world.runtime, it.turn, "enough")
    world.pending += following
    world.submit("and now?", control=Control.AUTO)
    world.run_dry()

    assert (planned(world), [turn["disposition"] for turn in world.rows("turns")]) == ([], ["cancelled", "answered"])
    check_all(world.store)
