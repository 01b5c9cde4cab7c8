"""Calls that wait for a decision: how a run is suspended, how it resumes, and what the model sees of it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from sqlalchemy import update

from chordage.orchestrator import stages
from chordage.orchestrator.core.agent import MixedRound, OnUnknown, ToolMode, WhileWaiting
from chordage.orchestrator.core.approvals import Action, DecisionRequest, OnExpiry, Question, ResumeMode, Why
from chordage.orchestrator.core.errors import Conflict, InvalidDecision, NotFound
from chordage.orchestrator.core.message import Origin, Sender
from chordage.orchestrator.core.model import ToolSays, UserSays
from chordage.orchestrator.core.transcript import AWAITING, DECIDED, NOT_STARTED, UNFINISHED
from chordage.orchestrator.run.cancelling import CALL_CANCELLED
from chordage.orchestrator.store.schema import calls
from support.fakes import asking, rounds_of
from support.invariants import check_all
from support.world import Died

ASK = Question(why=Why.TOOL, prompt="May I?")


def asks_once(*numbers: int, question: Question = ASK):
    """The calls with these numbers ask the first time they run."""
    asked: set[str] = set()

    def ask(order):
        if order.arguments.get("n") not in numbers or order.call_id in asked:
            return None
        asked.add(order.call_id)
        return question

    return ask


def approve(row, payload=True, **more) -> DecisionRequest:
    return DecisionRequest(target=row["id"], action=Action.RESUME, payload=payload, **more)


def deny(row, reason=None) -> DecisionRequest:
    return DecisionRequest(target=row["id"], action=Action.CANCEL, reason=reason)


def settings(world, **changed):
    world.agents.agents["ada"] = replace(world.agents.agents["ada"], **changed)


def result_texts(prompt) -> list[str]:
    return [said.content for said in prompt.said if isinstance(said, ToolSays)]


def statuses(world) -> list[str]:
    return [call["status"] for call in world.rows("calls")]


def test_round_whose_calls_all_wait_suspends_the_run(world):
    world.models.script = rounds_of(1)
    world.tools.asks = asks_once(0)
    world.submit()
    world.run_dry()

    run = world.row("runs")
    assert (run["status"], run["reason"], run["lease_until"], run["claim_token"]) == (
        "waiting",
        "suspended",
        None,
        None,
    )
    assert world.row("turns")["status"] == "active"
    assert statuses(world) == ["suspended"]
    assert world.locks.threads == {}
    assert len(world.models.prompts) == 1


def test_approved_call_runs_once_more_and_its_result_has_the_place_of_the_call(world):
    world.models.script = rounds_of(1)
    world.tools.asks = asks_once(0)
    world.submit()
    world.run_dry()
    world.decide(approve(world.inbox()[0]))
    world.run_dry()

    assert world.row("turns")["disposition"] == "answered"
    assert result_texts(world.models.prompts[-1]) == ["pure0"]
    assert list(world.tools.ran.values()) == [2]
    check_all(world.store)


def test_mixed_round_continues_with_a_placeholder_and_waits_at_its_natural_end(world):
    world.models.script = rounds_of(3)
    world.tools.asks = asks_once(1)
    world.submit()
    world.run_dry()

    assert result_texts(world.models.prompts[-1]) == ["pure0", AWAITING, "pure2"]
    assert world.row("runs")["status"] == "waiting"
    world.decide(approve(world.inbox()[0]))
    world.run_dry()

    assert result_texts(world.models.prompts[-1]) == ["pure0", "pure1", "pure2"]
    assert world.models.prompts[-1].said[-1] == UserSays(text=DECIDED), "no prompt ends with the model's own words"
    assert world.row("turns")["disposition"] == "answered"
    assert len(world.models.prompts) == 3
    check_all(world.store)


def test_an_agent_may_rather_wait_for_every_call_of_a_mixed_round(world):
    settings(world, mixed_round=MixedRound.WAIT)
    world.models.script = rounds_of(2)
    world.tools.asks = asks_once(1)
    world.submit()
    world.run_dry()

    assert (len(world.models.prompts), world.row("runs")["status"]) == (1, "waiting")
    world.decide(approve(world.inbox()[0]))
    world.run_dry()
    assert [len(result_texts(prompt)) for prompt in world.models.prompts] == [0, 2]
    check_all(world.store)


def test_a_denial_reaches_the_model_with_its_reason(world):
    world.models.script = rounds_of(1)
    world.tools.asks = asks_once(0)
    world.submit()
    world.run_dry()
    world.decide(deny(world.inbox()[0], "too expensive"))
    world.run_dry()

    (content,) = result_texts(world.models.prompts[-1])
    assert "denied" in content
    assert "too expensive" in content
    assert statuses(world) == ["cancelled"]
    assert world.row("turns")["disposition"] == "answered"
    check_all(world.store)


def test_a_decision_may_be_the_result(world):
    world.models.script = rounds_of(1)
    world.tools.asks = asks_once(0, question=replace(ASK, resume_mode=ResumeMode.USE_AS_RESULT))
    world.submit()
    world.run_dry()
    world.decide(approve(world.inbox()[0], {"colour": "red"}))
    world.run_dry()

    assert result_texts(world.models.prompts[-1]) == ['{"colour": "red"}']
    assert list(world.tools.ran.values()) == [1]
    check_all(world.store)


def test_a_decision_may_be_handed_to_the_tool(world):
    world.models.script = rounds_of(1)
    world.tools.asks = asks_once(0, question=replace(ASK, resume_mode=ResumeMode.PASS_TO_TOOL))
    world.submit()
    world.run_dry()
    world.decide(approve(world.inbox()[0], {"amount": 5}))
    world.run_dry()

    assert [order.decision for order in world.tools.orders] == [None, {"amount": 5}]


def test_call_may_suspend_again_and_each_question_is_its_own(world):
    world.models.script = rounds_of(1)
    world.tools.asks = lambda order: ASK if len(world.tools.orders) < 4 else None
    world.submit()
    world.run_dry()
    seen = []
    for _ in range(3):
        (row,) = world.inbox()
        seen.append(row)
        world.decide(approve(row))
        world.run_dry()

    assert len({row["id"] for row in seen}) == 3
    assert world.row("turns")["disposition"] == "answered"
    with pytest.raises(Conflict, match="succeeded"):
        world.decide(approve(seen[0], key="another"))
    check_all(world.store)


def test_a_repeat_without_the_key_of_a_decision_changes_nothing(world):
    row = asked_question(world)
    world.decide(approve(row, "yes", key="k"))

    (again,) = world.decide(approve(row, "yes"))
    world.run_dry()

    assert again.duplicate
    assert len(world.rows("decisions")) == 1
    assert list(world.tools.ran.values()) == [2]
    check_all(world.store)


@pytest.mark.parametrize(
    ("first", "second", "error"),
    [
        ("k", None, "; its call is suspended"),
        (None, "k", "; its call is suspended"),
        ("k", "l", "; its call is suspended"),
        ("k", "k", ", with the same key 'k' and other content; its call is suspended"),
    ],
)
def test_refusal_of_another_answer_mentions_a_key_only_if_both_have_it(world, first, second, error):
    row = asked_question(world)
    world.decide(approve(row, "yes", key=first))

    with pytest.raises(Conflict) as refused:
        world.decide(approve(row, "otherwise", key=second))

    at = f"{world.clock():%Y-%m-%d %H:%M} UTC"
    assert str(refused.value) == f"suspension {row['id']} was approved at {at} by test{error}"


@pytest.mark.parametrize("first", [None, "k"])
def test_decision_with_a_key_of_its_own_is_no_repeat(world, first):
    row = asked_question(world)
    world.decide(approve(row, "yes", key=first))

    with pytest.raises(Conflict, match="was approved at .* by test; its call"):
        world.decide(approve(row, "yes", key="another"))


def test_refusal_says_that_the_call_was_denied(world):
    row = asked_question(world)
    world.decide(deny(row))

    with pytest.raises(Conflict, match="was denied at .* by test; its call"):
        world.decide(approve(row))


def asked_question(world):
    world.models.script = rounds_of(1)
    world.tools.asks = asks_once(0)
    world.submit()
    world.run_dry()
    return world.inbox()[0]


def test_a_stale_approval_never_answers_a_later_question_of_the_same_call(world):
    world.models.script = rounds_of(1)
    world.tools.asks = lambda order: ASK if len(world.tools.orders) < 3 else None
    world.submit()
    world.run_dry()
    (first,) = world.inbox()
    world.decide(approve(first, key="k"))
    world.run_dry()
    (second,) = world.inbox()

    (again,) = world.decide(approve(first, key="k"))
    with pytest.raises(Conflict):
        world.decide(approve(first, "other", key="k"))
    world.run_dry()

    assert again.duplicate
    assert world.inbox() == [second]
    assert world.row("runs")["status"] == "waiting"


def test_edited_arguments_are_checked_and_used(world):
    world.models.script = rounds_of(1)
    world.tools.asks = asks_once(0)
    world.submit()
    world.run_dry()
    (row,) = world.inbox()
    with pytest.raises(InvalidDecision, match="must be a number"):
        world.decide(approve(row, edited_args={"n": "many"}))
    world.decide(approve(row, edited_args={"n": 7}))
    world.run_dry()

    assert result_texts(world.models.prompts[-1]) == ["pure7"]
    assert world.row("decisions")["edited_digest"] != row["digest"]


def test_answer_must_fit_the_question(world):
    world.models.script = rounds_of(1)
    schema = {"type": "object", "required": ["amount"], "properties": {"amount": {"type": "integer"}}}
    world.tools.asks = asks_once(0, question=replace(ASK, schema=schema))
    world.submit()
    world.run_dry()
    (row,) = world.inbox()

    with pytest.raises(InvalidDecision, match="amount"):
        world.decide(approve(row, {"amount": "five"}))
    assert world.inbox() == [row]


def test_missing_or_unasked_question_cannot_be_decided(world):
    world.models.script = rounds_of(1)
    world.submit()
    world.run_dry()
    (call,) = world.rows("calls")

    with pytest.raises(NotFound, match="chordage inbox"):
        world.decide(approve({"id": "nothing"}))
    with pytest.raises(Conflict, match="never did"):
        world.decide(approve(call))
    with pytest.raises(InvalidDecision, match="at least one"):
        world.decide()


def test_a_batch_of_decisions_is_taken_whole_or_not_at_all(world):
    world.models.script = rounds_of(2)
    world.tools.asks = asks_once(0, 1)
    world.submit()
    world.run_dry()
    first, second = world.inbox()
    with pytest.raises(NotFound):
        world.decide(approve(first), approve({"id": "nothing"}))
    assert world.inbox() == [first, second]

    world.decide(approve(first), deny(second))
    world.run_dry()
    assert statuses(world) == ["succeeded", "cancelled"]
    assert world.row("turns")["disposition"] == "answered"
    check_all(world.store)


def test_one_of_two_is_approved_and_a_day_later_the_other(world):
    world.models.script = rounds_of(2)
    world.tools.asks = asks_once(0, 1)
    world.submit()
    world.run_dry()
    first, second = world.inbox()
    world.decide(approve(first))
    world.run_dry()
    assert (statuses(world), world.row("runs")["status"]) == (["succeeded", "suspended"], "waiting")

    world.locks.wipe()
    world.sweep(24 * 3600)
    world.run_dry()
    world.decide(approve(second))
    world.run_dry()

    assert result_texts(world.models.prompts[-1]) == ["pure0", "pure1"]
    assert sorted(world.tools.finished.values()) == [1, 1]
    assert world.row("runs")["reason"] == "natural_end"
    check_all(world.store)


def test_in_batch_mode_decided_calls_continue_only_together(world):
    settings(world, tool_mode=ToolMode.PARALLEL_BATCH)
    world.models.script = rounds_of(2)
    world.tools.asks = asks_once(0, 1)
    world.submit()
    world.run_dry()
    first, second = world.inbox()
    world.decide(approve(first))
    world.run_dry()
    assert (statuses(world), world.row("runs")["status"]) == (["suspended", "suspended"], "waiting")

    world.decide(approve(second))
    world.run_dry()
    assert statuses(world) == ["succeeded", "succeeded"]
    check_all(world.store)


def test_sequential_calls_behind_a_waiting_one_run_after_it(world):
    settings(world, tool_mode=ToolMode.SEQUENTIAL, mixed_round=MixedRound.CONTINUE)
    world.models.script = rounds_of(3)
    world.tools.asks = asks_once(1)
    world.submit()
    world.run_dry()
    assert statuses(world) == ["succeeded", "suspended", "new"]
    assert result_texts(world.models.prompts[-1]) == ["pure0", AWAITING, NOT_STARTED]

    world.decide(approve(world.inbox()[0]))
    world.run_dry()
    assert [order.arguments["n"] for order in world.tools.orders] == [0, 1, 1, 2]
    assert result_texts(world.models.prompts[-1]) == ["pure0", "pure1", "pure2"]
    check_all(world.store)


def test_beside_a_running_round_a_decision_is_carried_out_at_once(world):
    world.models.script = rounds_of(2)
    world.tools.asks = asks_once(0)
    world.submit()
    while len(world.inbox()) == 0:
        world.deliver(world.pending.pop(0))
    world.decide(approve(world.inbox()[0]))
    replay = next(intent for intent in world.pending if type(intent).__name__ == "CallTool")
    world.pending.remove(replay)
    world.deliver(replay)

    assert statuses(world) == ["succeeded", "new"]
    world.run_dry()
    assert len(world.models.prompts) == 2
    assert result_texts(world.models.prompts[-1]) == ["pure0", "pure1"]
    check_all(world.store)


def test_without_streaming_a_decision_beside_a_round_waits_for_its_end(world):
    settings(world, stream=False)
    world.models.script = rounds_of(2)
    world.tools.asks = asks_once(0)
    world.submit()
    while len(world.inbox()) == 0:
        world.deliver(world.pending.pop(0))
    world.decide(approve(world.inbox()[0]))
    assert statuses(world) == ["suspended", "new"]

    world.run_dry()
    assert len(world.models.prompts) == 2
    assert result_texts(world.models.prompts[-1]) == ["pure0", "pure1"]
    check_all(world.store)


def test_a_message_ends_a_waiting_run_of_a_chat_and_keeps_what_was_finished(world):
    world.models.script = rounds_of(2)
    world.tools.asks = asks_once(1)
    first = world.submit(origin=Origin.INVOKE)
    world.run_dry()
    (question,) = world.inbox()
    world.tools.asks = lambda order: None
    second = world.submit("never mind")
    world.run_dry()

    dispositions = {turn["id"]: turn["disposition"] for turn in world.rows("turns")}
    assert dispositions == {first: "superseded", second: "answered"}
    assert world.inbox() == []
    seen = result_texts(world.models.prompts[-2])
    assert seen[0] == "pure0"
    assert "later message" in seen[1]
    assert UserSays(text=DECIDED) not in world.models.prompts[-1].said
    with pytest.raises(Conflict, match="without a decision at .*, when its run was ended by a later message; its call"):
        world.decide(approve(question))
    check_all(world.store)


def test_message_may_be_set_to_wait_with_the_run(world):
    world.models.script = rounds_of(1)
    world.tools.asks = asks_once(0)
    first = world.submit()
    world.run_dry()
    second = world.submit("and then", while_waiting=WhileWaiting.HOLD)
    world.run_dry()
    assert world.row("turns", id=second)["status"] == "queued"

    world.tools.asks = lambda order: None
    world.decide(approve(world.inbox()[0]))
    world.run_dry()
    assert {turn["disposition"] for turn in world.rows("turns")} == {"answered"}
    assert world.row("turns", id=first)["done_at"] is not None
    check_all(world.store)


def test_decisions_that_come_with_a_message_are_applied_first(world):
    world.models.script = rounds_of(1)
    world.tools.asks = asks_once(0)
    first = world.submit()
    world.run_dry()
    second = world.submit("go ahead", decisions=(approve(world.inbox()[0]),))
    world.tools.asks = lambda order: None
    world.run_dry()

    assert [turn["disposition"] for turn in world.rows("turns")] == ["answered", "answered"]
    assert world.row("turns", id=first)["arrival"] < world.row("turns", id=second)["arrival"]
    check_all(world.store)


def test_a_waiting_run_costs_no_budget_and_no_sweep(world):
    world.models.script = rounds_of(1)
    world.tools.asks = lambda order: ASK
    for number in range(30):
        world.submit(thread=f"chore:{number}", origin=Origin.CHORE, sender=Sender.SELF)
    world.run_dry()

    assert {run["status"] for run in world.rows("runs")} == {"waiting"}
    assert len(world.inbox()) == 30
    before = world.statements
    assert world.sweep(3600) == []
    assert world.statements - before < 20


@pytest.mark.parametrize("on_expiry", list(OnExpiry))
def test_unanswered_question_ends_as_configured(world, on_expiry):
    world.models.script = rounds_of(1)
    question = replace(ASK, expires_in=60.0, on_expiry=on_expiry, default="green", resume_mode=ResumeMode.USE_AS_RESULT)
    world.tools.asks = asks_once(0, question=question)
    world.submit()
    world.run_dry()
    world.sweep(30)
    (asked,) = world.inbox()
    world.sweep(31)
    world.run_dry()

    outcome = (world.row("turns")["disposition"], statuses(world)[0], len(world.inbox()))
    assert (
        outcome
        == {
            OnExpiry.DENY: ("answered", "cancelled", 0),
            OnExpiry.CANCEL_RUN: ("cancelled", "cancelled", 0),
            OnExpiry.DEFAULT: ("answered", "succeeded", 0),
            OnExpiry.ESCALATE: (None, "suspended", 1),
        }[on_expiry]
    )
    if on_expiry is not OnExpiry.ESCALATE:
        then = {
            OnExpiry.DENY: "the call was denied then; its call is cancelled",
            OnExpiry.CANCEL_RUN: "its run was cancelled then; its call is cancelled",
            OnExpiry.DEFAULT: "its default answer was applied then; its call is succeeded",
        }[on_expiry]
        with pytest.raises(Conflict) as refused:
            world.decide(approve(asked, "late"))
        at = f"{asked['expires_at']:%Y-%m-%d %H:%M} UTC"
        assert str(refused.value) == f"suspension {asked['id']} expired at {at} without a decision, and {then}"


def test_a_cancelled_run_is_decided_about_no_more(world):
    world.models.script = rounds_of(1)
    world.tools.asks = asks_once(0)
    turn = world.submit()
    world.run_dry()
    (row,) = world.inbox()
    _, intents = stages.cancel_turn(world.runtime, turn, "enough")
    world.pending += intents
    world.run_dry()

    with pytest.raises(Conflict, match="without a decision at .*, when its run was cancelled; its call is cancelled"):
        world.decide(approve(row))
    assert world.row("turns")["disposition"] == "cancelled"
    check_all(world.store)


def test_next_turn_learns_that_the_one_before_was_interrupted(world):
    world.models.script = rounds_of(1)
    world.tools.asks = asks_once(0)
    turn = world.submit("first")
    world.run_dry()
    stages.cancel_turn(world.runtime, turn, "enough")
    world.submit("second")
    world.run_dry()

    said = [message.text for message in world.models.prompts[-1].said if hasattr(message, "text")]
    assert any("cancelled: enough" in text for text in said)


def test_an_unsafe_call_whose_worker_died_is_a_question_for_a_person(world):
    world.models.script = rounds_of(1, tool="unsafe")
    world.tools.before = lambda order: (_ for _ in ()).throw(world.kill())
    world.submit()
    with pytest.raises(Died):
        world.run_dry()
    world.tools.before = lambda order: None
    world.forget_the_dead()
    world.sweep(40)
    world.run_dry()

    (row,) = world.inbox()
    assert (row["why"], world.row("runs")["status"]) == ("outcome_unknown", "waiting")
    with pytest.raises(InvalidDecision, match="answer"):
        world.decide(approve(row, True))
    world.decide(approve(row, {"answer": "result", "result": "paid"}))
    world.run_dry()
    assert result_texts(world.models.prompts[-1]) == ["paid"]
    assert list(world.tools.ran.values()) == [1]


@pytest.mark.parametrize(("answer", "status", "runs"), [("retry", "succeeded", 2), ("failed", "failed", 1)])
def test_person_may_have_it_run_again_or_report_its_failure(world, answer, status, runs):
    world.models.script = rounds_of(1, tool="unsafe")
    world.tools.before = lambda order: (_ for _ in ()).throw(world.kill())
    world.submit()
    with pytest.raises(Died):
        world.run_dry()
    world.tools.before = lambda order: None
    world.forget_the_dead()
    world.sweep(40)
    world.run_dry()
    world.decide(approve(world.inbox()[0], {"answer": answer}))
    world.run_dry()

    assert (statuses(world), list(world.tools.ran.values())) == ([status], [runs])
    check_all(world.store)


def interrupted_unsafe_call(world):
    world.models.script = rounds_of(1, tool="unsafe")
    world.tools.before = lambda order: (_ for _ in ()).throw(world.kill())
    turn_id = world.submit()
    with pytest.raises(Died):
        world.run_dry()
    world.tools.before = lambda order: None
    world.forget_the_dead()
    world.sweep(40)
    world.run_dry()
    return turn_id


def test_denial_does_not_say_that_an_interrupted_call_did_nothing(world):
    interrupted_unsafe_call(world)
    world.decide(deny(world.inbox()[0]))
    world.run_dry()

    (result,) = result_texts(world.models.prompts[-1])
    assert "not known whether it took effect" in result
    assert "has not been executed" not in result


def test_end_of_its_run_does_not_say_that_an_interrupted_call_did_nothing(world):
    turn_id = interrupted_unsafe_call(world)
    stages.cancel_turn(world.runtime, turn_id)

    assert (statuses(world), world.row("calls")["content"]) == (["cancelled"], UNFINISHED)
    check_all(world.store)


def test_end_of_its_run_says_that_a_call_without_a_decision_was_not_executed(world):
    world.tools.asks = asks_once(0)
    world.tools.asks = asks_once(0)
    world.models.script = rounds_of(1)
    turn_id = world.submit()
    world.run_dry()
    stages.cancel_turn(world.runtime, turn_id)

    assert (statuses(world), world.row("calls")["content"]) == (["cancelled"], CALL_CANCELLED)


def test_agent_may_prefer_a_failure_to_a_question(world):
    settings(world, on_unknown=OnUnknown.FAIL)
    world.models.script = rounds_of(1, tool="unsafe")
    world.tools.before = lambda order: (_ for _ in ()).throw(world.kill())
    world.submit()
    with pytest.raises(Died):
        world.run_dry()
    world.tools.before = lambda order: None
    world.forget_the_dead()
    world.recover()

    assert world.row("calls")["code"] == "outcome_unknown"
    check_all(world.store)


def test_result_three_replies_later_comes_after_its_call(world):
    asked_ids = iter(range(100))

    def script(prompt):
        done = sum(type(said).__name__ == "AssistantSays" for said in prompt.said)
        if done < 3:
            return asking(("pure", {"n": done}), ("pure", {"n": 10 + done}), ids=(f"a{done}", f"b{next(asked_ids)}x"))
        return rounds_of(1, rounds=0)(prompt)

    world.models.script = script
    world.tools.asks = asks_once(0)
    world.submit()
    world.run_dry()
    assert result_texts(world.models.prompts[-1])[0] == AWAITING
    world.decide(approve(world.inbox()[0]))
    world.run_dry()

    assert result_texts(world.models.prompts[-1]) == ["pure0", "pure10", "pure1", "pure11", "pure2", "pure12"]
    check_all(world.store)


def test_sequential_rescue_sends_no_call_past_the_one_before_it(world):
    settings(world, tool_mode=ToolMode.SEQUENTIAL)
    world.models.script = rounds_of(2, tool="unsafe")
    world.tools.before = lambda order: (_ for _ in ()).throw(world.kill())
    world.submit()
    with pytest.raises(Died):
        world.run_dry()
    world.revive()
    world.tools.before = lambda order: None
    behind = world.rows("calls")[1]
    with world.store.write() as tx:
        tx.execute(update(calls).where(calls.c.id == behind["id"]).values(lease_until=world.clock()))
    world.sweep(1)
    world.run_dry()

    assert [order.arguments["n"] for order in world.tools.orders] == [0]
    world.recover()
    assert statuses(world) == ["failed", "succeeded"]
