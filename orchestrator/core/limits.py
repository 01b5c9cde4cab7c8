"""Limits of a turn from its message. They can only be lower than those of its agent."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TypeVar

from chordage.orchestrator.core.agent import Limits, PluginUse
from chordage.orchestrator.core.errors import InvalidMessage

LONGEST = 366 * 86_400.0  # seconds
N = TypeVar("N", int, float)


@dataclass(frozen=True, kw_only=True, slots=True)
class TurnLimits:
    """None: as the agent says."""

    max_rounds: int | None = None
    timeout: float | None = None  # seconds of work

    def __bool__(self) -> bool:
        return self.max_rounds is not None or self.timeout is not None


AS_THE_AGENT_SAYS = TurnLimits()


def check(limits: TurnLimits) -> None:
    if limits.max_rounds is not None and not 1 <= limits.max_rounds < 2**31:
        problem = f"limits.max_rounds is {limits.max_rounds}: give at least 1, or leave it out"
        raise InvalidMessage(problem, field="limits.max_rounds")
    if limits.timeout is not None and not 0 < limits.timeout <= LONGEST:
        problem = f"limits.timeout is {limits.timeout:g} s: give more than 0 and at most {LONGEST:g}, or leave it out"
        raise InvalidMessage(problem, field="limits.timeout")


def check_within(limits: TurnLimits, of_agent: Limits, agent: str) -> None:
    """Raises InvalidMessage for a limit that is above the agent's."""
    for name in ("max_rounds", "timeout"):
        wanted, allowed = getattr(limits, name), getattr(of_agent, name)
        if wanted is not None and allowed is not None and wanted > allowed:
            problem = f"limits.{name} is {wanted:g}, and agent {agent!r} allows {allowed:g}: a turn may only tighten it"
            raise InvalidMessage(problem, field=f"limits.{name}")


def in_ms(seconds: float | None) -> int | None:
    return None if seconds is None else math.ceil(seconds * 1000)


def in_seconds(milliseconds: int | None) -> float | None:
    return None if milliseconds is None else milliseconds / 1000


def with_stops(limits: Limits, plugins: Iterable[PluginUse]) -> Limits:
    """The plugin `stops` has two options that are limits of the run, like those in [limits]."""
    for use in plugins:
        if use.use == "stops":
            timeout = lower(limits.timeout, use.options.get("timeout"))
            calls = lower(limits.max_tool_calls, use.options.get("max_tool_calls"))
            limits = replace(limits, timeout=timeout, max_tool_calls=calls)
    return limits


def lower(*limits: N | None) -> N | None:
    """The lowest that is set."""
    return min((limit for limit in limits if limit is not None), default=None)
