"""What an agent may do to the file of the task it works on. On a turn of no task, each says so."""

from __future__ import annotations

import hashlib
from typing import Literal

from chordage.orchestrator.core.agent import Effect
from chordage.orchestrator.core.errors import NotFound
from chordage.orchestrator.gateways.ports import TaskDesk, TaskText
from chordage.orchestrator.gateways.tools.context import Context
from chordage.orchestrator.gateways.tools.declare import tool

Told = dict[str, str]


@tool(effect=Effect.PURE, timeout=30)
def task_read(ctx: Context) -> Told:
    """Read the task you are working on as its file has it now: text, status and version.

    Args:
        ctx: of the call

    """
    return _told(_desk(ctx).read())


@tool(effect=Effect.IDEMPOTENT, timeout=30)
def task_write(
    ctx: Context,
    body: str | None = None,
    status: Literal["todo", "doing", "done", "cancelled"] | None = None,
    version: str | None = None,
) -> Told:
    """Change the file of the task you are working on: its text, its status, or both. What is left out stays.

    Args:
        ctx: of the call
        body: the whole new text, without the front matter
        status: done ends the task; a later change by a person opens it again
        version: what task_read told; needed for a body when somebody else has changed the file meanwhile

    """
    if body is None and status is None:
        raise ValueError("give a body, a status, or both")
    return _told(_desk(ctx).write(body=body, status=status, version=version))


@tool(effect=Effect.IDEMPOTENT, timeout=30)
def task_comment(text: str, ctx: Context) -> Told:
    """Add a line to the end of the task you are working on, such as how far it is.

    Args:
        text: what to note
        ctx: of the call

    """
    if not text.strip():
        raise ValueError("the comment is blank: say something")
    mark = hashlib.sha256(ctx.idempotency_key.encode()).hexdigest()[:8]
    return _told(_desk(ctx).comment(text, mark))


def _desk(ctx: Context) -> TaskDesk:
    if ctx.task is None:
        raise NotFound("this turn belongs to no task: only a turn on a thread `task:<id>` of this room has a file")
    return ctx.task


def _told(task: TaskText) -> Told:
    return {"id": task.id, "path": task.path, "status": task.status, "text": task.text, "version": task.version}
