"""Celery tasks of turns, runs and rounds: one line each."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict
from typing import Any, TypeVar

import structlog
from celery import Celery
from celery.exceptions import Reject

from chordage.orchestrator import stages, views
from chordage.orchestrator.core import message
from chordage.orchestrator.core.errors import RoomError, Unavailable, UserError
from chordage.orchestrator.core.groups import Group
from chordage.orchestrator.core.intents import Hint
from chordage.orchestrator.core.retry import Backoff
from chordage.orchestrator.loops.pulse import tick
from chordage.tasks import names
from chordage.tasks.base import StageTask
from chordage.tasks.request import check_named, decisions_from, request_from, verb_from
from chordage.tasks.shown import INTAKE

log = structlog.get_logger()

T = TypeVar("T")

SOURCE = "celery"
SPACE = message.CALLERS  # of whoever may write to the broker: no credential says who that is
PAUSE = 1.0  # seconds between two tries to store a message while the database is away
BROKEN_AGENT = Backoff(first=1.0, longest=15.0)  # ... while its agent is broken


def _stored(task: StageTask, store: Callable[[], T]) -> T:
    """Nobody else has this message: it stays in the queue until it can be stored.

    While the database is away nothing can be stored, and the message goes back at once. One for a broken agent comes
    again later, so that it keeps no other from being stored.
    """
    try:
        return store()
    except Unavailable as error:
        time.sleep(PAUSE)
        raise Reject(str(error), requeue=True) from error
    except RoomError as error:
        log.warning("a message waits for a broken agent", message=task.request.id, fault=str(error))
        raise _again(task, error) from error


def _again(task: StageTask, error: RoomError) -> Exception:
    """The same message once more, after a pause."""
    pause = BROKEN_AGENT.delay(task.request.retries + 1)
    try:
        return task.retry(exc=error, countdown=pause, throw=False)
    except Reject as refused:  # Redis is away, and Celery would drop the message
        return Reject(str(refused), requeue=True)


def register(app: Celery, base: type[StageTask]) -> None:
    # `throws`: that a request is refused is an answer, and no fault of ours to be logged as one.
    throws = (*base.throws, UserError)
    of_others: dict[str, Any] = {"base": base, "bind": True, "shared": False, "Request": INTAKE, "throws": throws}

    @app.task(name=names.SUBMIT, **of_others, ignore_result=False)
    def submit(self: StageTask, /, *nameless: Any, **fields: Any) -> str:
        """Enqueue a turn. The result is its id; a redelivered message finds the turn that is there."""
        check_named(names.SUBMIT, nameless, 'kwargs={"text": "..."}')
        if fields.get("dedupe_key") is None:
            fields["dedupe_key"] = self.request.id
        request = request_from(fields, source=SOURCE, space=SPACE)
        admitted, intents = _stored(self, lambda: stages.admit(self.runtime, request))
        self.courier.send(intents)
        return admitted.turn_id

    @app.task(name=names.DECIDE, **of_others, ignore_result=False)
    def decide(self: StageTask, decisions: list[dict[str, Any]]) -> list[str]:
        """Answer questions about calls, all of them or none. The result is the ids of the answers, in their order; a
        redelivered message finds those that are there.
        """
        requests = decisions_from(decisions)
        decided, intents = _stored(self, lambda: stages.decide(self.runtime, requests, source=SOURCE, space=SPACE))
        self.courier.send(intents)
        return [one.decision_id for one in decided]

    @app.task(name=names.STEP, **of_others, ignore_result=False)
    def step(self: StageTask, /, *nameless: Any, **fields: Any) -> dict[str, Any]:
        """Do something with a stepped turn. The result is how it stands; a redelivered message finds what was done."""
        check_named(names.STEP, nameless, 'kwargs={"turn": "...", "verb": "next"}')
        if fields.get("key") is None:
            fields["key"] = self.request.id
        request = verb_from(fields, space=SPACE)
        stepping, intents = _stored(self, lambda: stages.step(self.runtime, request))
        self.courier.send(intents)
        return asdict(stepping)

    # A consumer asks several times a second, and the answer has what was said: monitors are told nothing of it.
    @app.task(name=names.HELD, **of_others, ignore_result=False, send_events=False)
    def held(self: StageTask, turn: str) -> dict[str, Any]:
        """What is held, as its consumer is shown it."""
        return views.as_json(views.stepped(self.runtime.store, turn, space=SPACE))

    @app.task(name=names.STEP_ON, base=base, bind=True, shared=False)
    def step_on(self: StageTask, run: str) -> None:
        self.follow(stages.step_on(self.runtime, run))

    @app.task(name=names.CANCEL, **of_others)
    def cancel(self: StageTask, turn: str, reason: str | None = None) -> None:
        self.courier.send(stages.cancel_turn(self.runtime, turn, reason, space=SPACE)[1])

    @app.task(name=names.COMPACT, **of_others)
    def compact(self: StageTask, thread: str) -> None:
        """Before its next model call, the older part of what was said on the thread gives way to a summary."""
        _stored(self, lambda: stages.ask_to_compact(self.runtime, message.placed(SPACE, thread)))

    @app.task(name=names.DISPATCH, base=base, bind=True, shared=False)
    def dispatch(self: StageTask, group: str, turn: str | None = None, thread: str | None = None) -> None:
        hint = Hint(turn, thread) if turn and thread else None
        self.follow(stages.dispatch(self.runtime, Group(group), hint))

    @app.task(name=names.ADVANCE, base=base, bind=True, shared=False)
    def advance(self: StageTask, run: str) -> None:
        self.follow(stages.advance(self.runtime, run))

    @app.task(name=names.CALL_MODEL, base=base, bind=True, shared=False)
    def call_model(self: StageTask, run: str, step: int) -> None:
        self.follow(stages.call_model(self.runtime, run, step), asked=True)

    @app.task(name=names.COMMIT_ROUND, base=base, bind=True, shared=False)
    def commit_round(self: StageTask, run: str, step: int) -> None:
        self.follow(stages.commit_round(self.runtime, run, step))

    # Ticks, and what belongs to no thread: of a hundred tasks that Flower lists, three quarters would be these.
    @app.task(name=names.RESCUE, base=base, bind=True, shared=False, send_events=False)
    def rescue(self: StageTask) -> None:
        self.courier.send(stages.rescue(self.runtime))

    @app.task(name=names.PULSE, base=base, bind=True, shared=False, send_events=False)
    def pulse(self: StageTask) -> None:
        self.courier.send(tick(self.runtime))

    @app.task(name=names.PROJECT, base=base, bind=True, shared=False, send_events=False)
    def project(self: StageTask) -> None:
        self.courier.send(stages.project(self.runtime))

    @app.task(name=names.DELIVER, base=base, bind=True, shared=False, send_events=False)
    def deliver(self: StageTask) -> None:
        self.courier.send(stages.deliver(self.runtime))
