"""Tools that come with chordage: `tools = ["builtin:calculate", ...]` in agent.toml."""

from __future__ import annotations

import asyncio
import hashlib
from datetime import datetime
from typing import Annotated, Literal
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from pydantic import Field

from chordage.orchestrator.core.agent import Effect, Placement
from chordage.orchestrator.core.errors import NotFound
from chordage.orchestrator.gateways.ports import TaskFile, TaskText
from chordage.orchestrator.gateways.tools import arithmetic
from chordage.orchestrator.gateways.tools.context import Context
from chordage.orchestrator.gateways.tools.declare import tool
from chordage.orchestrator.gateways.tools.outcomes import READER
from chordage.orchestrator.gateways.tools.web import WebGetter, WebPage

LONGEST_SLEEP = 3_600.0
LONGEST_PART = 20_000  # characters of a stored result


@tool(effect=Effect.PURE, timeout=10)
def clock_now(timezone: str = "UTC") -> str:
    """The present date and time, in ISO 8601.

    Args:
        timezone: name of a time zone, such as Europe/Berlin

    """
    try:
        zone = ZoneInfo(timezone)
    except (ZoneInfoNotFoundError, ValueError, OSError) as error:
        raise ValueError(f"there is no time zone {timezone!r}; write it like Europe/Berlin, or UTC") from error
    return datetime.now(zone).isoformat(timespec="seconds")


@tool(effect=Effect.PURE, timeout=10)
def calculate(expression: str) -> int | float:
    """Work out an arithmetic expression, such as (3 + 4) * sqrt(2).

    Args:
        expression: numbers, + - * / // % **, parentheses, and functions such as sqrt, round, min, max, log, sin

    """
    return arithmetic.work_out(expression)


@tool(effect=Effect.PURE, timeout=LONGEST_SLEEP + 60)
async def sleep(seconds: Annotated[float, Field(ge=0, le=LONGEST_SLEEP)], ctx: Context) -> str:
    """Pretend to work for a while.

    Args:
        seconds: how long, at most an hour
        ctx: where progress goes

    """
    ctx.progress(0.0, "asleep")
    await asyncio.sleep(seconds)
    return f"slept {seconds:g} s"


@tool(effect=Effect.PURE, timeout=10)
def word_count(text: str) -> dict[str, int]:
    """Count the words, lines and characters of a text.

    Args:
        text: the text

    """
    return {"words": len(text.split()), "lines": len(text.splitlines()), "characters": len(text)}


@tool(effect=Effect.PURE, timeout=30, result_limit=20_000, placement=Placement.SPREAD)
def http_get(url: str, ctx: Context) -> WebPage:
    """Fetch a public web page or API answer and return its text. Addresses of private networks are refused.

    Args:
        url: starts with http:// or https://
        ctx: of the call

    """
    return WebGetter().get(url, cancelled=lambda: ctx.cancelled)


@tool(name=READER, effect=Effect.PURE, timeout=30, result_limit=LONGEST_PART + 500)
def read_result(call: str, ctx: Context, offset: int = 0, length: int = LONGEST_PART) -> str:
    """Read a part of the result of an earlier tool call in this conversation, of which you were shown the beginning.

    Args:
        call: the id in the note below that beginning, with or without `call:`
        ctx: of this call
        offset: the first character to read; the first of the result is 0
        length: how many characters to read, at most 20000

    """
    if offset < 0 or not 1 <= length <= LONGEST_PART:
        raise ValueError(f"offset must be 0 or more, and length 1 to {LONGEST_PART}; got {offset} and {length}")
    if ctx.results is None:
        raise NotFound("there are no stored results here: this works only in a call that a run has made")
    part = ctx.results.part(call.removeprefix("call:"), offset, length)
    end = offset + len(part.text)
    more = f"; read on from offset {end}" if end < part.total else "; this is the end"
    return f"[Characters {offset} to {end} of {part.total}{more}]\n{part.text}"


@tool(effect=Effect.PURE, timeout=30)
def task_read(ctx: Context) -> dict[str, str]:
    """Read the file of the task you are working on: its present text, status and version.

    Args:
        ctx: of the call

    """
    return _fields(_task_of(ctx).read())


@tool(effect=Effect.IDEMPOTENT, timeout=30)
def task_write(
    ctx: Context,
    body: str | None = None,
    status: Literal["todo", "doing", "done", "cancelled"] | None = None,
    version: str | None = None,
) -> dict[str, str]:
    """Change the file of the task you are working on: its text, its status, or both. What is left out stays.

    Args:
        ctx: of the call
        body: the whole new text, without the front matter
        status: done ends the task; a later change by a person opens it again
        version: from task_read; needed for a body when another person or program has changed the file meanwhile

    """
    if body is None and status is None:
        raise ValueError("give a body, a status, or both")
    return _fields(_task_of(ctx).write(body=body, status=status, version=version))


@tool(effect=Effect.IDEMPOTENT, timeout=30)
def task_comment(text: str, ctx: Context) -> dict[str, str]:
    """Add a line to the end of the task you are working on, such as how far it is.

    Args:
        text: the comment
        ctx: of the call

    """
    if not text.strip():
        raise ValueError("the comment is blank; write a text")
    mark = hashlib.sha256(ctx.idempotency_key.encode()).hexdigest()[:8]
    return _fields(_task_of(ctx).comment(text, mark))


def _task_of(ctx: Context) -> TaskFile:
    if ctx.task is None:
        raise NotFound("this turn belongs to no task: only a turn on a thread `task:<id>` of this room has a file")
    return ctx.task


def _fields(task: TaskText) -> dict[str, str]:
    return {"id": task.id, "path": task.path, "status": task.status, "text": task.text, "version": task.version}
