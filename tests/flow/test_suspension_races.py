"""What a hostile schedule, a retry or a broken plugin does to runs that wait. Each of these was a bug once."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import count

import pytest

from chordage.orchestrator import stages
from chordage.orchestrator.core.agent import MixedRound, ToolMode
from chordage.orchestrator.core.approvals import OnExpiry, digest
from chordage.orchestrator.core.model import StopReason
from chordage.orchestrator.core.phases import Scope
from chordage.orchestrator.core.plugin_state import Merge, SetState
from chordage.orchestrator.core.verdicts import AmendArguments
from chordage.orchestrator.run import approvals
from chordage.orchestrator.run.unit import Unit
from support.fakes import rounds_of, spoken
from support.hooks import after_model, after_tool, before_tool
from support.interleaving import on_event
from support.lock_waits import has_lock_waits
from support.one_turn import change_agent, play, statuses
from support.questions import ASK, GATE, approval, approve, asks_once
from support.waiting import until
from support.world import Header


def break_down(context):
    raise RuntimeError("a plugin that breaks")


def test_a_retried_approval_of_a_call_answers_no_later_question(world):
    world.tools.asks = lambda order: ASK if len(world.tools.orders) < 3 else None
    play(world, script=rounds_of(1))
    call = world.row("calls")
    approve(world, call, key="k")
    second = world.inbox()[0]
    (again,) = world.decide(approval(call, key="k"))
    assert again.duplicate
    assert world.inbox() == [second]


def test_run_that_ends_with_an_error_has_no_open_question(world):
    replies = count(1)

    def break_at_the_second_reply(context):
        if next(replies) == 2:
            break_down(context)

    world.tools.asks = asks_once(0)
    play(world, after_model(break_at_the_second_reply))
    assert world.row("runs")["status"] == "done"
    assert world.inbox() == []


def test_error_beside_a_waiting_call_waits_for_no_decision(world):
    world.tools.asks = asks_once(0)
    play(world, after_tool(break_down))
    assert world.row("runs")["status"] == "done"


def test_a_result_that_comes_twice_is_noted_once(world):
    def deliver_a_twin_that_wins(order):
        world.tools.before = lambda order: None
        stages.run_batch(world.runtime, [order.call_id])

    world.tools.before = deliver_a_twin_that_wins
    noted = SetState(scope=Scope.RUN, key="k", value=1, merge=Merge.ADD)
    play(world, after_tool(noted), script=rounds_of(1))
    assert [row["value"] for row in world.rows("plugin_state") if row["key"].endswith("k")] == [1]


def test_nothing_stays_parked_behind_a_call_that_was_refused(world):
    change_agent(world, tool_mode=ToolMode.SEQUENTIAL)

    def note_two_and_put_the_second_aside(context):
        number = context.call.arguments["n"]
        noted = [SetState(scope=Scope.RUN, key="last", value=number)] if number < 2 else []
        return [*noted, GATE] if number == 1 else noted

    play(world, before_tool(note_two_and_put_the_second_aside), script=rounds_of(3))
    world.sweep(100)
    world.run_dry()
    assert statuses(world)[2] != "new"


def test_pause_reply_does_not_suspend_a_run(world):
    usual = rounds_of(2)

    def pause_at_the_second_reply(prompt):
        if len(world.models.prompts) == 2:
            return replace(spoken("wait"), stop=StopReason.PAUSE_TURN)
        return usual(prompt)

    world.tools.asks = asks_once(0)
    play(world, script=pause_at_the_second_reply)
    assert len(world.models.prompts) == 3


def test_a_heartbeat_sets_no_parked_call_free(world):
    change_agent(world, tool_mode=ToolMode.SEQUENTIAL)
    world.tools.asks = asks_once(1)
    behind = []

    def beat_while_the_batch_is_in_hand():
        behind.extend(call_id for hand in world.runtime.in_flight.all() for call_id in hand.behind)
        stages.beat(world.runtime, first=0, every=0)

    on_event(world, "call.suspended", beat_while_the_batch_is_in_hand)
    play(world, script=rounds_of(3))
    parked = world.rows("calls")[2]
    assert behind == [parked["id"]], "the beat has the parked call on its list"
    assert parked["lease_until"] is None
    world.sweep(100)
    world.run_dry()
    assert statuses(world)[2] == "new"


def test_redelivered_batch_does_not_overtake_the_call_in_flight(world):
    change_agent(world, tool_mode=ToolMode.SEQUENTIAL)
    course = []

    def deliver_the_batch_again_within_the_second(order):
        course.append(("start", order.arguments["n"]))
        if order.arguments["n"] == 1 and course.count(("start", 1)) == 1:
            stages.run_batch(world.runtime, [call["id"] for call in world.rows("calls")], in_doubt=True)
            course.append(("end", 1))

    world.tools.before = deliver_the_batch_again_within_the_second
    play(world, script=rounds_of(3, tool="unsafe"))
    assert course.index(("end", 1)) < course.index(("start", 2))


def test_amendments_hold_for_edited_arguments_too(world):
    def amend_and_ask(context):
        amended = AmendArguments({"n": 9})
        return [amended] if context.call.resumed else [amended, GATE]

    play(world, before_tool(amend_and_ask), script=rounds_of(1))
    approve(world, world.inbox()[0], edited_args={"n": 3})
    assert world.tools.orders[0].arguments["n"] == 9


def test_what_an_approved_call_is_carried_out_with_is_on_record_before_it_runs(world):
    """A plugin amends the arguments only when the call resumes."""
    recorded = []
    world.tools.before = lambda order: recorded.append(world.row("calls")["arguments"])

    def ask_then_amend(context):
        return [AmendArguments({"n": 9})] if context.call.resumed else [GATE]

    play(world, before_tool(ask_then_amend), script=rounds_of(1))
    approve(world, world.inbox()[0])

    assert (world.tools.orders[0].arguments["n"], recorded) == (9, [{"n": 9}])
    assert world.row("calls")["arguments"] == {"n": 9}


def test_call_that_suspends_again_asks_about_its_effective_arguments(world):
    def ask_twice(context):
        payload = context.call.resumed and context.call.resumed.payload
        return [] if payload == "again" else [AmendArguments({"n": 9}), GATE] if payload else [GATE]

    play(world, before_tool(ask_twice), script=rounds_of(1))
    approve(world, world.inbox()[0])
    second = world.inbox()[0]

    assert (second["digest"], world.row("calls")["arguments"]) == (digest({"n": 9}), {"n": 9})
    approve(world, second, "again")
    assert world.tools.orders[0].arguments["n"] == 9


def test_a_call_that_was_cancelled_while_a_plugin_amended_it_does_not_run(world):
    def ask_then_cancel(context):
        if not context.call.resumed:
            return [GATE]
        world.pending += stages.cancel_turn(world.runtime, world.row("turns")["id"])[1]
        return [AmendArguments({"n": 9})]

    play(world, before_tool(ask_then_cancel), script=rounds_of(1))
    approve(world, world.inbox()[0])

    assert world.tools.orders == []
    assert world.row("calls")["status"] == "cancelled"


def test_a_plugin_that_breaks_at_an_approved_call_ends_the_run(world):
    def ask_and_break(context):
        return break_down(context) if context.call.resumed else [GATE]

    play(world, before_tool(ask_and_break), script=rounds_of(1))
    approve(world, world.inbox()[0])
    assert world.row("runs")["reason"] == "error"


def test_the_time_a_person_takes_is_no_working_time(world):
    change_agent(world, limits=replace(world.agents.get("ada").limits, timeout=60))
    world.tools.asks = asks_once(0)
    play(world, script=rounds_of(1))
    world.clock.pass_by(3600)
    approve(world, world.inbox()[0])
    assert world.row("runs")["reason"] == "natural_end"


def test_a_call_that_joined_a_round_is_an_outcome_of_it(world):
    """The one of the first round that waits is approved while the last call of the second one runs."""
    asked = set()

    def ask(order):
        _, ask_id, _ = order.idempotency_key.split(":")
        if ask_id == "r0c1" or order.call_id in asked:
            return None
        asked.add(order.call_id)
        if ask_id == "r1c1":
            world.decide(approval(world.inbox()[0]))
        return ASK

    world.tools.asks = ask
    play(world, script=rounds_of(2, rounds=2))
    assert world.row("decisions")["call_id"] == world.rows("calls")[0]["id"]
    assert len(world.models.prompts) == 3


def test_a_decision_just_in_time_beats_the_expiry_that_cancels(world):
    """Both questions are late. A person sees the one and answers the other, which the sweep has read already."""
    in_time = replace(ASK, expires_in=60.0, on_expiry=OnExpiry.CANCEL_RUN)
    first_to_be_late = replace(ASK, expires_in=30.0, on_expiry=OnExpiry.ESCALATE)
    world.tools.asks = lambda order: first_to_be_late if order.thread_id == "other" else None
    world.submit(thread="other")
    world.run_dry()
    world.tools.asks = asks_once(0, question=in_time)
    turn = play(world, script=rounds_of(1))
    (asked,) = world.rows("suspensions", run_id=turn["run_id"])

    on_event(world, "call.overdue", lambda: world.decide(approval(asked)))
    world.sweep(61)
    world.run_dry()
    assert world.row("turns", id=turn["id"])["disposition"] == "answered"


@pytest.mark.parametrize("backend", [pytest.param("postgres", marks=pytest.mark.postgres)], indirect=True)
@pytest.mark.parametrize("mixed", list(MixedRound))
def test_a_call_that_joins_while_the_round_is_committed_is_not_left_behind(world, mixed):
    change_agent(world, mixed_round=mixed)
    world.models.script = rounds_of(2)
    world.tools.asks = asks_once(0)
    world.submit()
    while not world.inbox():
        world.deliver(world.pending.pop(0))

    committed, joined = _commit_the_round_while_an_answer_is_taken(world, approval(world.inbox()[0]))

    # the model answers while the joined call has not yet run
    world.pending = [intent for intent in world.pending if not isinstance(intent, Header)] + committed
    world.run_dry()
    world.pending += joined
    world.run_dry()
    for _ in range(10):
        world.sweep(100)
        world.run_dry()
    assert world.row("runs")["status"] == "done"


def _commit_the_round_while_an_answer_is_taken(world, answer):
    """What follows from each. The commit comes when the answer has locked the run and is not yet stored."""
    rt, run = world.runtime, world.row("runs")
    asked = approvals.check_decisions(rt, [answer])
    with ThreadPoolExecutor(1) as pool:
        with Unit(rt) as unit:
            approvals.take_decisions(unit, [answer], asked, "test")
            with world.as_another_process():
                stages.run_batch(rt, [world.rows("calls")[1]["id"]])
            commit = pool.submit(stages.commit_round, rt, run["id"], run["step"])
            until(lambda: commit.done() or has_lock_waits(world.store), "the commit waits for the run")
            assert not commit.done(), "it did not wait"
        return commit.result(), unit.intents
