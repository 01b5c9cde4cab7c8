"""Conformance, first part: state machines, the prompt's view, decisions and checkpoints.

The numbers are those of the scenarios of the run-lifecycle design this one started from; see docs/adr/0016.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from uuid import UUID

import pytest
from sqlalchemy import delete, insert

from chordage.orchestrator.core.approvals import Action, DecisionRequest, Question, ResumeMode
from chordage.orchestrator.core.errors import Conflict, NotFound
from chordage.orchestrator.core.groups import Group
from chordage.orchestrator.core.intents import CallModel
from chordage.orchestrator.core.model import AssistantSays, ToolSays
from chordage.orchestrator.core.status import CALL, RUN, CallStatus, RunStatus
from chordage.orchestrator.core.transcript import AWAITING, NOT_RUN
from chordage.orchestrator.gateways.ids import Ids
from chordage.orchestrator.store import schema
from support.fakes import asking, rounds_of, spoken
from support.invariants import check_all
from support.one_turn import kinds, result_texts, results, statuses
from support.questions import ASK
from support.world import Died


def suspended(world, *numbers: int, width: int = 1, question: Question = ASK) -> list[dict]:
    """A run that waits: the calls with these numbers have asked. Whatever asks again later is let through."""
    world.models.script = rounds_of(width)
    world.tools.asks = lambda order: question if order.arguments["n"] in numbers else None
    world.submit()
    world.run_dry()
    world.tools.asks = lambda order: None
    return world.inbox()


def decide(world, target: str, action: Action = Action.RESUME, **more):
    decided = world.decide(DecisionRequest(target=target, action=action, **more))
    world.run_dry()
    return decided


@pytest.mark.parametrize(("here", "there"), list(product(RunStatus, RunStatus)), ids=str)
def test_a_run_moves_between_running_and_waiting_and_never_out_of_done(here, there):  # 1
    legal = {"running": {"waiting", "done"}, "waiting": {"running", "done"}, "done": set()}
    assert (there in RUN[here]) is (there.value in legal[here.value])


@pytest.mark.parametrize(("here", "there"), list(product(CallStatus, CallStatus)), ids=str)
def test_every_pair_of_call_states_answers_as_laid_down(here, there):  # 4
    ends = {"succeeded", "failed", "cancelled"}
    legal = {
        "new": {"running", "suspended", *ends}, "running": {"suspended", *ends}, "suspended": {"resuming", "cancelled"},
        "resuming": {"running", "suspended", *ends},
    }  # fmt: skip
    assert (there in CALL[here]) is (there.value in legal.get(here.value, set()))


def test_a_call_id_that_ended_and_is_sent_again_is_a_new_life(world):  # 6
    replies = iter([asking(("pure", {"n": n}), ids=("same",)) for n in (1, 2)] + [spoken("done")])
    world.models.script = lambda prompt: next(replies)
    world.submit()
    world.run_dry()
    lives = [(call["ask_id"], call["generation"], call["status"]) for call in world.rows("calls")]
    assert lives == [("same", 1, "succeeded"), ("same", 2, "succeeded")]
    assert result_texts(world) == ["pure1", "pure2"]


def test_what_becomes_of_one_call_touches_no_other(world):  # 7
    first, _ = suspended(world, 0, 1, width=2)
    (untouched,) = world.rows("calls", place=1)
    decide(world, first["id"], Action.CANCEL)
    assert statuses(world) == ["cancelled", "suspended"]
    assert world.rows("calls", place=1) == [untouched]


def test_a_call_without_an_id_gets_one_of_its_own(world):  # 7
    replies = iter([asking(("pure", {}), ids=("",)), spoken("done")])
    world.models.script = lambda prompt: next(replies)
    world.submit()
    world.run_dry()
    assert world.row("calls")["ask_id"].strip()
    check_all(world.store)


def test_ids_are_uuids_of_version_seven_and_grow(world):  # 9
    object.__setattr__(world.runtime, "new_id", Ids())
    world.models.script = rounds_of(2, rounds=2)
    world.submit()
    world.run_dry()
    made = [row["id"] for table in ("turns", "runs", "calls") for row in world.rows(table)]
    assert {UUID(one).version for one in made} == {7}
    assert made == sorted(made)


def test_results_without_a_call_are_left_out(world):  # 24
    world.models.script = rounds_of(2)
    world.submit()
    world.run_dry()
    stray = {**world.rows("calls")[0], "id": "stray", "step": 50, "generation": 9, "content": "stray"}
    with world.store.write() as tx:
        tx.execute(insert(schema.calls).values(stray))
    world.submit("again")
    world.run_dry()
    assert result_texts(world)[:2] == ["pure0", "pure1"]
    assert "stray" not in result_texts(world)


def test_failed_result_of_a_call_is_an_error(world):  # 24
    world.models.script = rounds_of(1, tool="nobody")
    world.submit()
    world.run_dry()
    (result,) = results(world)
    assert (result.is_error, result.ask_id) == (True, "r0c0")


def test_a_result_that_reads_like_the_placeholder_is_a_result_all_the_same(world):  # 26
    (asked,) = suspended(world, 0, question=replace(ASK, resume_mode=ResumeMode.USE_AS_RESULT))
    decide(world, asked["id"], payload=AWAITING)
    (result,) = results(world)
    assert (result.content, result.is_error) == (AWAITING, False)


def test_call_whose_result_is_gone_is_marked_not_run(world):  # 27
    world.models.script = rounds_of(2)
    world.submit()
    world.run_dry()
    with world.store.write() as tx:
        tx.execute(delete(schema.calls).where(schema.calls.c.place == 1))
    world.submit("again")
    world.run_dry()
    assert result_texts(world)[:2] == ["pure0", NOT_RUN]


def test_every_call_in_the_view_has_its_result_and_a_plain_reply_has_no_calls(world):  # 29
    suspended(world, 1, width=2)
    world.submit("never mind")
    world.run_dry()
    said = world.models.prompts[-1].said
    asks = [ask.id for one in said if isinstance(one, AssistantSays) for ask in one.asks]
    assert asks == [one.ask_id for one in said if isinstance(one, ToolSays)]
    assert AWAITING not in result_texts(world)
    assert () in [one.asks for one in said if isinstance(one, AssistantSays)]


@pytest.mark.parametrize("by", ["id", "call_id"])
def test_a_decision_names_the_question_or_its_call(world, by):  # 31
    (asked,) = suspended(world, 0)
    (decided,) = decide(world, asked[by])
    assert (decided.suspension_id, statuses(world)) == (asked["id"], ["succeeded"])


def test_approved_call_runs_with_its_original_arguments(world):  # 32
    (asked,) = suspended(world, 0)
    decide(world, asked["id"])
    assert [order.arguments for order in world.tools.orders] == [{"n": 0}, {"n": 0}]
    assert (result_texts(world), statuses(world), world.inbox()) == (["pure0"], ["succeeded"], [])
    assert list(world.tools.finished.values()) == [1]


def test_denial_carries_its_reason(world):  # 34
    (asked,) = suspended(world, 0)
    decide(world, asked["id"], Action.CANCEL, reason="not on a Sunday")
    assert "not on a Sunday" in result_texts(world)[0]
    assert world.tools.finished.total() == 0


def test_a_decision_about_something_unknown_moves_nothing(world):  # 36, 47
    (asked,) = suspended(world, 0)
    before = (world.rows("calls"), world.rows("runs"), list(world.events.seen))
    with pytest.raises(NotFound):
        decide(world, "nobody")
    assert (world.rows("calls"), world.rows("runs"), world.events.seen) == before
    assert (world.inbox(), world.rows("decisions"), world.pending) == ([asked], [], [])


def test_decided_calls_continue_and_the_others_wait(world):  # 37
    first, second = suspended(world, 0, 1, width=2)
    decide(world, first["id"])
    assert (statuses(world), world.inbox()) == (["succeeded", "suspended"], [second])
    assert (world.row("runs")["status"], result_texts(world)) == ("waiting", ["pure0", AWAITING])


def test_a_replay_that_is_delivered_again_runs_nothing_and_adds_nothing(world):  # 39
    (asked,) = suspended(world, 0)
    world.decide(DecisionRequest(target=asked["id"], action=Action.RESUME))
    delivered = []
    while world.pending:
        delivered.append(world.pending.pop(0))
        world.deliver(delivered[-1])
    before = kinds(world)
    for intent in delivered:
        world.deliver(intent)
    world.run_dry()
    assert (list(world.tools.finished.values()), kinds(world)) == ([1], before)


def test_a_decision_about_a_finished_call_is_refused_and_changes_nothing(world):  # 46
    (asked,) = suspended(world, 0)
    decide(world, asked["id"])
    before = (world.rows("calls"), world.rows("runs"), world.rows("decisions"))
    with pytest.raises(Conflict, match="succeeded"):
        decide(world, asked["id"], Action.CANCEL)
    assert (world.rows("calls"), world.rows("runs"), world.rows("decisions")) == before


def test_an_answer_that_was_used_is_settled_and_used_no_more(world):  # 49
    (asked,) = suspended(world, 0, question=replace(ASK, resume_mode=ResumeMode.PASS_TO_TOOL))
    decide(world, asked["id"], payload="yes")
    world.submit("again")
    world.run_dry()
    assert world.row("suspensions")["status"] == "settled"
    assert world.row("decisions")["applied_at"] is not None
    assert [order.decision for order in world.tools.orders] == [None, "yes", None]


def test_a_stale_approval_does_not_answer_the_next_question(world):  # 54
    (first,) = suspended(world, 0)
    world.tools.asks = lambda order: ASK
    decide(world, first["id"], key="k")
    (second,) = world.inbox()
    (again,) = decide(world, first["id"], key="k")
    assert (again.duplicate, world.inbox()) == (True, [second])
    assert world.row("runs")["status"] == "waiting"


def test_a_plain_run_leaves_three_checkpoints_in_order(world):  # 87
    world.models.script = rounds_of(0, rounds=0)
    world.submit()
    world.run_dry()
    assert kinds(world) == ["UserMessage", "AssistantTurnCommitted", "RunFinished"]


def test_each_result_is_in_one_checkpoint_and_each_step_is_committed_once(world):  # 89
    first, second = suspended(world, 0, 1, width=3)
    decide(world, first["id"])
    decide(world, second["id"])
    entries = world.rows("journal")
    results = [entry["body"]["calls"] for entry in entries if entry["kind"] == "ToolResultsCommitted"]
    final = [call["id"] for round_ in results for call in round_ if call["status"] == "succeeded"]
    assert sorted(final) == [call["id"] for call in world.rows("calls")]
    places = [(entry["step"], entry["kind"]) for entry in entries]
    assert len(places) == len(set(places))
    assert [step for step, _ in places] == sorted(step for step, _ in places)


def test_of_two_replies_to_one_step_the_first_is_written_and_the_late_one_refused(world):  # 89, 94
    def reply(prompt):
        if len(world.models.prompts) > 1:
            return spoken("first")
        world.locks.wipe()
        world.deliver(CallModel(run_id=world.row("runs")["id"], step=1, group=Group.CHAT))
        return spoken("late")

    world.models.script = reply
    world.submit()
    world.run_dry()
    assert len(world.models.prompts) == 2
    assert [entry["body"]["text"] for entry in world.rows("journal", kind="AssistantTurnCommitted")] == ["first"]
    assert world.row("runs")["output_tokens"] == spoken("first").usage.output_tokens
    check_all(world.store)


def test_a_last_commit_that_fails_ends_nothing_and_loses_nothing(world):  # 92
    def fail_next(prompt):
        world.die_at, world.die_before = world.commits + 1, True

    world.models.script = rounds_of(0, rounds=0)
    world.models.before_reply = fail_next
    turn = world.submit()
    with pytest.raises(Died):
        world.run_dry()
    world.revive()
    world.models.before_reply = lambda prompt: None
    assert (kinds(world), world.row("runs")["status"], world.row("runs")["step"]) == (["UserMessage"], "running", 1)
    assert (world.events.done, [kind for _, kind, _ in world.events.seen if kind == "run.finished"]) == ([], [])
    world.forget_the_dead()
    world.recover()
    assert (world.events.done, world.row("turns")["disposition"]) == ([turn], "answered")
    check_all(world.store)
