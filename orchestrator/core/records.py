"""The rows that stages read and write, as frozen values."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, fields, replace
from datetime import datetime
from enum import StrEnum
from typing import Any, NamedTuple

from chordage.orchestrator.core.agent import Effect, Limits
from chordage.orchestrator.core.approvals import Question
from chordage.orchestrator.core.groups import Group
from chordage.orchestrator.core.limits import lower
from chordage.orchestrator.core.model import Usage
from chordage.orchestrator.core.reasons import Ending, Reason
from chordage.orchestrator.core.status import CallStatus, Disposition, RunStatus, TurnStatus
from chordage.orchestrator.core.stepping import Control


class Subject(NamedTuple):
    """What a wake-up is about, for monitors: a thread, and the agent that works on it."""

    thread_id: str
    agent: str


class Phase(StrEnum):
    """What the open step of a run is."""

    INFERENCE = "inference"
    TOOL_ROUND = "tool_round"
    REPLAY = "replay"  # decided calls are carried out; also the phase of a run that waits for decisions
    HELD = "held"  # a stepped run waits for its consumer, with a reply or before the first request


class Checkpoint(StrEnum):
    """What a journal row commits."""

    USER_MESSAGE = "UserMessage"
    ASSISTANT_TURN = "AssistantTurnCommitted"
    PLAN = "PlanCommitted"  # of a planning strategy; not part of the conversation
    TOOL_RESULTS = "ToolResultsCommitted"
    OUTPUT_REFUSED = "OutputRefused"
    COMPACTED = "HistoryCompacted"  # a summary replaces everything before it
    COMPACTION_FAILED = "CompactionFailed"  # the history is unchanged
    REPLY_HELD = "ReplyHeld"  # not history yet: its consumer decides
    CLIENT_MESSAGES = "ClientMessages"
    CLIENT_STEERS = "ClientSteers"
    RUN_WAITING = "RunWaiting"
    RUN_INTERRUPTED = "RunInterrupted"
    ROLLED_BACK = "RolledBack"  # the messages of the run left the history
    RUN_FINISHED = "RunFinished"
    # Notes: events for the bus that are no checkpoint of a run. Their `run_id` is the id of their subject.
    TURN_QUEUED = "TurnQueued"
    TURN_CHANGED = "TurnChanged"  # in the queue: its group or its deadline
    TURN_DROPPED = "TurnDropped"  # it ended without a run
    CALL_SUSPENDED = "CallSuspended"
    CALL_DECIDED = "CallDecided"
    DELIVERED = "Delivered"
    DELIVERY_DEAD = "DeliveryDead"


NOTES = frozenset(
    {Checkpoint.TURN_QUEUED, Checkpoint.TURN_CHANGED, Checkpoint.TURN_DROPPED, Checkpoint.CALL_SUSPENDED,
     Checkpoint.CALL_DECIDED, Checkpoint.DELIVERED, Checkpoint.DELIVERY_DEAD}
)  # fmt: skip


@dataclass(frozen=True, kw_only=True, slots=True)
class Kin:
    """The position of a sub-agent's turn and run in its tree. The root of a tree has none."""

    parent_run: str
    parent_call: str
    root_run: str
    root_thread: str
    path: str  # names of the agents from the root down to this one, with "/" between them
    max_depth: int  # the lowest limit of its ancestors

    @property
    def depth(self) -> int:
        return self.path.count("/")


KIN_COLUMNS = tuple(column.name for column in fields(Kin))


def kin_columns(kin: Kin | None) -> dict[str, Any]:
    return dict.fromkeys(KIN_COLUMNS) if kin is None else asdict(kin)


def take_kin(row: dict[str, Any]) -> Kin | None:
    """Remove the columns of kin from the row."""
    values = {name: row.pop(name) for name in KIN_COLUMNS}
    return None if values["parent_run"] is None else Kin(**values)


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
    kin: Kin | None = None
    control: Control = Control.AUTO
    max_rounds: int | None = None  # from its message; None: as its agent says
    timeout: float | None = None
    fork_of: str | None = None  # the run that it is a fork of
    client_tools: list[dict[str, Any]] | None = None  # of its caller: core/client_tools.py

    @property
    def home_thread(self) -> str:
        """The thread of the conversation: for a sub-agent's turn, that of the root."""
        return self.kin.root_thread if self.kin else self.thread_id


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
    suspended: int = 0  # 1 once one of its calls was suspended
    rested_ms: int = 0  # how long it has waited for decisions
    rested_since: datetime | None = None
    replay_from: int | None = None
    steers: int = 0  # 1 while a steering message waits for the next step
    kept: Ending | None = None  # how it ends once no call is suspended any more
    in_flight: int = 0  # calls of the open round or replay that are not settled
    kin: Kin | None = None
    children: int = 0  # how many sub-agents it has asked
    control: Control = Control.AUTO
    max_rounds: int | None = None  # from its message; None: as its agent says
    timeout: float | None = None
    fork_of: str | None = None  # the run that it is a fork of
    agent_digest: str | None = None  # of the version of its agent with which it started

    @property
    def subject(self) -> Subject:
        return Subject(self.thread_id, self.agent)

    @property
    def home_thread(self) -> str:
        """The thread of the conversation: for a sub-agent's run, that of the root."""
        return self.kin.root_thread if self.kin else self.thread_id

    @property
    def next_inference(self) -> int | None:
        """The step at which the model may be asked now; None while calls are in flight.

        In a plain run the first reply is step 1, its calls are step 2, the next reply is step 3.
        """
        match self.phase:
            case Phase.INFERENCE:
                return self.step
            case Phase.TOOL_ROUND | Phase.REPLAY | Phase.HELD:
                return None if self.in_flight else self.step + 1

    def limits(self, allowed: Limits) -> Limits:
        """Of its message and of its agent, whose file may have changed since, the lower one."""
        if self.max_rounds is None and self.timeout is None:
            return allowed
        max_rounds, timeout = lower(allowed.max_rounds, self.max_rounds), lower(allowed.timeout, self.timeout)
        return replace(allowed, max_rounds=max_rounds, timeout=timeout)

    def may_have_timeout(self, allowed: Limits) -> bool:
        """Whether it, or a run above it in its tree, can have a time limit."""
        return allowed.timeout is not None or self.timeout is not None or self.kin is not None

    def worked(self, now: datetime) -> float:
        """Seconds since the start, without the time spent waiting for decisions."""
        return (now - self.started_at).total_seconds() - self.rested_ms / 1000

    def work_key(self, step: int) -> str:
        """The key of the Redis lock of this model call."""
        return f"{self.id}:{self.epoch}:{step}"

    @property
    def owner(self) -> str:
        """The owner's name in the Redis lock of the thread."""
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
    placed: str | None = None  # where it runs and why
    answered_from: str | None = None  # the call of another run whose result it has: it did not run

    @property
    def idempotency_key(self) -> str:
        return idempotency_key(self.run_id, self)


@dataclass(frozen=True, kw_only=True, slots=True)
class Answer:
    """The part of a call that the history of its thread needs."""

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
    parked: bool = False  # behind a suspended call of a sequential round
    placed: str | None = None  # where it runs and why
    answered_from: str | None = None
    # Of a call that was begun before its reply was recorded:
    full: str | None = None
    worker: str | None = None
    claim_token: str | None = None
    started_at: datetime | None = None
    ended_at: datetime | None = None


def idempotency_key(run_id: str, call: Call | NewCall) -> str:
    """The same for every execution of a call. It is made of the reply that asked for it: another reply, another key."""
    return f"{run_id}:{call.ask_id}:{call.generation}"


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


@dataclass(frozen=True, kw_only=True, slots=True)
class History:
    """The newest summary of a thread, all that follows the rows it replaces, and the requested calls."""

    entries: list[Entry]
    calls: list[Answer]
    asked: int  # how often a summary was requested
    is_read: bool = True  # False: this process has recorded the last entries itself, and does not know their ids
