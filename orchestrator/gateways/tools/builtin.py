"""Tools that come with chordage: `tools = ["builtin:calculate", ...]` in agent.toml."""

from __future__ import annotations

import asyncio
from datetime import datetime
from typing import Annotated
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from pydantic import Field

from chordage.orchestrator.core.agent import Effect
from chordage.orchestrator.gateways.tools import arithmetic
from chordage.orchestrator.gateways.tools.context import Context
from chordage.orchestrator.gateways.tools.declare import tool
from chordage.orchestrator.gateways.tools.stored_results import read_result
from chordage.orchestrator.gateways.tools.task_tools import task_comment, task_read, task_write
from chordage.orchestrator.gateways.tools.web import WebGetter, WebPage

__all__ = [
    "calculate",
    "clock_now",
    "http_get",
    "read_result",
    "sleep",
    "task_comment",
    "task_read",
    "task_write",
    "word_count",
]

LONGEST_SLEEP = 3_600.0


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


@tool(effect=Effect.PURE, timeout=30, result_limit=20_000)
def http_get(url: str, ctx: Context) -> WebPage:
    """Fetch a public web page or API answer and return its text. Addresses of private networks are refused.

    Args:
        url: starts with http:// or https://
        ctx: tells when nobody waits any more

    """
    return WebGetter().get(url, gone=lambda: ctx.cancelled)
