"""A message by name on the queue of its group: the turn is admitted and started in one transaction."""

from __future__ import annotations

from contextlib import suppress
from types import SimpleNamespace

import pytest
from celery import Celery
from celery.app.trace import build_tracer
from structlog.testing import capture_logs

from chordage.orchestrator.core.agent import WhenBusy
from chordage.orchestrator.core.errors import Unavailable
from chordage.orchestrator.core.groups import Group
from chordage.orchestrator.core.intents import Advance, CallModel, CallTools, Dispatch
from chordage.tasks import names, tasks
from chordage.tasks.tasks import StageTask
from support.fakes import rounds_of, spoken
from support.invariants import check_all, check_always
from support.world import Died, World


def test_turn_on_a_free_thread_starts_with_the_commit_that_stores_it(world: World) -> None:
    world.models.script = rounds_of(2)

    turn = world.submit(here=True)

    assert world.commits == 1
    run = world.row("runs")
    assert world.pending == [Advance(run_id=str(run["id"]), group=Group.CHAT)]
    assert (run["turn_id"], world.row("turns")["status"], world.row("turns")["run_id"]) == (turn, "active", run["id"])
    assert [row["kind"] for row in world.rows("journal")] == ["UserMessage"]
    assert world.locks.threads == {"t1": f"{run['id']}:1"}
    world.run_dry()
    check_all(world.store)


def test_start_costs_four_statements_and_its_run_reads_nothing_of_what_was_just_written(world: World) -> None:
    of_admission, both = [], []
    for counts, here in ((of_admission, False), (both, True), (of_admission, False), (both, True)):
        before = world.statements
        world.submit(thread=None, here=here)
        counts.append(world.statements - before)

    assert both[-1] - of_admission[-1] == 4  # its run, its status, its message, and the history for its first request


def test_turn_that_waits_for_a_place_is_left_to_a_wake_up(world: World) -> None:
    world.budgets[Group.CHAT] = 1
    world.models.script = lambda prompt: spoken("ok")
    first, second = (world.submit(thread=None, here=True) for _ in range(2))

    assert [type(intent) for intent in world.pending] == [Advance, Dispatch]
    assert [world.row("turns", id=turn)["status"] for turn in (first, second)] == ["active", "queued"]
    world.run_dry()
    assert world.unfinished() == []


def test_turn_starts_beside_none_that_would_then_have_to_wait(world: World) -> None:
    world.budgets[Group.CHAT] = 1
    world.models.script = lambda prompt: spoken("ok")
    before = world.submit(thread=None)

    later = world.submit(thread=None, here=True)

    assert world.rows("runs") == []
    world.deliver(world.pending.pop())
    assert [world.row("turns", id=turn)["status"] for turn in (before, later)] == ["active", "queued"]


@pytest.mark.parametrize("when_busy", [WhenBusy.ENQUEUE, WhenBusy.STEER, WhenBusy.INTERRUPT])
def test_turn_on_a_busy_thread_does_what_it_does_otherwise(world: World, when_busy: WhenBusy) -> None:
    world.models.script = lambda prompt: spoken("ok")
    first, second = (world.submit(here=True, when_busy=when_busy) for _ in range(2))

    assert world.row("turns", id=second)["status"] == "queued"
    check_always(world.store, {"chat": 64})
    world.run_dry()
    ended = {world.row("turns", id=turn)["disposition"] for turn in (first, second)}
    assert ended <= {"answered", "steered", "cancelled"}
    assert world.unfinished() == []
    check_all(world.store)


def test_thread_that_was_locked_by_others_keeps_no_turn_from_starting(world: World) -> None:
    """The index has decided; the lock is taken where it is free, and again by the next who extends it."""
    world.locks.threads["t1"] = "other:1"
    world.models.script = lambda prompt: spoken("ok")
    turn = world.submit(here=True)
    world.run_dry()

    assert world.row("turns", id=turn)["disposition"] == "answered"


@pytest.mark.parametrize("before", [False, True], ids=["after", "before"])
def test_death_at_the_commit_of_both_and_a_second_delivery_make_one_turn(world: World, before: bool) -> None:
    world.models.script = rounds_of(2)
    world.die_at, world.die_before = world.commits + 1, before
    with pytest.raises(Died):
        world.submit(here=True, dedupe_key="one")
    world.revive()
    world.forget_the_dead()

    turn = world.submit(here=True, dedupe_key="one")
    world.recover()

    assert [row["id"] for row in world.rows("turns")] == [turn]
    assert world.row("turns")["disposition"] == "answered"
    assert len(world.rows("runs")) == 1
    check_all(world.store)


@pytest.mark.parametrize("before", [False, True], ids=["after", "before"])
@pytest.mark.parametrize("at", range(1, 3 + (1 + 2)))
def test_turn_that_was_started_as_admitted_survives_death_at_any_commit(world: World, at: int, before: bool) -> None:
    world.models.script = rounds_of(2, tool="pure")
    world.die_at, world.die_before = world.commits + at, before
    with suppress(Died):
        world.submit(here=True, dedupe_key="one")
        world.run_dry()
    world.die_at = None
    world.pending.clear()
    world.revive()
    world.forget_the_dead()
    world.submit(here=True, dedupe_key="one")  # a message that was not acknowledged comes again
    world.recover()

    assert [row["disposition"] for row in world.rows("turns")] == ["answered"]
    check_all(world.store)


# the Celery task


class Submitting:
    """The task `turns.submit` as a worker runs it, on this world."""

    def __init__(self, world: World) -> None:
        self.world, self.sent, self.done = world, [], []
        self.app = Celery("test", broker="memory://", backend="cache+memory://", set_as_current=False)

        class Stage(StageTask):
            abstract = True

        Stage.build_runtime = staticmethod(lambda: world.runtime)
        tasks.register(self.app, Stage, tool_time_limit=60)
        Stage.courier = SimpleNamespace(send=self.sent.extend)
        self.task = self.app.tasks[names.SUBMIT]
        self._store = self.task.backend.store_result
        self.task.backend.store_result = self.store_result

    def store_result(self, task_id: str, result: object, state: str, **more: object) -> None:
        self.done.append((result, state))
        self._store(task_id, result, state, **more)

    def __call__(self, queue: str = "chat", *, message: str = "m1", **options: object) -> str:
        request = {"id": message, "delivery_info": {"routing_key": queue}, **options}
        with self.world.as_another_process():
            traced = build_tracer(names.SUBMIT, self.task, app=self.app)(message, (), {"text": "hi"}, request)
        return traced.retval


def test_result_is_stored_once_and_before_the_turn_is_carried_on(world: World) -> None:
    submitting, stored_by_then = Submitting(world), []
    world.models.script = rounds_of(2)
    world.models.before_reply = lambda _prompt: stored_by_then.append(list(submitting.done))

    turn = submitting()

    assert stored_by_then == [[(turn, "SUCCESS")]] == [submitting.done]
    assert [type(intent) for intent in submitting.sent] == [CallTools]


@pytest.mark.parametrize("error", [Unavailable("away"), OSError("a fault of ours")])
def test_failure_behind_the_result_changes_no_result(world: World, error: Exception) -> None:
    submitting = Submitting(world)

    def fails(_prompt: object) -> None:
        raise error

    world.models.before_reply = fails
    with capture_logs():
        turn = submitting()

    assert submitting.done == [(turn, "SUCCESS")]
    world.models.before_reply = lambda _prompt: None
    world.models.script = lambda prompt: spoken("ok")
    world.recover()
    assert world.row("turns", id=turn)["disposition"] == "answered"


def test_result_that_cannot_be_stored_yet_is_left_to_celery_and_the_turn_to_a_wake_up(world: World) -> None:
    submitting, store = Submitting(world), []

    def away(*args: object, **more: object) -> None:
        if not store:
            store.append(submitting.store_result)
            raise OSError("the backend does not answer")
        store[0](*args, **more)

    submitting.task.backend.store_result = away
    with capture_logs() as lines:
        turn = submitting()

    assert submitting.done == [(turn, "SUCCESS")]
    assert [type(intent) for intent in submitting.sent] == [Advance]
    assert world.models.prompts == []
    assert [line["event"] for line in lines] == ["the result could not be stored before the turn is carried on"]


def test_message_that_comes_again_finds_its_turn_and_carries_nothing_on(world: World) -> None:
    submitting = Submitting(world)
    world.models.script = rounds_of(2)

    assert submitting() == submitting()

    assert len(world.rows("turns")) == len(world.rows("runs")) == 1
    assert [type(intent) for intent in submitting.sent] == [CallTools]


@pytest.mark.parametrize(
    ("queue", "options"),
    [
        ("celery", {}),
        ("system", {}),
        ("task", {}),
        ("chat", {"callbacks": [{"task": "x", "args": [], "kwargs": {}, "options": {}}]}),
        ("chat", {"chain": [{"task": "x", "args": [], "kwargs": {}, "options": {}}]}),
    ],
)
def test_message_from_elsewhere_or_with_something_linked_to_it_starts_nothing_here(
    world: World, queue: str, options: dict[str, object]
) -> None:
    submitting = Submitting(world)

    submitting(queue, **options)

    assert world.rows("runs") == []
    assert [type(intent) for intent in submitting.sent] == [Dispatch]


def test_worker_that_is_stopping_starts_nothing(world: World) -> None:
    submitting = Submitting(world)
    world.runtime.in_flight.hand_over()

    submitting()

    assert world.rows("runs") == []
    assert [type(intent) for intent in submitting.sent] == [Dispatch]


def test_burst_beyond_the_budget_sends_no_wake_up_for_those_that_wait(world: World) -> None:
    world.budgets[Group.CHAT] = 2
    submitting = Submitting(world)
    world.models.script = rounds_of(1)
    for number in range(6):
        submitting(message=f"m{number}")

    assert [type(intent) for intent in submitting.sent] == [CallTools] * 2
    assert world.row("groups", name="chat")["hand_on"] == 1
    world.pending += [intent for intent in submitting.sent if not isinstance(intent, CallModel)]
    world.run_dry()
    assert world.unfinished() == []
