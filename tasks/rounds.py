"""A round of tool calls as a Celery chord: what goes over the wire, and how its body is sent.

Its headers are sent as messages and not through the canvas, and counted by `workers/results.py` and not as Celery
counts results: nobody wants these results, and keeping them costs as much as the tools' rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from celery import Celery
from celery.utils import uuid
from kombu import Producer

from chordage.tasks import names

SIZE = "chord_size"  # of a body of ours: how many headers it has

Body = Mapping[str, Any]


def body_of(run_id: str, step: int, *, queue: str, size: int) -> Body:
    """A signature as it lies in a message. Its task id is made now, so a body that is sent twice has one."""
    kwargs = {"run": run_id, "step": step}
    options = {"queue": queue, "task_id": uuid(), **shown(kwargs)}
    return {
        "task": names.COMMIT_ROUND, "args": [], "kwargs": kwargs, "options": options, "subtask_type": None,
        "immutable": True, SIZE: size,
    }  # fmt: skip


def send_headers(
    app: Celery, producer: Producer, headers: Sequence[Mapping[str, Any]], *, queue: str, body: Body
) -> None:
    """`headers`: of each its arguments, and under `options` what else Celery is told of it."""
    group_id = uuid()
    for place, header in enumerate(headers):
        kwargs = {name: value for name, value in header.items() if name != "options"}
        options: dict[str, Any] = {"group_id": group_id, "group_index": place, "chord": body, **shown(kwargs)}
        app.send_task(
            names.CALL_TOOLS, kwargs=kwargs, queue=queue, ignore_result=True, add_to_parent=False, producer=producer,
            **options, **header.get("options", {}),
        )  # fmt: skip


def send_body(app: Celery, body: Body) -> None:
    app.send_task(body["task"], kwargs=body["kwargs"], ignore_result=True, add_to_parent=False, **body["options"])


def shown(kwargs: Mapping[str, object]) -> dict[str, Any]:
    """What Flower shows of a message. Celery would walk and quote every argument of every message for it."""
    return {"argsrepr": "", "kwargsrepr": " ".join(f"{name}={value}" for name, value in kwargs.items())}
