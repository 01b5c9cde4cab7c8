"""The Celery tasks: each calls one stage and sends what follows."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import structlog
from celery import Celery, Task
from celery.app.task import Context
from celery.exceptions import Reject

from chordage.orchestrator import stages, views
from chordage.orchestrator.core import message
from chordage.orchestrator.core.errors import BrokenAgent, RoomError, Unavailable, UserError
from chordage.orchestrator.core.groups import Group
from chordage.orchestrator.core.intents import CommitRound, Dispatch, Hint, Intent
from chordage.orchestrator.core.message import group_of
from chordage.orchestrator.core.retry import Backoff
from chordage.orchestrator.loops.pulse import tick
from chordage.orchestrator.runtime import Runtime
from chordage.tasks import accepting, names
from chordage.tasks.courier import CLAIMED_FOR, ROUND_SIZE, SEND_ERRORS, Courier
from chordage.tasks.follow import follow
from chordage.tasks.schema import check_named, decisions_from, request_from, verb_from

log = structlog.get_logger()

T = TypeVar("T")

SOURCE = "celery"
SPACE = message.CALLERS  # everyone who may write to the broker: no credential tells callers apart
NEWER = "chordage.tasks.newer_messages"  # workers import it: it takes the most of Celery
REDACTED = "chordage.tasks.redacted_request:RedactedRequest"
PAUSE = 1.0  # seconds between two tries to store a message while the database is away
BROKEN_AGENT = Backoff(first=1.0, longest=15.0)  # ... while its agent is broken


class StageTask(Task):  # type: ignore[type-arg]  # Celery's class is generic for the type checker only
    """A Celery task with a runtime and a courier."""

    abstract = True
    Strategy = f"{NEWER}:of_this_version"
    max_retries = None  # a message that is retried after a pause is retried until it can be stored
    throws = (BrokenAgent, Unavailable)  # logged in one line; the work waits, and rescue sends it again
    build_runtime: Callable[[], Runtime]
    courier: Courier

    @property
    def runtime(self) -> Runtime:
        return type(self).build_runtime()

    def follow(self, intents: Iterable[Intent], *, has_called_model: bool = False) -> None:
        follow(self.runtime, intents, self.courier.send, has_called_model=has_called_model)

    def carry_on(self, result: str, intents: Sequence[Intent], group: Group) -> None:
        """Store the result now, because its caller waits for it, and then do what follows: the message was on the queue
        of this group. What fails here changes no result, and rescue sends it again.
        """
        if not intents:
            return
        context, rt = self.request, self.runtime
        task_id = str(context.id)
        try:
            self.backend.mark_as_done(task_id, result, request=context)
        except Exception as error:  # Celery tries again when the task has returned
            log.warning("the result could not be stored before the turn is carried on", error=repr(error))
            self.courier.send(intents)
            return
        context.ignore_result = True  # it is stored
        self.follow_done(
            following
            for intent in intents
            for following in (
                stages.dispatch(rt, group, intent.hint)
                if isinstance(intent, Dispatch) and intent.group is group
                else [intent]
            )
        )

    def follow_done(self, intents: Iterable[Intent]) -> None:
        """As `follow`, behind work that is done: what fails now is not its failure, and rescue sends it again."""
        try:
            self.follow(intents)
        except self.throws as error:
            self.on_failure(error, str(self.request.id), (), {}, None)
        except Exception:
            log.exception("what is stored could not be carried on; rescue will send for it")

    def carry_round_on(self) -> None:
        """The last header of a chat's round to return carries the round on, without the message that a body is, where
        its worker would also receive the body. In other groups a run returns to its queue once a round, and gives way.

        Only in a thread: in a process of a pool, what follows would be killed at the time limit of the call. A worker
        that shuts down sends it, as whatever follows.
        """
        body: dict[str, Any] | None = self.request.chord  # type: ignore[assignment]  # the stubs have another type
        if (
            not body
            or ROUND_SIZE not in body
            or body["options"]["queue"] != Group.CHAT.queue
            or Group.CHAT.queue not in self.app.amqp.queues.consume_from
            or threading.current_thread() is threading.main_thread()
        ):
            return
        backend: Any = self.backend
        try:
            have_all_returned = backend.note_return(self.request)
        except SEND_ERRORS as error:
            log.info("the return of a header is noted when its task ends", error=str(error))
            return
        self.request.chord = None  # it is counted
        if have_all_returned:
            of_round = body["kwargs"]
            self.follow_done([CommitRound(run_id=of_round["run"], step=of_round["step"], group=Group.CHAT)])

    def on_failure(self, exc: BaseException, task_id: str, args: Any, kwargs: dict[str, Any], einfo: Any) -> None:  # noqa: ARG002 - Celery's signature
        """A broken agent is logged by the stage that meets it."""
        if isinstance(exc, Unavailable):
            log.warning("a service does not answer; the work is sent again", error=str(exc))

    def before_start(self, task_id: str, args: Any, kwargs: dict[str, Any]) -> None:  # noqa: ARG002 - Celery's signature
        ids = {name: value for name, value in kwargs.items() if name in {"run", "step", "turn", "group"}}
        structlog.contextvars.clear_contextvars()
        structlog.contextvars.bind_contextvars(task=self.name, **ids)


def _stored(task: StageTask, store: Callable[[], T]) -> T:
    """The message exists nowhere else, so it stays in the queue until it can be stored.

    While the database is away nothing can be stored, and the message is requeued at once. A message for a broken agent
    is retried later, so that it holds up no other.
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
    """Retry the message after a pause."""
    pause = BROKEN_AGENT.delay(task.request.retries + 1)
    try:
        return task.retry(exc=error, countdown=pause, throw=False)
    except Reject as refused:  # Redis is away, and Celery would drop the message
        return Reject(str(refused), requeue=True)


def _traceparent(context: Context) -> str | None:
    """The header of the message, as Celery's senders that are traced set it."""
    header = context.get("traceparent")
    return header if isinstance(header, str) else None


def _may_carry_on(task: StageTask, group: Group) -> bool:
    """Whether this worker serves the turns of the group, and nothing waits for the end of the message: what its sender
    has linked to it is sent when it has returned.
    """
    context, came_by = task.request, task.request.delivery_info or {}
    is_waited_for = context.callbacks or context.chain or context.chord
    return not (is_waited_for or task.runtime.in_flight.stopping) and came_by.get("routing_key") == group.queue


def register(app: Celery, base: type[StageTask], *, tool_time_limit: int) -> None:
    base.courier = Courier(app)
    # Wake-ups take arguments that a newer version adds, and ignore them (tasks/newer_messages.py).
    # `throws`: a refusal is an answer, not a failure to log.
    throws = (*base.throws, UserError)
    of_others: dict[str, Any] = {"base": base, "bind": True, "shared": False, "Request": REDACTED, "throws": throws}

    @app.task(name=names.SUBMIT, **of_others, ignore_result=False)
    def submit(self: StageTask, /, *positional: Any, **fields: Any) -> str:
        """Enqueue a turn. The result is its id; a redelivered message finds the turn that is there."""
        check_named(names.SUBMIT, positional, 'kwargs={"text": "..."}')
        if fields.get("dedupe_key") is None:
            fields["dedupe_key"] = self.request.id
        request = replace(request_from(fields, source=SOURCE, space=SPACE), traceparent=_traceparent(self.request))
        group = group_of(request)
        if not _may_carry_on(self, group):
            return _stored(self, lambda: accepting.accept(self.runtime, self.courier, request)).turn_id
        admitted, intents = _stored(self, lambda: stages.admit(self.runtime, request, here=True))
        self.carry_on(admitted.turn_id, intents, group)
        return admitted.turn_id

    @app.task(name=names.DECIDE, **of_others, ignore_result=False)
    def decide(self: StageTask, /, decisions: list[dict[str, Any]]) -> list[str]:
        """Answer questions about calls, all of them or none. The result is the ids of the answers, in their order; a
        redelivered message finds those that are there.
        """
        requests = decisions_from(decisions)
        decided = _stored(
            self, lambda: accepting.decide(self.runtime, self.courier, requests, source=SOURCE, space=SPACE)
        )
        return [decision.decision_id for decision in decided]

    @app.task(name=names.STEP, **of_others, ignore_result=False)
    def step(self: StageTask, /, *positional: Any, **fields: Any) -> dict[str, Any]:
        """Drive a stepped turn. The result is its state; a redelivered message finds what was done."""
        check_named(names.STEP, positional, 'kwargs={"turn": "...", "verb": "next"}')
        if fields.get("key") is None:
            fields["key"] = self.request.id
        request = verb_from(fields, space=SPACE)
        return _stored(self, lambda: accepting.step(self.runtime, self.courier, request))

    # A consumer asks several times a second, and the answer holds texts: monitors get no events of it.
    @app.task(name=names.HELD, **of_others, ignore_result=False, send_events=False)
    def held(self: StageTask, /, turn: str) -> dict[str, Any]:
        """What is held, for its consumer."""
        return views.as_json(views.stepped(self.runtime.store, turn, space=SPACE))

    @app.task(name=names.STEP_ON, base=base, bind=True, shared=False)
    def step_on(self: StageTask, /, run: str, **_newer: Any) -> None:
        self.follow(stages.step_on(self.runtime, run))

    @app.task(name=names.CANCEL, **of_others)
    def cancel(self: StageTask, /, turn: str, reason: str | None = None) -> None:
        self.courier.send(stages.cancel_turn(self.runtime, turn, reason, space=SPACE)[1])

    @app.task(name=names.COMPACT, **of_others)
    def compact(self: StageTask, /, thread: str) -> None:
        """Before the next model call on the thread, replace the older part of its history by a summary."""
        _stored(self, lambda: stages.ask_to_compact(self.runtime, message.placed(SPACE, thread)))

    @app.task(name=names.DISPATCH, base=base, bind=True, shared=False)
    def dispatch(
        self: StageTask, /, group: str, turn: str | None = None, thread: str | None = None, **_newer: Any
    ) -> None:
        hint = Hint(turn, thread) if turn and thread else None
        self.follow(stages.dispatch(self.runtime, Group(group), hint))

    @app.task(name=names.ADVANCE, base=base, bind=True, shared=False)
    def advance(self: StageTask, /, run: str, **_newer: Any) -> None:
        self.follow(stages.advance(self.runtime, run))

    @app.task(name=names.CALL_MODEL, base=base, bind=True, shared=False)
    def call_model(self: StageTask, /, run: str, step: int, **_newer: Any) -> None:
        self.follow(stages.call_model(self.runtime, run, step), has_called_model=True)

    @app.task(name=names.COMMIT_ROUND, base=base, bind=True, shared=False)
    def commit_round(self: StageTask, /, run: str, step: int, **_newer: Any) -> None:
        self.follow(stages.commit_round(self.runtime, run, step))

    @app.task(name=names.BULK, base=base, bind=True, shared=False)
    def bulk(self: StageTask, /, job: str, **_newer: Any) -> None:
        self.courier.send(stages.continue_bulk(self.runtime, job))

    # Ticks, and tasks of no thread: without send_events=False, three quarters of the tasks in Flower would be these.
    @app.task(name=names.RESCUE, base=base, bind=True, shared=False, send_events=False)
    def rescue(self: StageTask, /, **_newer: Any) -> None:
        self.courier.send(stages.rescue(self.runtime))

    @app.task(name=names.PULSE, base=base, bind=True, shared=False, send_events=False)
    def pulse(self: StageTask, /, **_newer: Any) -> None:
        self.courier.send(tick(self.runtime))

    @app.task(name=names.PROJECT, base=base, bind=True, shared=False, send_events=False)
    def project(self: StageTask, /, **_newer: Any) -> None:
        self.courier.send(stages.project(self.runtime))

    @app.task(name=names.DELIVER, base=base, bind=True, shared=False, send_events=False)
    def deliver(self: StageTask, /, **_newer: Any) -> None:
        self.courier.send(stages.deliver(self.runtime))

    @app.task(
        name=names.CALL_TOOLS, base=base, bind=True, shared=False, time_limit=tool_time_limit, acks_on_failure=True
    )
    def call_tools(
        self: StageTask,
        /,
        run: str,  # noqa: ARG001 - for people who read the message in Flower
        calls: list[str],
        alone: bool = False,
        **_newer: Any,
    ) -> list[str]:
        """Carry these calls out, one after the other; each writes its own row. The ids are returned for the chord."""
        context = self.request
        in_doubt = alone or bool(context.delivery_info and context.delivery_info.get("redelivered"))
        agent = context.get(CLAIMED_FOR)
        claimed_for = agent if isinstance(agent, str) else None
        self.courier.send(stages.run_batch(self.runtime, calls, in_doubt=in_doubt, claimed_for=claimed_for))
        if alone:
            self.courier.send(stages.after_lone_call(self.runtime, calls[-1]))
        else:
            self.carry_round_on()
        return calls
