"""Why a row waits: one cause, who holds it, since when, until when, and the command that changes it.

The words are made here and nowhere else, so the command, HTTP and the console say the same. The reason of a row is that
of the first test in the ordered table of its kind that matches; the last test of each table matches every row.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import NamedTuple, TypeVar

from chordage.orchestrator.core.leases import LeaseRules

LONGEST_ERROR = 200  # characters of an error that a sentence quotes


class RowKind(StrEnum):
    """What can wait."""

    TURN = "turn"
    RUN = "run"
    CALL = "call"
    SUSPENSION = "suspension"
    DELIVERY = "delivery"
    PULSE = "pulse"
    CHANNEL = "channel"
    THREAD = "thread"  # for the turn that is at work there, or next


class RowKey(NamedTuple):
    kind: RowKind
    id: str


class WaitCause(StrEnum):
    # a turn in its queue
    UNWANTED = "unwanted"
    DEADLINE_PASSED = "deadline_passed"
    JOINS_RUN = "joins_run"
    BEHIND_WAITING_RUN = "behind_waiting_run"
    BEHIND_TURN = "behind_turn"
    NOT_BEFORE = "not_before"
    BROKEN_AGENT = "broken_agent"
    GROUP_PAUSED = "group_paused"
    GROUP_FULL = "group_full"
    OTHER_TENANT = "other_tenant"
    # between two processes
    NO_WORKER = "no_worker"
    MESSAGE_SENT = "message_sent"
    NEXT_SWEEP = "next_sweep"
    LOST_WORKER = "lost_worker"
    # a run
    MODEL_CALL = "model_call"
    MODEL_BACKOFF = "model_backoff"
    TOOL_ROUND = "tool_round"
    HELD = "held"
    # a call, and a question about one
    CALL_QUEUED = "call_queued"
    CALL_CLAIMED = "call_claimed"
    BEHIND_CALL = "behind_call"
    DECISION = "decision"
    OUTCOME_UNKNOWN = "outcome_unknown"
    CLIENT_TOOL = "client_tool"
    SUB_AGENT = "sub_agent"
    DECIDED = "decided"
    # a delivery
    SENDING = "sending"
    DELIVERY_RETRY = "delivery_retry"
    BEHIND_DELIVERY = "behind_delivery"
    BUS_BEHIND = "bus_behind"
    DEAD_LETTER = "dead_letter"
    # scheduled work, and channels
    DUE_LATER = "due_later"
    DUE_NOW = "due_now"
    PAUSED = "paused"
    TURN_OPEN = "turn_open"
    UNCHANGED = "unchanged"
    POLL_BACKOFF = "poll_backoff"
    QUEUE_FULL = "queue_full"
    NOT_POLLED = "not_polled"
    POLLED = "polled"


class OwnerKind(StrEnum):
    """Who or what has to move first."""

    TURN = "turn"
    RUN = "run"
    CALL = "call"
    DELIVERY = "delivery"
    PROCESS = "process"
    QUEUE = "queue"
    GROUP = "group"
    TENANT = "tenant"
    AGENT = "agent"
    CHANNEL = "channel"
    BUS = "bus"
    FILE = "file"
    PERSON = "person"
    CALLER = "caller"
    CONSUMER = "consumer"
    CLOCK = "clock"


@dataclass(frozen=True, kw_only=True, slots=True)
class WaitOwner:
    kind: OwnerKind
    id: str | None = None  # null for a person, the consumer, the bus and the clock

    def __str__(self) -> str:
        match self.kind:
            case OwnerKind.PERSON:
                return "a person"
            case OwnerKind.CONSUMER:
                return "its consumer"
            case OwnerKind.TENANT if self.id is None:
                return "another tenant"
            case OwnerKind.CLOCK | OwnerKind.BUS:
                return f"the {self.kind.value}"
            case _:
                return f"{self.kind.value} {self.id}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Remedy:
    """What changes it, or shows more where only time does. `http`: the same over HTTP, as `METHOD /path`."""

    command: str
    http: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class WaitReason:
    kind: RowKind
    id: str
    cause: WaitCause
    owner: WaitOwner
    since: datetime
    until: datetime | None  # when it changes by itself at the latest; None: it does not, or not at a known time
    remedy: Remedy
    text: str  # one sentence
    because: WaitReason | None = None  # why what it waits for waits


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """A reason that is not complete: `next` is the row whose own reason belongs to it."""

    reason: WaitReason
    next: RowKey | None = None

    def of(self, kind: RowKind, row_id: str) -> Finding:
        """The same reason, of a row that waits because this one does."""
        return replace(self, reason=replace(self.reason, kind=kind, id=row_id))


@dataclass(frozen=True, kw_only=True, slots=True)
class WaitClock:
    """The time, and how long leases and sweeps take."""

    now: datetime
    leases: LeaseRules

    @property
    def next_sweep(self) -> datetime:
        return self.now + timedelta(seconds=self.leases.sweep)


F = TypeVar("F")
Test = Callable[[F, WaitClock], Finding | None]


def first_match(tests: Sequence[Test[F]], facts: F, clock: WaitClock) -> Finding:
    for test in tests:
        if (finding := test(facts, clock)) is not None:
            return finding
    raise AssertionError(f"the last test matches everything: {facts}")


def is_past(moment: datetime | None, clock: WaitClock) -> bool:
    return moment is not None and moment <= clock.now


def at(moment: datetime) -> str:
    return f"{moment.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"


def one_line(error: str) -> str:
    """The end of a sentence that quotes an error."""
    line = " ".join(error.split())
    return (line if len(line) <= LONGEST_ERROR else f"{line[:LONGEST_ERROR]}…").rstrip(".") + "."


CLOCK = WaitOwner(kind=OwnerKind.CLOCK)
PERSON = WaitOwner(kind=OwnerKind.PERSON)
CALLER = WaitOwner(kind=OwnerKind.CALLER)
CONSUMER = WaitOwner(kind=OwnerKind.CONSUMER)


# Remedies. Each command is one of `chordage --help`.

STATUS = Remedy(command="chordage status", http="GET /workers")
CHECK = Remedy(command="chordage check", http="GET /agents")
DECIDE = "POST /decisions"


def cancel(turn_id: str) -> Remedy:
    return Remedy(command=f"chordage cancel {turn_id}", http=f"POST /turns/{turn_id}/cancel")


def show(turn_id: str) -> Remedy:
    return Remedy(command=f"chordage show {turn_id}", http=f"GET /turns/{turn_id}")


def questions_of(run_id: str) -> Remedy:
    return Remedy(command=f"chordage inbox --run {run_id}", http=f"GET /inbox?run_id={run_id}")


def show_run(run_id: str) -> Remedy:
    return Remedy(command=f"chordage show {run_id}", http=f"GET /runs/{run_id}")


def budget(group: str, number: int | str) -> Remedy:
    return Remedy(command=f"chordage groups set {group} {number}", http=f"PATCH /groups/{group}")


def worker_for(queue: str) -> Remedy:
    return Remedy(command=f"chordage worker --queues {queue}")
