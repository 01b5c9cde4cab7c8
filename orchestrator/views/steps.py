"""The parts of a run, as they are shown: what was done, what is being done, and what is waited for."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any

from chordage.orchestrator.core.compacting import Cause
from chordage.orchestrator.core.model import Fault, StopReason, Usage
from chordage.orchestrator.core.reasons import Reason
from chordage.orchestrator.core.records import Phase
from chordage.orchestrator.views.calls import CallView


class StepStatus(StrEnum):
    OPEN = "open"
    DONE = "done"
    BROKEN_OFF = "broken_off"  # the run ended here, without a reply


class Pause(StrEnum):
    """What else a run may be shown at than a phase."""

    WAITING = "waiting"
    STEERED = "steered"
    INTERRUPTED = "interrupted"


class Upkeep(StrEnum):
    """... or than a pause."""

    COMPACTION = "compaction"


@dataclass(frozen=True, kw_only=True, slots=True)
class AttemptView:
    model: str
    seconds: float
    fault: Fault | None
    detail: str


@dataclass(frozen=True, kw_only=True, slots=True)
class PlanView:
    """A reply of a planner, as it was understood."""

    decision: dict[str, Any]
    ends: str | None  # why planning was over with it; None: its commands were carried out
    refused: int  # commands of it that may not run


@dataclass(frozen=True, kw_only=True, slots=True)
class InferenceStep:
    number: int
    status: StepStatus
    worker: str | None  # who has it in hand, once that is on record
    model: str | None
    stop: StopReason | None
    text: str | None
    asks: int  # how many calls the reply asked for
    attempts: tuple[AttemptView, ...]
    usage: Usage
    seconds: float | None
    at: datetime | None  # when the reply was recorded
    refused: str | None = None  # why it was not taken as the output that is demanded
    plan: PlanView | None = None  # it was a planner that was asked
    is_history: bool = True  # False: it was held, and its consumer has not let it become history, or not yet
    kind: Phase = Phase.INFERENCE


@dataclass(frozen=True, kw_only=True, slots=True)
class ToolRound:
    number: int
    status: StepStatus
    calls: tuple[CallView, ...]
    at: datetime | None = None  # when its results were recorded
    kind: Phase = Phase.TOOL_ROUND


@dataclass(frozen=True, kw_only=True, slots=True)
class ReplayStep:
    """Calls of earlier rounds that were decided about went on; as they are now."""

    number: int
    status: StepStatus
    calls: tuple[CallView, ...]
    at: datetime | None  # when its results were recorded
    kind: Phase = Phase.REPLAY


@dataclass(frozen=True, kw_only=True, slots=True)
class WaitStep:
    """Nothing moved until somebody decided."""

    number: int
    status: StepStatus
    calls: tuple[CallView, ...]  # that waited, as they are now
    at: datetime | None
    until: datetime | None  # the answer it went on with, if that is on record
    kind: Pause = Pause.WAITING


@dataclass(frozen=True, kw_only=True, slots=True)
class SteeredStep:
    """A message that came while the run was at work was taken in: a further turn of it."""

    number: int
    turn_id: str
    sender: str
    text: str
    at: datetime | None
    status: StepStatus = StepStatus.DONE
    kind: Pause = Pause.STEERED


@dataclass(frozen=True, kw_only=True, slots=True)
class CompactionStep:
    """A summary took the place of the older part of the conversation, or should have."""

    number: int
    cause: Cause
    worker: str | None
    model: str
    summary: str | None
    why_not: str | None  # there is no summary, and the history is as it was
    upto: int | None  # the journal row up to which the summary stands for all that was said
    entries: int  # messages, replies and notes that it has replaced
    attempts: tuple[AttemptView, ...]
    usage: Usage
    seconds: float
    at: datetime | None
    status: StepStatus = StepStatus.DONE
    kind: Upkeep = Upkeep.COMPACTION


@dataclass(frozen=True, kw_only=True, slots=True)
class Interruption:
    """The run was ended from outside."""

    number: int
    reason: Reason
    code: str | None
    detail: str | None
    at: datetime | None
    status: StepStatus = StepStatus.DONE
    kind: Pause = Pause.INTERRUPTED


class ByConsumer(StrEnum):
    PUSHED = "pushed"
    STEERED = "steered_by_consumer"


@dataclass(frozen=True, kw_only=True, slots=True)
class PushedStep:
    """Messages that were given while the run was held. `replaces`: in place of all that was said before."""

    number: int
    messages: tuple[dict[str, Any], ...]
    replaces: bool
    at: datetime | None
    status: StepStatus = StepStatus.DONE
    kind: ByConsumer = ByConsumer.PUSHED


@dataclass(frozen=True, kw_only=True, slots=True)
class SaidStep:
    """Words behind the results."""

    number: int
    texts: tuple[str, ...]
    at: datetime | None
    status: StepStatus = StepStatus.DONE
    kind: ByConsumer = ByConsumer.STEERED


Step = (
    InferenceStep
    | ToolRound
    | ReplayStep
    | WaitStep
    | SteeredStep
    | PushedStep
    | SaidStep
    | CompactionStep
    | Interruption
)
