"""A round of tool calls as a Celery chord: what goes over the wire, and how its body is sent.

Its headers are sent as messages and not through the canvas, and counted by `workers/results.py` and not as Celery
counts results: nobody wants these results, and keeping them costs as much as the tools' rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from celery import Celery
from celery.utils import uuid
from kombu import Producer

from chordage.orchestrator.core.intents import CallTools
from chordage.tasks import names, shown

SIZE = "chord_size"  # of a body of ours: how many headers it has
# Nobody waits for what it returns. Its queue is declared by whoever reads from it: on Redis that takes nothing, and
# Celery would do it for every message.
AS_A_WAKE_UP: Mapping[str, Any] = {"ignore_result": True, "add_to_parent": False, "declare": ()}

Body = Mapping[str, Any]


def send(app: Celery, producer: Producer, intent: CallTools, *, limit: int) -> None:
    """`limit`: seconds of one call; a header that carries several out, one after the other, has as many times that."""
    body = body_of(intent)
    group_id = uuid()
    for place, batch in enumerate(intent.batches):
        kwargs = {"run": intent.run_id, "calls": list(batch)}
        more = {"time_limit": limit * len(batch)} if len(batch) > 1 else {}
        view = shown.headers(kwargs, of=intent.of, tools=[intent.tools[call] for call in batch if call in intent.tools])
        part: dict[str, Any] = {"group_id": group_id, "group_index": place, "chord": body, **view, **more}
        app.send_task(
            names.CALL_TOOLS, kwargs=kwargs, queue=intent.group.tools_queue, producer=producer, **AS_A_WAKE_UP, **part
        )


def body_of(intent: CallTools) -> Body:
    """A signature as it lies in a message. Its task id is made now, so a body that is sent twice has one."""
    kwargs = {"run": intent.run_id, "step": intent.step}
    options = {"queue": intent.group.queue, "task_id": uuid(), **shown.headers(kwargs, of=intent.of)}
    return {
        "task": names.COMMIT_ROUND, "args": [], "kwargs": kwargs, "options": options, "subtask_type": None,
        "immutable": True, SIZE: len(intent.batches),
    }  # fmt: skip


def send_body(app: Celery, body: Body) -> None:
    app.send_task(body["task"], kwargs=body["kwargs"], **AS_A_WAKE_UP, **body["options"])
