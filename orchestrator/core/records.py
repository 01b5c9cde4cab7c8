"""Rows as frozen values: what the stages read."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any, NamedTuple

from chordage.orchestrator.core.agent import Effect
from chordage.orchestrator.core.approvals import Question
from chordage.orchestrator.core.groups import Group
from chordage.orchestrator.core.kinship import Kin
from chordage.orchestrator.core.model import Usage
from chordage.orchestrator.core.reasons import Ending, Reason
from chordage.orchestrator.core.status import CallStatus, Disposition, RunStatus, TurnStatus
from chordage.orchestrator.core.stepping import Control


class Subject(NamedTuple):
    """What a message is about, for who watches the fleet: a thread, and the agent that is at work on it."""

    thread_id: str
    agent: str


class Phase(StrEnum):
    """What the open step of a run is."""

    INFERENCE = "inference"
    TOOL_ROUND = "tool_round"
    REPLAY = "replay"  # calls that were decided are carried out; also where a run rests while it waits
    HELD = "held"  # a reply lies with the consumer of a stepped run, or nothing was asked yet


class Checkpoint(StrEnum):
    """What a journal row commits."""

    USER_MESSAGE = "UserMessage"
    ASSISTANT_TURN = "AssistantTurnCommitted"
    PLAN = "PlanCommitted"  # of a strategy that plans its rounds; no part of the conversation
    TOOL_RESULTS = "ToolResultsCommitted"
    OUTPUT_REFUSED = "OutputRefused"
    COMPACTED = "HistoryCompacted"  # a summary stands for what was said before it
    COMPACTION_FAILED = "CompactionFailed"  # it was tried, and nothing changed
    REPLY_HELD = "ReplyHeld"  # no history: what becomes of it is said by its consumer
    CLIENT_MESSAGES = "ClientMessages"
    CLIENT_STEERS = "ClientSteers"
    RUN_WAITING = "RunWaiting"
    RUN_INTERRUPTED = "RunInterrupted"
    ROLLED_BACK = "RolledBack"  # what the run said has left the history
    RUN_FINISHED = "RunFinished"
    # Notes: what the fleet is to know of and no run has a checkpoint for. Their `run_id` is the id of their subject.
    TURN_QUEUED = "TurnQueued"
    TURN_DROPPED = "TurnDropped"  # it ended, and never had a run
    CALL_SUSPENDED = "CallSuspended"
    CALL_DECIDED = "CallDecided"
    DELIVERED = "Delivered"
    DELIVERY_DEAD = "DeliveryDead"


NOTES = frozenset(
    {
        Checkpoint.TURN_QUEUED,
        Checkpoint.TURN_DROPPED,
        Checkpoint.CALL_SUSPENDED,
        Checkpoint.CALL_DECIDED,
        Checkpoint.DELIVERED,
        Checkpoint.DELIVERY_DEAD,
    }
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Turn:
    id: str
    thread_id: str
    arrival: int
    agent: str
    group: Group
    tenant: str
    status: TurnStatus
    disposition: Disposition | None
    run_id: str | None
    origin: str
    channel: str | None
    sender: str
    text: str
    meta: dict[str, Any]
    strategy: str
    deadline: datetime | None
    queued_at: datetime
    started_at: datetime | None
    done_at: datetime | None
    kin: Kin | None = None  # of a child
    control: Control = Control.AUTO
    max_rounds: int | None = None  # of its own, within those of its agent
    timeout: float | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Run:
    id: str
    thread_id: str
    turn_id: str
    agent: str
    group: Group
    strategy: str
    status: RunStatus
    reason: Reason | None
    code: str | None
    detail: str | None
    epoch: int
    step: int
    phase: Phase
    rounds: int
    resends: int
    expiries: int
    claim_token: str | None
    claim_worker: str | None
    lease_until: datetime | None
    usage: Usage
    started_at: datetime
    ended_at: datetime | None
    suspended: int = 0  # 1 once a call of it was suspended
    rested_ms: int = 0  # how long it has waited for decisions
    rested_since: datetime | None = None
    replay_from: int | None = None
    steers: int = 0  # 1 while a message waits to be taken in at the next step
    kept: Ending | None = None  # what it ends with once nothing is suspended any more
    in_flight: int = 0  # calls of the open round or replay that are not settled
    kin: Kin | None = None  # of a child
    children: int = 0  # how many sub-agents it has asked
    control: Control = Control.AUTO
    max_rounds: int | None = None  # that its message has brought
    timeout: float | None = None

    @property
    def subject(self) -> Subject:
        return Subject(self.thread_id, self.agent)

    @property
    def next_inference(self) -> int | None:
        """The step at which the model may be asked now; none while the round is still out."""
        match self.phase:
            case Phase.INFERENCE:
                return self.step
            case Phase.TOOL_ROUND | Phase.REPLAY | Phase.HELD:
                return None if self.in_flight else self.step + 1

    def worked(self, now: datetime) -> float:
        """Seconds since it started, without those it waited for people."""
        return (now - self.started_at).total_seconds() - self.rested_ms / 1000

    def work_key(self, step: int) -> str:
        """Under which Redis knows that somebody has this model call in hand."""
        return f"{self.id}:{self.epoch}:{step}"

    @property
    def owner(self) -> str:
        """The name under which the run holds its thread."""
        return f"{self.id}:{self.epoch}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Call:
    id: str
    run_id: str
    thread_id: str
    step: int
    place: int  # its place in the round, in the model's order
    ask_id: str  # the provider's id
    generation: int
    tool: str
    arguments: dict[str, Any]
    effect: Effect
    status: CallStatus
    code: str | None
    content: str | None
    claim_token: str | None
    worker: str | None
    lease_until: datetime | None
    resends: int
    expiries: int
    started_at: datetime | None
    ended_at: datetime | None
    progress: str | None = None
    suspension_id: str | None = None
    replayed_at: int | None = None

    @property
    def idempotency_key(self) -> str:
        return f"{self.run_id}:{self.ask_id}:{self.generation}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Answer:
    """Of a call, what the history of its thread needs."""

    id: str
    run_id: str
    step: int
    place: int
    ask_id: str
    status: CallStatus
    code: str | None
    content: str | None
    replayed_at: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class NewCall:
    """A call as the gate leaves it: runnable, or already settled with a result for the model."""

    id: str
    place: int
    ask_id: str
    generation: int
    tool: str
    arguments: dict[str, Any]
    effect: Effect
    status: CallStatus
    code: str | None = None
    content: str | None = None
    suspension_id: str | None = None
    question: Question | None = None
    parked: bool = False  # it stands behind one that is suspended


@dataclass(frozen=True, kw_only=True, slots=True)
class Entry:
    """One journal row."""

    id: int
    thread_id: str
    run_id: str
    step: int
    kind: Checkpoint
    body: dict[str, Any] = field(default_factory=dict)
    at: datetime | None = None
