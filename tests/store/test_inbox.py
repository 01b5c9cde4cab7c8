"""The inbox and the timeline of runs that wait, on SQLite and PostgreSQL."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta

import pytest

from chordage.orchestrator import stages, views
from chordage.orchestrator.core.approvals import (
    Action,
    DecisionRequest,
    OnExpiry,
    Question,
    ResumeMode,
    SuspensionStatus,
    Why,
)
from chordage.orchestrator.core.errors import NotFound
from chordage.orchestrator.core.reasons import Reason
from chordage.orchestrator.core.records import Phase
from chordage.orchestrator.core.status import CallStatus
from chordage.orchestrator.store.database import Store
from chordage.orchestrator.views.runs import StepKind, StepStatus
from support.fakes import rounds_of
from support.world import World

ASK = Question(why=Why.TOOL, prompt="May I?", schema={"type": "boolean"}, resume_mode=ResumeMode.PASS_TO_TOOL)


@pytest.fixture
def world(database_url: str) -> Iterator[World]:
    store = Store(database_url)
    world = World(store)
    world.models.script = rounds_of(1)
    world.tools.asks = lambda order: ASK if order.decision is None else None
    yield world
    store.close()


def wait_on(world: World, *threads: str) -> list[str]:
    ids = []
    for thread in threads:
        ids.append(world.submit(thread=thread))
        world.run_dry()
    return ids


def answer(world: World, question: views.OpenQuestion, action: Action = Action.RESUME, **more: object) -> None:
    payload = True if action is Action.RESUME else None
    world.decide(DecisionRequest(target=question.id, action=action, payload=payload, **more))


def run_of(world: World, turn_id: str) -> views.RunView:
    return views.run(world.store, views.turn(world.store, turn_id).run_id)


def test_a_question_shows_all_that_is_needed_to_answer_it(world):
    (turn_id,) = wait_on(world, "t1")

    (question,) = views.inbox(world.store)

    assert (question.agent, question.tool, question.arguments) == ("ada", "pure", {"n": 0})
    assert (question.thread_id, question.run_id) == ("t1", views.turn(world.store, turn_id).run_id)
    assert (question.why, question.prompt, question.schema) == (Why.TOOL, "May I?", {"type": "boolean"})
    assert (question.resume_mode, question.overdue) == (ResumeMode.PASS_TO_TOOL, False)
    assert (question.created_at, question.expires_at) == (world.clock.now, None)
    assert views.schema_asked(world.store, question.call_id) == {"type": "boolean"}
    assert views.schema_asked(world.store, "nope") is None


def test_the_inbox_pages_oldest_first_without_gap_or_double(world):
    for number in range(7):
        wait_on(world, f"t{number}")
        world.clock.pass_by(number % 2)  # some of them at the same moment

    pages, last = [], None
    while page := views.inbox(world.store, limit=3, after=last):
        pages.append([question.thread_id for question in page])
        last = page[-1].id

    assert pages == [["t0", "t1", "t2"], ["t3", "t4", "t5"], ["t6"]]


def test_page_continues_after_a_question_that_was_answered_meanwhile(world):
    wait_on(world, "t1", "t2")
    (first,) = views.inbox(world.store, limit=1)
    answer(world, first)

    assert [question.thread_id for question in views.inbox(world.store, after=first.id)] == ["t2"]


def test_the_inbox_can_be_narrowed(world):
    first, _ = wait_on(world, "t1", "t2")

    def threads(**wanted):
        return [question.thread_id for question in views.inbox(world.store, **wanted)]

    assert threads(thread_id="t2") == ["t2"]
    assert threads(run_id=views.turn(world.store, first).run_id) == ["t1"]
    assert threads(agent="ada", why=Why.TOOL) == ["t1", "t2"]
    assert threads(agent="bob") == threads(why=Why.GATE) == []


def test_a_page_after_what_never_was_is_refused(world):
    with pytest.raises(NotFound, match="leave `after` out to start again: there is no suspension 'nope'"):
        views.inbox(world.store, after="nope")


def test_a_question_that_was_escalated_is_overdue(world):
    late = Question(why=Why.TOOL, prompt="Soon?", expires_in=60.0, on_expiry=OnExpiry.ESCALATE)
    world.tools.asks = lambda order: late
    (turn_id,) = wait_on(world, "t1")
    assert not views.inbox(world.store)[0].overdue
    world.sweep(61)

    (question,) = views.inbox(world.store)

    assert (question.overdue, question.on_expiry) == (True, OnExpiry.ESCALATE)
    assert run_of(world, turn_id).steps[1].calls[0].question.overdue


def test_waiting_run_is_shown_at_its_wait(world):
    (turn_id,) = wait_on(world, "t1")

    _, asked, wait = run_of(world, turn_id).steps

    (call,) = asked.calls
    assert (call.status, call.question.status, call.question.answer) == (
        CallStatus.SUSPENDED, SuspensionStatus.OPEN, None,
    )  # fmt: skip
    assert (wait.kind, wait.status, wait.until) == (StepKind.WAITING, StepStatus.OPEN, None)
    assert (wait.at, [one.id for one in wait.calls]) == (world.clock.now, [call.id])


def test_run_that_was_just_decided_is_not_shown_at_a_model_call(world):
    (turn_id,) = wait_on(world, "t1")
    answer(world, views.inbox(world.store)[0])

    last = run_of(world, turn_id).steps[-1]

    assert (last.kind, last.status, last.until) == (StepKind.WAITING, StepStatus.DONE, world.clock.now)


def test_run_whose_decided_call_is_out_is_shown_at_an_open_replay(world):
    (turn_id,) = wait_on(world, "t1")
    answer(world, views.inbox(world.store)[0])
    while not any(call["status"] == "resuming" for call in world.rows("calls")):
        world.deliver(world.pending.pop(0))

    last = run_of(world, turn_id).steps[-1]

    assert (last.kind, last.status) == (Phase.REPLAY, StepStatus.OPEN)
    assert [call.status for call in last.calls] == [CallStatus.RESUMING]


def test_resumed_run_shows_the_wait_the_answer_and_the_replay(world):
    (turn_id,) = wait_on(world, "t1")
    world.clock.pass_by(90)
    answer(world, views.inbox(world.store)[0], reason="fine", edited_args={"n": 7})
    asked = world.clock.now
    world.clock.pass_by(1)
    world.run_dry()

    run = run_of(world, turn_id)

    assert [step.kind.value for step in run.steps] == ["inference", "tool_round", "waiting", "replay", "inference"]
    assert [step.number for step in run.steps] == [1, 2, 3, 4, 5]
    _, tools, wait, replay, _ = run.steps
    assert wait.until - wait.at == timedelta(seconds=90)
    assert ([call.content for call in replay.calls], replay.status) == (["pure7"], StepStatus.DONE)
    said = tools.calls[0].question.answer
    assert (said.action, said.payload, said.edited_args, said.reason) == (Action.RESUME, True, {"n": 7}, "fine")
    assert (said.source, said.created_at, said.applied_at) == ("test", asked, world.clock.now)


def test_a_denied_call_shows_its_denial(world):
    (turn_id,) = wait_on(world, "t1")
    answer(world, views.inbox(world.store)[0], Action.CANCEL, reason="no")
    world.run_dry()

    steps = run_of(world, turn_id).steps
    (call,) = steps[1].calls

    assert (call.status, call.code, call.question.answer.action) == (CallStatus.CANCELLED, "denied", Action.CANCEL)
    assert [call.status for call in steps[3].calls] == [CallStatus.CANCELLED]


def test_each_wait_of_a_call_that_suspends_twice_is_shown_with_its_own_answer(world):
    world.tools.asks = lambda order: ASK if len(world.tools.orders) < 3 else None
    (turn_id,) = wait_on(world, "t1")
    for _ in range(2):
        world.clock.pass_by(10)
        answer(world, views.inbox(world.store)[0])
        world.clock.pass_by(1)
        world.run_dry()

    waits = [step for step in run_of(world, turn_id).steps if step.kind is StepKind.WAITING]

    assert [wait.status for wait in waits] == [StepStatus.DONE, StepStatus.DONE]
    assert waits[0].until is None
    assert waits[1].until - waits[1].at == timedelta(seconds=10)


def test_a_run_cancelled_while_it_waits_ends_with_its_interruption(world):
    (turn_id,) = wait_on(world, "t1")
    stages.cancel_turn(world.runtime, turn_id, "enough")

    run = run_of(world, turn_id)

    assert [step.kind.value for step in run.steps] == ["inference", "tool_round", "waiting", "interrupted"]
    assert (run.steps[-1].reason, run.steps[-1].detail) == (Reason.CANCELLED, "enough")
    assert run.steps[1].calls[0].question.status is SuspensionStatus.SUPERSEDED


def test_history_shows_what_was_decided_about_a_call(world):
    wait_on(world, "t1")
    answer(world, views.inbox(world.store)[0], reason="fine")
    world.run_dry()

    (call,) = views.history(world.store, "t1")[1].calls

    assert call.question.answer.reason == "fine"
