"""A drill: the agent of its canaries, its steps with their bounds, and what its rows must say afterwards.

A canary turn calls three tools at once, each of which adds a row before it does anything else, apart from the row of
its call. So a call that ran twice is seen even if every guard of its result fails.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from statistics import median

from chordage.orchestrator.core.agent import AgentSpec, Effect, Limits, OnUnknown, Placement
from chordage.orchestrator.core.status import CallStatus, Disposition
from chordage.orchestrator.core.transcript import OUTCOME_UNKNOWN

AGENT_NAME = "chordage-drill"  # no agent of a room may have it
SPACE = "drill"  # of the threads of canaries; no caller and no channel has it
TENANT = "chordage-drill"  # so canaries take turns with the tenants of their group
MODEL = f"{AGENT_NAME}:script"
TOOLS = "chordage.orchestrator.gateways.canary"
# A person is not asked what became of a canary's call: it fails, which is on record like a question.
CANARY_AGENT = AgentSpec(
    name=AGENT_NAME, model=MODEL, tools=(TOOLS,), instructions="", on_unknown=OnUnknown.FAIL, stream=False,
    placement=Placement.SPREAD, limits=Limits(max_rounds=2),
)  # fmt: skip

TO_BEGIN = 5.0  # seconds after which the wake-up of a queued turn is sent again
LONGEST_RESEND = 60.0  # between two wake-ups of work, at most
SLACK = 5.0  # for a busy machine
CLOCK_SHARE = 3  # hosts must agree within half a lease; a moved clock is wrong by a third of it


class DrillStep(StrEnum):
    CANARY = "canary"  # turns, and nothing goes wrong
    KILL = "kill"  # a worker is killed while it holds some
    REDIS = "redis"  # Redis answers no command for a while
    CLOCK = "clock"  # workers whose clocks are wrong carry them out


class DrillResult(StrEnum):
    HELD = "held"
    VIOLATED = "violated"
    NOT_RUN = "not_run"


@dataclass(frozen=True, kw_only=True, slots=True)
class DrillTimes:
    """The settings that bound a recovery, in seconds."""

    lease: float
    beat: float
    sweep: float
    presence: float
    gone_after: float
    cut: float  # for how long Redis is cut off

    @property
    def skew(self) -> float:
        """By how much a moved clock is wrong."""
        return self.lease / CLOCK_SHARE

    def work(self, step: DrillStep) -> float:
        """For how long a tool of a canary works: until it is on record, and a moved worker until several sweeps have
        looked at it.
        """
        match step:
            case DrillStep.CANARY:
                return 0.2
            case DrillStep.KILL | DrillStep.REDIS:
                return self.presence + 1
            case DrillStep.CLOCK:
                return self.presence + 2 * self.sweep

    def bound(self, step: DrillStep, turns: int) -> float:
        """Within which every canary is answered, `turns` of them behind each other on a thread: after it was sent;
        after the kill; after Redis is back.
        """
        work = turns * self.work(step) + SLACK
        match step:
            case DrillStep.CANARY | DrillStep.CLOCK:
                return TO_BEGIN + self.sweep + work
            case DrillStep.KILL:  # an unsafe call waits for its lease, and is judged by who has just begun to judge
                return self.lease + self.beat + 2 * self.sweep + self.gone_after + work
            case DrillStep.REDIS:
                return LONGEST_RESEND + self.sweep + work


# What the rows say.


@dataclass(frozen=True, kw_only=True, slots=True)
class CanaryTurn:
    id: str
    thread_id: str
    disposition: Disposition | None  # None: it has not ended


@dataclass(frozen=True, kw_only=True, slots=True)
class CanaryCall:
    """`executions`: the rows that its tool has added."""

    id: str
    tool: str
    effect: Effect
    status: CallStatus
    code: str | None
    worker: str | None
    executions: int


@dataclass(frozen=True, kw_only=True, slots=True)
class CanaryRows:
    turns: Sequence[CanaryTurn]
    calls: Sequence[CanaryCall]
    questions: int  # that people were asked
    inconsistencies: Sequence[str]  # core/consistency.py


class ViolationKind(StrEnum):
    LOST = "lost"  # a turn that was stored is not there
    NOT_ANSWERED = "not_answered"
    LATE = "late"
    UNSAFE_TWICE = "unsafe_twice"
    NOT_EXECUTED = "not_executed"  # a call succeeded, and its tool has never run
    UNKNOWN_WITHOUT_DEATH = "unknown_without_death"
    CALL_FAILED = "call_failed"
    ASKED = "asked"
    INCONSISTENT = "inconsistent"


@dataclass(frozen=True, kw_only=True, slots=True)
class Violation:
    kind: ViolationKind
    text: str


def violations(admitted: Collection[str], rows: CanaryRows, killed: Collection[str] = ()) -> Iterator[Violation]:
    """`admitted`: the turns that were stored. `killed`: processes that were killed while they held some of them."""
    known = {turn.id for turn in rows.turns}
    for turn_id in sorted(set(admitted) - known):
        yield Violation(kind=ViolationKind.LOST, text=f"turn {turn_id} was stored and is not there any more")
    for turn in rows.turns:
        if turn.disposition is not Disposition.ANSWERED:
            end = "has not ended" if turn.disposition is None else f"ended as {turn.disposition}"
            yield Violation(kind=ViolationKind.NOT_ANSWERED, text=f"turn {turn.id} on {turn.thread_id} {end}")
    for call in rows.calls:
        yield from _of_call(call, killed)
    if rows.questions:
        yield Violation(kind=ViolationKind.ASKED, text=f"people were asked {rows.questions} times about canaries")
    yield from (Violation(kind=ViolationKind.INCONSISTENT, text=text) for text in rows.inconsistencies)


def _of_call(call: CanaryCall, killed: Collection[str]) -> Iterator[Violation]:
    name = f"call {call.id} of {call.tool}"
    if call.effect is Effect.UNSAFE and call.executions > 1:
        text = f"{name} ran {call.executions} times: an unsafe call never runs again by itself"
        yield Violation(kind=ViolationKind.UNSAFE_TWICE, text=text)
    if call.status is CallStatus.SUCCEEDED and not call.executions:
        yield Violation(kind=ViolationKind.NOT_EXECUTED, text=f"{name} has a result, and its tool never ran")
    if call.code == OUTCOME_UNKNOWN:
        if call.effect is not Effect.UNSAFE or call.worker not in killed:
            text = f"{name} has no known outcome, and its worker {call.worker} was not killed"
            yield Violation(kind=ViolationKind.UNKNOWN_WITHOUT_DEATH, text=text)
    elif call.status in {CallStatus.FAILED, CallStatus.CANCELLED}:
        yield Violation(kind=ViolationKind.CALL_FAILED, text=f"{name} is {call.status} ({call.code})")


# The report.


@dataclass(frozen=True, kw_only=True, slots=True)
class StepReport:
    """`median`, `worst`: seconds of recovery. `repeated`: calls that ran again, as their tools allow."""

    step: DrillStep
    result: DrillResult
    bound: float
    turns: int = 0
    median: float | None = None
    worst: float | None = None
    repeated: int = 0
    unknown: int = 0  # unsafe calls inside which the worker was killed
    notes: tuple[str, ...] = ()
    violations: tuple[Violation, ...] = ()


def step_report(
    step: DrillStep,
    bound: float,
    rows: CanaryRows,
    *,
    recovered: Mapping[str, float],
    admitted: Collection[str],
    killed: Collection[str] = (),
    notes: Sequence[str] = (),
) -> StepReport:
    """`recovered`: seconds, of each turn that ended while it was waited for."""
    late = [
        Violation(kind=ViolationKind.LATE, text=f"turn {turn_id} took {seconds:.1f} s, the bound is {bound:g} s")
        for turn_id, seconds in recovered.items()
        if seconds > bound
    ]
    faults = (*violations(admitted, rows, killed), *late)
    return StepReport(
        step=step, result=DrillResult.VIOLATED if faults else DrillResult.HELD, bound=bound, turns=len(admitted),
        median=median(recovered.values()) if recovered else None, worst=max(recovered.values(), default=None),
        repeated=sum(call.executions > 1 for call in rows.calls if call.effect is not Effect.UNSAFE),
        unknown=sum(call.code == OUTCOME_UNKNOWN for call in rows.calls), notes=tuple(notes), violations=faults,
    )  # fmt: skip


@dataclass(frozen=True, kw_only=True, slots=True)
class DrillReport:
    drill: str
    group: str
    steps: tuple[StepReport, ...]
    erased: Mapping[str, int] | None  # rows of canaries, by table; None: they are still there
