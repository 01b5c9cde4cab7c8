"""The state machines, as tables. A table is the WHERE of the UPDATE that moves a row, and the source of the
diagrams.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import TypeVar

from chordage.orchestrator.core.errors import IllegalTransition


class TurnStatus(StrEnum):
    QUEUED = "queued"
    ACTIVE = "active"
    DONE = "done"


class Disposition(StrEnum):
    """How a message ended. Every message gets exactly one."""

    ANSWERED = "answered"
    MERGED = "merged"
    STEERED = "steered"
    REJECTED = "rejected"
    EXPIRED = "expired"
    SUPERSEDED = "superseded"
    CANCELLED = "cancelled"
    FAILED = "failed"


class RunStatus(StrEnum):
    RUNNING = "running"
    WAITING = "waiting"
    DONE = "done"


class CallStatus(StrEnum):
    NEW = "new"
    RUNNING = "running"
    SUSPENDED = "suspended"
    RESUMING = "resuming"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"


S = TypeVar("S", bound=StrEnum)
Table = Mapping[S, frozenset[S]]

TURN: Table[TurnStatus] = {
    TurnStatus.QUEUED: frozenset({TurnStatus.ACTIVE, TurnStatus.DONE}),
    TurnStatus.ACTIVE: frozenset({TurnStatus.DONE}),
    TurnStatus.DONE: frozenset(),
}

RUN: Table[RunStatus] = {
    RunStatus.RUNNING: frozenset({RunStatus.WAITING, RunStatus.DONE}),
    RunStatus.WAITING: frozenset({RunStatus.RUNNING, RunStatus.DONE}),
    RunStatus.DONE: frozenset(),
}

SETTLED_CALL = frozenset({CallStatus.SUCCEEDED, CallStatus.FAILED, CallStatus.CANCELLED})

CALL: Table[CallStatus] = {
    CallStatus.NEW: frozenset({CallStatus.RUNNING, CallStatus.SUSPENDED}) | SETTLED_CALL,
    CallStatus.RUNNING: frozenset({CallStatus.SUSPENDED}) | SETTLED_CALL,
    CallStatus.SUSPENDED: frozenset({CallStatus.RESUMING, CallStatus.CANCELLED}),
    CallStatus.RESUMING: frozenset({CallStatus.RUNNING, CallStatus.SUSPENDED}) | SETTLED_CALL,
    CallStatus.SUCCEEDED: frozenset(),
    CallStatus.FAILED: frozenset(),
    CallStatus.CANCELLED: frozenset(),
}

OPEN_RUN = frozenset(status for status, onward in RUN.items() if onward)
OPEN_CALL = frozenset(status for status, onward in CALL.items() if onward)
IN_FLIGHT_CALL = frozenset({CallStatus.NEW, CallStatus.RUNNING, CallStatus.RESUMING})


def sources(table: Table[S], to: S) -> tuple[S, ...]:
    """From where a row may come to `to`: what the guarded UPDATE asks for."""
    found = tuple(status for status, onward in table.items() if to in onward)
    if not found:
        raise IllegalTransition(f"nothing moves to {to.value!r}")
    return found
