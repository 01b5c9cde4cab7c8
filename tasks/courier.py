"""From intent to Celery message: the only place that knows both.

A message carries ids and is a wake-up. It may be lost, doubled or late, and a failure to send is only logged: the
database knows what is due, and rescue sends it again.

A round of tool calls is a Celery chord. Its headers are sent as messages, not through the canvas, and
`workers/chord_backend.py` counts their returns: storing results as Celery does costs as much as the tools' rows.
`tasks/prebuilt.py` makes the messages.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, assert_never

import structlog
from celery import Celery
from celery.utils import uuid
from kombu.exceptions import KombuError
from redis.exceptions import RedisError

from chordage.orchestrator.core.groups import DELIVERY_QUEUE, SYSTEM_QUEUE
from chordage.orchestrator.core.intents import (
    Advance,
    CallHere,
    CallModel,
    CallTool,
    CallTools,
    CancelTurn,
    CommitRound,
    ContinueBulk,
    Deliver,
    Dispatch,
    Intent,
    Project,
    StepOn,
)
from chordage.orchestrator.core.records import Subject
from chordage.tasks import names
from chordage.tasks.prebuilt import WakeUp, WakeUpSender

log = structlog.get_logger()

SEND_ERRORS = (RedisError, KombuError, OSError)
ROUND_SIZE = "chord_size"  # in the body of a chord of ours: how many headers it has
CLAIMED_FOR = "claimed_for"  # the header of a message whose first call is claimed before it starts: the agent


class Courier:
    def __init__(self, app: Celery) -> None:
        self._sender = WakeUpSender(app)
        self._app = app

    def send_in_one_trip(self, intents: Sequence[Intent]) -> None:
        """As `send`, for many at a time."""
        messages = [message for intent in intents for message in self._messages(intent)]
        if not messages:
            return
        try:
            self._sender.send(messages)
        except SEND_ERRORS as error:
            log.warning("wake-ups not sent; rescue will send them", intents=len(intents), error=str(error))

    def send(self, intents: Iterable[Intent]) -> None:
        for intent in intents:
            try:
                self._sender.send(self._messages(intent))
            except SEND_ERRORS as error:
                log.warning("wake-up not sent; rescue will send it", intent=type(intent).__name__, error=str(error))

    def send_round_body(self, body: Mapping[str, Any]) -> None:
        options = dict(body["options"])
        queue, task_id = options.pop("queue"), options.pop("task_id")
        self._sender.send([WakeUp(task=body["task"], queue=queue, kwargs=body["kwargs"], shown=options, id=task_id)])

    def _messages(self, intent: Intent) -> list[WakeUp]:
        match intent:
            case Dispatch(group=group, hint=hint, of=of):
                of_hint = {"turn": hint.turn_id, "thread": hint.thread_id} if hint else {}
                return [_wake(names.DISPATCH, group.queue, {"group": group.value, **of_hint}, of)]
            case Advance(run_id=run_id, group=group, of=of):
                return [_wake(names.ADVANCE, group.queue, {"run": run_id}, of)]
            case CallModel(run_id=run_id, step=step, group=group, of=of):
                return [_wake(names.CALL_MODEL, group.queue, {"run": run_id, "step": step}, of)]
            case CommitRound(run_id=run_id, step=step, group=group, of=of):
                return [_wake(names.COMMIT_ROUND, group.queue, {"run": run_id, "step": step}, of)]
            case (
                CallTool(call_ids=call_ids, run_id=run_id, group=group, of=of, tools=tools)
                | CallHere(call_ids=call_ids, run_id=run_id, group=group, of=of, tools=tools)
            ):
                kwargs = {"run": run_id, "calls": list(call_ids), "alone": True}
                return [_wake(names.CALL_TOOLS, group.tools_queue, kwargs, of, tools=tools.values())]
            case CancelTurn(turn_id=turn_id, reason=reason, of=of):
                return [_wake(names.CANCEL, SYSTEM_QUEUE, {"turn": turn_id, "reason": reason}, of)]
            case StepOn(run_id=run_id, group=group, of=of):
                return [_wake(names.STEP_ON, group.queue, {"run": run_id}, of)]
            case ContinueBulk(job_id=job_id):
                return [_wake(names.BULK, SYSTEM_QUEUE, {"job": job_id})]
            case Project():
                return [_wake(names.PROJECT, SYSTEM_QUEUE, {})]
            case Deliver():
                return [_wake(names.DELIVER, DELIVERY_QUEUE, {})]
            case CallTools():
                return self._headers(intent)
            case _:
                assert_never(intent)

    def _headers(self, intent: CallTools) -> list[WakeUp]:
        """Of one chord."""
        limit = self._app.tasks[names.CALL_TOOLS].time_limit  # of one call
        assert limit is not None
        body, group_id = round_body(intent), uuid()
        messages = []
        for place, batch in enumerate(intent.batches):
            kwargs = {"run": intent.run_id, "calls": list(batch)}
            tools = [intent.tools[call] for call in batch if call in intent.tools]
            claimed_for = intent.claims.get(batch[0])
            messages.append(
                WakeUp(
                    task=names.CALL_TOOLS,
                    queue=intent.group.tools_queue,
                    kwargs=kwargs,
                    shown=monitor_headers(kwargs, of=intent.of, tools=tools),
                    headers={} if claimed_for is None else {CLAIMED_FOR: claimed_for},
                    group=group_id,
                    place=place,
                    chord=body,
                    time_limit=limit * len(batch) if len(batch) > 1 else None,  # one after the other
                )
            )
        return messages


def _wake(
    task: str, queue: str, kwargs: dict[str, object], of: Subject | None = None, *, tools: Collection[str] = ()
) -> WakeUp:
    return WakeUp(task=task, queue=queue, kwargs=kwargs, shown=monitor_headers(kwargs, of=of, tools=tools))


def round_body(intent: CallTools) -> dict[str, Any]:
    """A signature as it is in a message. Its task id is made now, so a body that is sent twice has the same."""
    kwargs = {"run": intent.run_id, "step": intent.step}
    options = {"queue": intent.group.queue, "task_id": uuid(), **monitor_headers(kwargs, of=intent.of)}
    return {
        "task": names.COMMIT_ROUND, "args": [], "kwargs": kwargs, "options": options, "subtask_type": None,
        "immutable": True, ROUND_SIZE: len(intent.batches),
    }  # fmt: skip


def monitor_headers(
    kwargs: Mapping[str, object], *, of: Subject | None = None, tools: Collection[str] = ()
) -> dict[str, str]:
    """What a monitor such as Flower shows of a message: the thread, the agent, the tools and the ids; never a text.

    Nothing is decided by it. It is the text of a dict: Flower can then search `kwargs:thread=api:customer-4`. Celery
    would walk and quote every argument of every message for it.
    """
    about = {"thread": of.thread_id, "agent": of.agent} if of else {}
    tool_names = ", ".join(dict.fromkeys(tools))
    tool = {"tool": tool_names} if tool_names else {}
    # A list of tasks shortens long kwargs, so the tools are also in the column of arguments, of which ours have none.
    return {"argsrepr": tool_names, "kwargsrepr": repr({**about, **tool, **kwargs})}
