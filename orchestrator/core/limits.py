"""Limits that a message brings for its own turn. They only tighten what its agent allows."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Protocol, TypeVar

from chordage.orchestrator.core.agent import Limits, PluginUse
from chordage.orchestrator.core.errors import InvalidMessage

STOPS = "stops"  # the plugin some of whose options are limits of the run
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


class Bounded(Protocol):
    """A run, with what its message has brought."""

    @property
    def max_rounds(self) -> int | None: ...
    @property
    def timeout(self) -> float | None: ...
    @property
    def kin(self) -> object | None: ...


def check(limits: TurnLimits) -> None:
    if limits.max_rounds is not None and not 1 <= limits.max_rounds < 2**31:
        told = f"limits.max_rounds is {limits.max_rounds}: give at least 1, or leave it out"
        raise InvalidMessage(told, field="limits.max_rounds")
    if limits.timeout is not None and not 0 < limits.timeout <= LONGEST:
        told = f"limits.timeout is {limits.timeout:g} s: give more than 0 and at most {LONGEST:g}, or leave it out"
        raise InvalidMessage(told, field="limits.timeout")


def check_within(limits: TurnLimits, of_agent: Limits, agent: str) -> None:
    """A message may ask for less than its agent allows, never for more."""
    for name in ("max_rounds", "timeout"):
        wanted, allowed = getattr(limits, name), getattr(of_agent, name)
        if wanted is not None and allowed is not None and wanted > allowed:
            told = f"limits.{name} is {wanted:g}, and agent {agent!r} allows {allowed:g}: a turn may only tighten it"
            raise InvalidMessage(told, field=f"limits.{name}")


def in_ms(seconds: float | None) -> int | None:
    return None if seconds is None else math.ceil(seconds * 1000)


def in_seconds(milliseconds: int | None) -> float | None:
    return None if milliseconds is None else milliseconds / 1000


def with_stops(limits: Limits, plugins: Iterable[PluginUse]) -> Limits:
    """What an agent's `stops` say of time and calls is a limit of the run like those in [limits]."""
    for use in plugins:
        if use.use == STOPS:
            timeout = _lower(limits.timeout, use.options.get("timeout"))
            calls = _lower(limits.max_tool_calls, use.options.get("max_tool_calls"))
            limits = replace(limits, timeout=timeout, max_tool_calls=calls)
    return limits


def may_have_timeout(run: Bounded, allowed: Limits) -> bool:
    """Whether the run, or one above it, can have a time limit."""
    return allowed.timeout is not None or run.timeout is not None or run.kin is not None


def of_run(allowed: Limits, run: Bounded) -> Limits:
    """What counts for a run: the agent's file may have changed since its message came, so the lower one does."""
    if run.max_rounds is None and run.timeout is None:
        return allowed
    return replace(
        allowed, max_rounds=_lower(allowed.max_rounds, run.max_rounds), timeout=_lower(allowed.timeout, run.timeout)
    )


def _lower(one: N | None, other: N | None) -> N | None:
    return min((value for value in (one, other) if value is not None), default=None)
