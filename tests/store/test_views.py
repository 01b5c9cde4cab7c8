"""Views show what the tables hold, on SQLite and PostgreSQL."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta

import pytest
from sqlalchemy import event

from chordage.orchestrator import stages, views
from chordage.orchestrator.core.approvals import Question, Why
from chordage.orchestrator.core.errors import ModelFailed, NotFound
from chordage.orchestrator.core.groups import Group
from chordage.orchestrator.core.intents import CallModel, Dispatch, Hint
from chordage.orchestrator.core.message import Origin
from chordage.orchestrator.core.model import Attempt, Fault, Reply, StopReason, ToolAsk, Usage
from chordage.orchestrator.core.reasons import Reason
from chordage.orchestrator.core.status import CallStatus, Disposition, RunStatus, TurnStatus
from chordage.orchestrator.store.database import Store
from chordage.orchestrator.views.runs import InferenceStep, StepStatus, ToolRound
from chordage.orchestrator.views.threads import RemarkRole
from support.fakes import asking, rounds_of, spoken
from support.world import World


@pytest.fixture
def world(database_url: str) -> Iterator[World]:
    store = Store(database_url)
    yield World(store)
    store.close()


def deliver_until(world: World, kind: type) -> None:
    """Deliver in order, up to the first intent of this kind, which stays pending."""
    while not isinstance(world.pending[0], kind):
        world.deliver(world.pending.pop(0))


def test_a_finished_turn_shows_its_answer_its_usage_and_how_it_ended(world):
    world.models.script = rounds_of(2)
    turn_id = world.submit("hello")
    world.clock.pass_by(5)
    world.run_dry()

    turn = views.turn(world.store, turn_id)

    assert (turn.status, turn.disposition, turn.reason) == (
        TurnStatus.DONE,
        Disposition.ANSWERED,
        Reason.NATURAL_END,
    )
    assert turn.answer == "done: hello [pure0 pure1]"
    assert (turn.rounds, turn.usage) == (1, Usage(input_tokens=8, output_tokens=6, cost_nanos=None, unpriced=2))
    assert (turn.position, turn.text, turn.fate) == (None, "hello", "answered")
    assert turn.done_at - turn.queued_at == timedelta(seconds=5)


def test_queued_turns_know_their_place_in_the_line_of_their_thread(world):
    first, second, third = (world.submit(str(number)) for number in range(3))
    other = world.submit("elsewhere", thread="t2")
    stages.dispatch(world.runtime, Group.CHAT, Hint(first, "t1"), only=True)

    places = [views.turn(world.store, turn_id).position for turn_id in (first, second, third, other)]

    assert places == [None, 1, 2, 1]
    assert views.turn(world.store, third).fate == "queued, number 2 in the line of its thread"


def test_turn_of_a_higher_group_comes_before_older_ones_on_its_thread(world):
    running = world.submit("runs")
    world.deliver(Dispatch(group=Group.CHAT))
    low = world.submit("low", group=Group.CHORE)
    high = world.submit("high")

    assert [views.turn(world.store, turn_id).position for turn_id in (running, low, high)] == [None, 2, 1]


def test_failed_turn_gives_the_reason_in_three_fields(world):
    world.models.script = lambda prompt: (_ for _ in ()).throw(_model_failed())
    turn_id = world.submit()
    world.run_dry()

    turn = views.turn(world.store, turn_id)

    assert (turn.disposition, turn.reason, turn.code) == (Disposition.FAILED, Reason.ERROR, "model_auth")
    assert turn.detail == "the key is wrong"
    assert turn.answer is None
    assert turn.fate == "failed (model_auth: the key is wrong)"


def _model_failed() -> Exception:

    return ModelFailed("the key is wrong", fault=Fault.AUTH, attempts=())


def test_stopped_turn_is_answered_and_names_what_stopped_it(world):
    world.models.script = lambda prompt: Reply(text="half", asks=(), stop=StopReason.MAX_TOKENS, model="fake")
    turn_id = world.submit()
    world.run_dry()

    turn = views.turn(world.store, turn_id)

    assert (turn.disposition, turn.answer) == (Disposition.ANSWERED, "half")
    assert turn.fate == "answered (stopped: max_tokens: the reply was cut at the model's output limit)"


def test_a_turn_cancelled_before_it_started_has_no_run(world):
    turn_id = world.submit()
    stages.cancel_turn(world.runtime, turn_id, "changed my mind")

    turn = views.turn(world.store, turn_id)

    assert (turn.status, turn.disposition, turn.run_id) == (TurnStatus.DONE, Disposition.CANCELLED, None)
    assert turn.usage == Usage()


@pytest.mark.parametrize(
    ("ask", "says"),
    [
        (views.turn, "there is no turn 'nope'; `chordage turns` lists them"),
        (views.is_done, "there is no turn 'nope'; `chordage turns` lists them"),
        (views.run, "there is no run 'nope'; `chordage turns` lists turns with their runs"),
        (views.thread, "there is no thread 'nope'; `chordage threads` lists them"),
        (views.history, "there is no thread 'nope'; `chordage threads` lists them"),
        (views.identify, "there is no turn, run or thread 'nope'; `chordage turns` and `chordage threads` list"),
    ],
)
def test_an_unknown_id_is_named_together_with_where_to_look(world, ask, says):
    with pytest.raises(NotFound) as raised:
        ask(world.store, "nope")

    assert str(raised.value).startswith(says)


def test_lists_of_turns_are_newest_first_and_page_without_gap_or_double(world):
    ids = [world.submit(str(number), thread=f"t{number % 3}") for number in range(7)]

    pages, last = [], None
    while page := views.turns(world.store, limit=3, before=last):
        pages.append([line.turn_id for line in page])
        last = page[-1].turn_id

    assert pages == [ids[:3:-1], ids[3:0:-1], ids[:1]]


def test_turns_of_one_thread_page_in_the_order_of_their_arrival(world):
    ids = [world.submit(str(number), thread="here") for number in range(5)]
    world.submit("elsewhere", thread="there")

    first = views.turns(world.store, thread_id="here", limit=3)
    rest = views.turns(world.store, thread_id="here", limit=3, before=first[-1].turn_id)

    assert [line.turn_id for line in [*first, *rest]] == ids[::-1]


@pytest.mark.parametrize("status", TurnStatus)
def test_turns_can_be_filtered_by_status(world, status):
    world.submit("done", thread="a")
    world.run_dry()
    world.submit("active", thread="b")
    world.deliver(Dispatch(group=Group.CHAT))
    world.submit("queued", thread="b")

    assert [line.text for line in views.turns(world.store, status=status)] == [status.value]


def test_turns_can_be_filtered_by_agent(world):
    world.submit("of ada")

    assert [line.text for line in views.turns(world.store, agent="ada")] == ["of ada"]
    assert views.turns(world.store, agent="bob") == []


def test_a_list_shows_only_how_a_long_message_begins(world):
    world.submit("x" * 1000)

    (line,) = views.turns(world.store)

    assert line.text == "x" * 200


def test_threads_show_queued_and_running_turns_and_the_time_of_the_last_event(world):
    world.submit("a", thread="old")
    world.clock.pass_by(10)
    first = world.submit("b", thread="busy")
    world.submit("c", thread="busy")
    began = world.clock.now
    world.clock.pass_by(10)
    stages.cancel_turn(world.runtime, views.turns(world.store, thread_id="old")[0].turn_id)
    world.deliver(Dispatch(group=Group.CHAT))

    busy, old = views.threads(world.store)

    assert (busy.thread_id, busy.agent, busy.turns, busy.queued) == ("busy", "ada", 2, 1)
    assert (busy.open_run, busy.open_run_status) == (views.turn(world.store, first).run_id, RunStatus.RUNNING)
    assert (busy.last_turn_at, busy.last_activity) == (began, world.clock.now)
    assert (old.thread_id, old.queued, old.open_run, old.last_activity) == ("old", 0, None, old.created_at)
    assert views.thread(world.store, "busy") == busy


def test_threads_page_by_their_last_turn(world):
    for number in range(5):
        world.submit("hi", thread=f"t{number}")
        world.clock.pass_by(number % 2)  # two of them at the same moment

    first = views.threads(world.store, limit=2)
    second = views.threads(world.store, limit=2, before=first[-1])
    third = views.threads(world.store, limit=2, before=second[-1])

    assert [thread.thread_id for thread in [*first, *second, *third]] == ["t4", "t3", "t2", "t1", "t0"]


def test_history_shows_authors_messages_and_results_of_calls(world):
    world.models.script = rounds_of(2)
    turn_id = world.submit("hello")
    world.run_dry()

    said, asked, answered = views.history(world.store, "t1")

    assert (said.role, said.name, said.text, said.turn_id) == (RemarkRole.USER, "service", "hello", turn_id)
    assert (asked.role, asked.name, asked.model) == (RemarkRole.ASSISTANT, "ada", "fake")
    assert [(call.tool, call.arguments, call.content) for call in asked.calls] == [
        ("pure", {"n": 0}, "pure0"),
        ("pure", {"n": 1}, "pure1"),
    ]
    assert (answered.text, answered.calls) == ("done: hello [pure0 pure1]", ())


def test_history_pages_backwards(world):
    world.models.script = lambda prompt: spoken("yes")
    for number in range(3):
        world.submit(str(number))
        world.run_dry()

    newest = views.history(world.store, "t1", limit=3)
    before = views.history(world.store, "t1", limit=3, before=newest[0].id)

    assert [remark.text for remark in [*before, *newest]] == ["0", "yes", "1", "yes", "2", "yes"]


def test_thread_without_messages_has_an_empty_history(world):
    world.submit()

    assert views.history(world.store, "t1") == []


def test_a_run_shows_the_attempts_of_a_model_call_that_failed_for_good(world):
    attempts = (
        Attempt(model="first", seconds=1.5, fault=Fault.OVERLOADED, detail="too many"),
        Attempt(model="second", seconds=0.5, fault=Fault.AUTH, detail="the key is wrong"),
    )

    def fail(prompt):
        raise ModelFailed("nobody answers", fault=Fault.AUTH, attempts=attempts)

    world.models.script = fail
    turn = world.submit()
    world.run_dry()

    shown = views.run(world.store, world.row("turns", id=turn)["run_id"])
    (step,) = shown.steps
    assert isinstance(step, InferenceStep)
    assert (step.status, step.model, step.seconds) == (StepStatus.BROKEN_OFF, None, 2.0)
    assert [(one.model, one.fault, one.detail) for one in step.attempts] == [
        ("first", Fault.OVERLOADED, "too many"), ("second", Fault.AUTH, "the key is wrong"),
    ]  # fmt: skip


def test_a_run_shows_its_steps_in_order_with_model_attempts_usage_and_calls(world):
    attempts = (
        Attempt(model="big", seconds=0.5, fault=Fault.OVERLOADED, detail="busy"),
        Attempt(model="fake", seconds=0.25),
    )
    replies = iter([asking(("pure", {"n": 1}), ("nobody", {})), spoken("ok")])
    world.models.script = lambda prompt: _with(next(replies), attempts)
    turn_id = world.submit()
    world.run_dry()

    run = views.run(world.store, views.turn(world.store, turn_id).run_id)

    asked, calls, answered = run.steps
    assert [step.number for step in run.steps] == [1, 2, 3]
    assert (asked.model, asked.asks, asked.seconds) == ("fake", 2, 0.75)
    assert asked.usage == Usage(input_tokens=5, output_tokens=4, cost_nanos=None, unpriced=1)
    assert (asked.attempts[0].fault, asked.attempts[1].fault) == (Fault.OVERLOADED, None)
    assert [(call.status, call.code, call.worker) for call in calls.calls] == [
        (CallStatus.SUCCEEDED, None, "world"),
        (CallStatus.FAILED, "unknown_tool", None),
    ]
    assert (answered.status, answered.text) == (StepStatus.DONE, "ok")


def test_call_shows_the_id_of_the_model_and_how_often_it_was_used(world):
    again = Reply(text="", asks=(ToolAsk(id="same", name="pure", arguments={}),), stop=StopReason.TOOL_USE, model="m")
    replies = iter([again, again, spoken("ok")])
    world.models.script = lambda prompt: next(replies)
    turn_id = world.submit()
    world.run_dry()

    rounds = [step for step in run_of(world, turn_id).steps if isinstance(step, ToolRound)]
    assert [(call.ask_id, call.generation) for step in rounds for call in step.calls] == [("same", 1), ("same", 2)]


def _with(reply: Reply, attempts: tuple[Attempt, ...]) -> Reply:
    from dataclasses import replace

    return replace(reply, attempts=attempts)


def run_of(world: World, turn_id: str) -> views.RunView:
    run_id = views.turn(world.store, turn_id).run_id
    assert run_id is not None
    return views.run(world.store, run_id)


def test_run_during_its_model_call_is_shown_at_an_open_step(world):
    turn_id = world.submit()
    deliver_until(world, CallModel)

    (step,) = run_of(world, turn_id).steps

    assert (step.number, step.status, step.model) == (1, StepStatus.OPEN, None)


def test_run_whose_calls_are_out_is_shown_at_an_open_round(world):
    world.models.script = rounds_of(2)
    turn_id = world.submit()
    while not world.rows("calls"):
        world.deliver(world.pending.pop(0))

    _, step = run_of(world, turn_id).steps

    assert (step.number, step.status) == (2, StepStatus.OPEN)
    assert {call.status for call in step.calls} == {CallStatus.NEW}


def test_a_run_that_failed_at_its_model_shows_the_step_it_broke_off_at(world):
    world.models.script = lambda prompt: (_ for _ in ()).throw(_model_failed())
    turn_id = world.submit()
    world.run_dry()

    run = run_of(world, turn_id)

    assert [(step.number, step.status) for step in run.steps] == [(1, StepStatus.BROKEN_OFF)]
    assert (run.status, run.code) == (RunStatus.DONE, "model_auth")


def test_a_run_that_failed_behind_a_round_shows_the_inference_it_broke_off_at(world):
    replies = iter([asking(("pure", {}))])

    def reply(prompt):
        if (known := next(replies, None)) is not None:
            return known
        raise _model_failed()

    world.models.script = reply
    turn_id = world.submit()
    world.run_dry()

    steps = run_of(world, turn_id).steps

    assert [step.status for step in steps] == [StepStatus.DONE, StepStatus.DONE, StepStatus.BROKEN_OFF]


def test_a_run_cancelled_in_its_round_ends_with_the_round(world):
    world.models.script = rounds_of(1)
    turn_id = world.submit()
    while not world.rows("calls"):
        world.deliver(world.pending.pop(0))
    stages.cancel_turn(world.runtime, turn_id, "enough")

    run = run_of(world, turn_id)

    _, closed, interrupted = run.steps
    assert (run.reason, run.detail) == (Reason.CANCELLED, "enough")
    assert [call.status for call in closed.calls] == [CallStatus.CANCELLED]
    assert (interrupted.reason, interrupted.detail) == (Reason.CANCELLED, "enough")


def test_calls_of_a_reply_that_came_too_late_are_shown_as_not_run(world):
    world.models.script = lambda prompt: Reply(
        text="cut", asks=asking(("pure", {})).asks, stop=StopReason.MAX_TOKENS, model="fake"
    )
    turn_id = world.submit()
    world.run_dry()

    _, closed = run_of(world, turn_id).steps

    assert [(call.status, call.code) for call in closed.calls] == [(CallStatus.CANCELLED, "not_run")]
    assert closed.status is StepStatus.DONE


def test_an_id_is_recognised_for_what_it_names(world):
    turn_id = world.submit(thread="some thread", origin=Origin.INVOKE)
    world.run_dry()
    run_id = views.turn(world.store, turn_id).run_id

    named = (turn_id, run_id, "some thread")

    assert [views.identify(world.store, one) for one in named] == list(zip(views.IdKind, named, strict=True))


def run_id_of(store: Store) -> str:
    run_id = views.turns(store, limit=1)[0].run_id
    assert run_id is not None
    return run_id


@pytest.mark.parametrize(
    ("ask", "scanned"),
    [
        (views.threads, {"threads"}),
        (lambda store: views.thread(store, "t1"), set()),
        (views.turns, {"turns"}),  # along its key, no further than the page is long
        (lambda store: views.turns(store, thread_id="t1"), set()),
        (lambda store: views.turns(store, status=TurnStatus.QUEUED), {"turns"}),
        (lambda store: views.turns(store, status=TurnStatus.ACTIVE), {"runs"}),
        (lambda store: views.history(store, "t1"), set()),
        (lambda store: views.turn(store, "id000001"), set()),
        (lambda store: views.run(store, run_id_of(store)), {"turns"}),  # to find the id
        (views.inbox, {"suspensions"}),
        (
            lambda store: views.inbox(store, thread_id="t2", agent="ada", after=views.inbox(store)[0].id),
            {"suspensions"},
        ),
        (lambda store: views.inbox(store, run_id=run_id_of(store)), {"suspensions", "turns"}),
        (lambda store: views.schema_asked(store, "id000001"), set()),
        (lambda store: views.identify(store, "id000001"), set()),
        (lambda store: views.full_id(store, views.IdKind.TURN, "id000000"), set()),
        (lambda store: views.full_id(store, views.IdKind.THREAD, "none"), set()),
    ],
)
def test_no_reader_walks_through_what_is_over(migrated_database_url, ask, scanned):
    """Asked of SQLite's planner. Tables may be walked only along a partial index of the open, or along the page."""
    url = migrated_database_url("sqlite")
    store, reading = Store(url), Store(url)
    world = World(store)
    world.submit()
    world.run_dry()
    world.tools.asks = lambda order: Question(why=Why.TOOL, prompt="May I?")
    world.submit(thread="t2")
    world.run_dry()
    statements = []
    event.listen(reading.plain, "connect", lambda raw, _: raw.set_trace_callback(statements.append))
    ask(reading)
    reading.close()

    with store.read() as tx:
        plans = [
            row.detail
            for statement in statements
            if statement.lstrip().startswith("SELECT")
            for row in tx.exec_driver_sql(f"EXPLAIN QUERY PLAN {statement}")
        ]
    store.close()
    assert plans
    walked = [plan for plan in plans if plan.startswith("SCAN suspensions")]
    assert all("ix_suspensions_inbox" in plan for plan in walked)
    assert {plan.split()[1] for plan in plans if plan.startswith("SCAN")} - {"CONSTANT"} <= scanned
