"""What happens beside a summary: plans, questions, failures, and requests that come meanwhile."""

from __future__ import annotations

from typing import Any

import pytest

from chordage.orchestrator import stages
from chordage.orchestrator.core.agent import PlanSpec
from chordage.orchestrator.core.errors import ModelFailed
from chordage.orchestrator.core.message import WhenBusy
from chordage.orchestrator.core.model import Fault
from chordage.orchestrator.core.stepping import Control, Standing, StepTerms
from chordage.orchestrator.core.transcript import AWAITING
from support.driving import Consumer, asks, in_short, in_turn, text
from support.fakes import spoken
from support.invariants import check_all
from support.one_turn import change_agent
from support.planning import plan_of, planner, planner_request
from support.questions import approval, approve, asks_once
from support.summing import failures, is_for_summary, summaries, summing, talk


def with_a_past(world, script, *, writer=None, strategy: str = "react", **terms: Any) -> Consumer:
    """A stepped turn on a thread on which something was said before."""
    summing(world, in_turn(text("aye")))
    talk(world, "first")
    summing(world, script, writer=writer)
    turn = world.submit("hi", control=Control.STEP, strategy=strategy, step=StepTerms(**terms))
    world.run_dry()
    return Consumer(world, turn)


def shown(world) -> list[str]:
    """What the model saw last, of each the last line."""
    return [one.rpartition("\n")[2] for one in in_short(world.models.prompts[-1].said)]


def logs(world) -> list[Any]:
    (ended,) = [row["body"]["extra"] for row in world.rows("journal", kind="RunFinished") if "extra" in row["body"]]
    return [log["result"] for log in ended["tool_logs"]]


def planned(world, *plans: str, **spec: Any) -> Consumer:
    change_agent(world, plan=PlanSpec(**spec))
    return with_a_past(world, planner(*plans), strategy="plan_execute")


@pytest.mark.parametrize("at", range(5))
@pytest.mark.parametrize("history", [True, False])
def test_summary_requested_at_any_hold_of_a_plan_is_made_once_and_loses_no_plan_or_record(world, at, history):
    it = planned(world, plan_of("pure"), plan_of("idempotent"), history=history)
    for _ in range(at):
        it.next()
    it.do("compact")
    it.do("run")

    assert (len(summaries(world)), summaries(world)[0]["entries"]) == (1, 2)
    assert (logs(world), it.runs) == (["pure0", "idempotent0"], 2)
    rounds = [
        planner_request(prompt)["info"]["round_index"] for prompt in world.models.prompts if planner_request(prompt)
    ]
    assert (rounds, it.look().iteration) == ([0, 1, 2], 4)
    assert shown(world)[:2] == ["summary 1", "hi"]
    check_all(world.store)


def test_consumer_plan_is_carried_out_before_the_requested_summary(world):
    it = planned(world, plan_of("pure"))
    it.do("compact")
    it.do("plan", plan={"tool_command": {"tool_name": "idempotent", "tool_kwargs": {"n": 7}}})
    it.next()
    assert (it.look().round.records[0]["result"], summaries(world)) == ("idempotent7", [])
    it.do("run")

    assert (logs(world), len(summaries(world))) == (["idempotent7"], 1)
    check_all(world.store)


def test_summary_stops_before_a_waiting_call_and_its_result_keeps_its_place(world):
    world.tools.asks = asks_once(1)
    it = with_a_past(world, in_turn(asks("a", "b"), asks("c"), text("done")))
    it.next()
    it.next()
    it.do("compact")
    it.next()
    assert shown(world) == ["summary 1", "hi", "R(a b)", "a=pure0", f"b={AWAITING}", "R(c)", "c=pure0"]

    approve(world, world.inbox()[0])
    it.do("run")

    assert (len(summaries(world)), it.look().disposition) == (1, "answered")
    assert shown(world)[-1].startswith("[A decision has come")
    assert [said for said in shown(world) if said.startswith("b=")] == ["b=pure1"]
    check_all(world.store)


def test_decision_during_the_summary_takes_effect_after_it(world):
    world.tools.asks = asks_once(1)

    def writer(_prompt):
        world.decide(approval(world.inbox()[0]))
        return spoken("summary 1")

    it = with_a_past(world, in_turn(asks("a", "b"), asks("c"), text("done")), writer=writer)
    it.next()
    it.next()
    it.do("compact")
    it.do("run")

    assert ([call["status"] for call in world.rows("calls")], len(summaries(world))) == (["succeeded"] * 3, 1)
    assert [said for said in shown(world) if said.startswith("b=")] == ["b=pure1"]
    check_all(world.store)


@pytest.mark.parametrize("broken", [ModelFailed("down", fault=Fault.SERVER, attempts=()), None])
def test_a_summary_that_fails_costs_the_run_nothing_and_is_not_tried_again_unasked(world, broken):
    def writer(_prompt):
        if broken is not None:
            raise broken
        return spoken("  ")

    it = with_a_past(world, in_turn(asks("a"), text("done")), writer=writer)
    it.do("compact")
    it.next()
    assert shown(world) == ["first", "aye", "hi"]
    it.next()

    assert (len(failures(world)), summaries(world), it.look().iteration) == (1, [], 2)
    it.do("compact")
    it.do("run")
    assert (len(failures(world)), it.look().answer) == (1, "done"), "nothing was asked of the model any more"
    check_all(world.store)


def test_where_summary_and_request_both_fail_the_consumer_tries_the_request_alone_again(world):
    down = [True, True]

    def before(_prompt):
        if down and down.pop():
            raise ModelFailed("down", fault=Fault.SERVER, attempts=())

    it = with_a_past(world, in_turn(text("done")))
    it.do("compact")
    world.models.before_reply = before
    assert (it.next().standing, len(failures(world))) == (Standing.FAILED, 1)
    it.do("run")

    assert (it.look().answer, len([one for one in world.models.prompts if is_for_summary(one)])) == ("done", 1)
    check_all(world.store)


def test_a_request_that_comes_while_the_summary_is_written_is_one_more(world):
    def writer(_prompt):
        if len(asked) < 1:
            asked.append(world.step(it.turn, "compact"))
        return spoken(f"summary {len(summaries(world)) + 1}")

    asked: list[Any] = []
    it = with_a_past(world, in_turn(asks("a"), asks("b"), text("done")), writer=writer)
    it.do("compact")
    it.do("run")

    assert (len(summaries(world)), it.look().answer) == (2, "done")
    check_all(world.store)


@pytest.mark.parametrize("when_busy", [WhenBusy.INTERRUPT, WhenBusy.ROLLBACK])
def test_a_summary_of_a_run_that_was_ended_meanwhile_is_refused_and_made_by_the_next(world, when_busy):
    def writer(_prompt):
        if not later:
            later.append(world.submit("instead", when_busy=when_busy))
        return spoken("summary 1")

    later: list[str] = []
    it = with_a_past(world, in_turn(text("done")), writer=writer)
    it.do("compact")
    it.next()

    (made,) = world.rows("journal", kind="HistoryCompacted")
    assert it.look().standing is Standing.DONE
    assert made["run_id"] == world.row("turns", id=later[0])["run_id"]
    assert shown(world)[-1] == "instead"
    check_all(world.store)


def test_cancel_with_a_summary_requested_and_held_leaves_other_requests_intact(world):
    it = with_a_past(world, in_turn(asks("a"), text("done")))
    it.do("compact")
    it.do("cancel")
    talk(world, "next")

    assert len(summaries(world)) <= 1
    check_all(world.store)


def test_a_summary_in_a_run_that_is_rolled_back_goes_with_it(world):
    it = with_a_past(world, in_turn(asks("a"), text("done")))
    it.do("compact")
    it.next()
    assert len(summaries(world)) == 1
    world.submit("instead", when_busy=WhenBusy.ROLLBACK)
    world.run_dry()

    assert shown(world)[0] in {"first", "summary 2"}
    assert world.row("runs", id=it.look().run_id)["status"] == "done"
    check_all(world.store)


def test_summary_request_by_another_waits_for_the_stepped_run_and_is_kept_for_the_next(world):
    it = with_a_past(world, in_turn(text("done")))
    stages.ask_to_compact(world.runtime, "t1")
    it.do("run")
    assert summaries(world) == []
    talk(world, "next")

    assert len(summaries(world)) == 1


def test_threshold_reached_by_a_driven_plan_counts_for_the_next_run(world):
    it = planned(world, plan_of("pure"))
    summing(world, planner(plan_of("pure")), threshold=1)
    it.do("run")
    assert summaries(world) == [], "no threshold counts in a stepped run"
    talk(world, "again", strategy="plan_execute")

    assert len(summaries(world)) >= 1
    check_all(world.store)
