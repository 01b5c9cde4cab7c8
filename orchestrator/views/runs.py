"""A run step by step: the replies as the journal has them, the rounds as the rows of their calls tell them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from chordage.orchestrator.core.errors import NotFound
from chordage.orchestrator.core.groups import Group
from chordage.orchestrator.core.model import Fault, StopReason, Usage
from chordage.orchestrator.core.reasons import Reason
from chordage.orchestrator.core.records import Checkpoint, Entry, Phase, Run
from chordage.orchestrator.core.status import RunStatus
from chordage.orchestrator.store import calls, journal, runs
from chordage.orchestrator.store.tx import Store
from chordage.orchestrator.views.calls import CallView, by_round


class StepStatus(StrEnum):
    OPEN = "open"
    DONE = "done"
    BROKEN_OFF = "broken_off"  # the run ended here, without a reply


@dataclass(frozen=True, kw_only=True, slots=True)
class AttemptView:
    model: str
    seconds: float
    fault: Fault | None
    detail: str


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
    kind: Phase = Phase.INFERENCE


@dataclass(frozen=True, kw_only=True, slots=True)
class ToolRound:
    number: int
    status: StepStatus
    calls: tuple[CallView, ...]
    kind: Phase = Phase.TOOL_ROUND


Step = InferenceStep | ToolRound


@dataclass(frozen=True, kw_only=True, slots=True)
class RunView:
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
    rounds: int
    usage: Usage
    started_at: datetime
    ended_at: datetime | None
    steps: tuple[Step, ...]


def run(store: Store, run_id: str) -> RunView:
    with store.read() as tx:
        found = runs.load(tx, run_id)
        entries = journal.of_run(tx, run_id)
        asked = calls.of_run(tx, run_id)
    if found is None:
        raise NotFound(f"there is no run {run_id!r}; `chordage turns` lists turns with their runs")
    rounds = {step: views for (_, step), views in by_round(asked).items()}
    return _view(found, _steps(found, entries, rounds))


def _view(found: Run, steps: tuple[Step, ...]) -> RunView:
    return RunView(
        id=found.id, thread_id=found.thread_id, turn_id=found.turn_id, agent=found.agent, group=found.group,
        strategy=found.strategy, status=found.status, reason=found.reason, code=found.code, detail=found.detail,
        rounds=found.rounds, usage=found.usage, started_at=found.started_at, ended_at=found.ended_at, steps=steps,
    )  # fmt: skip


def _steps(found: Run, entries: Sequence[Entry], rounds: dict[int, tuple[CallView, ...]]) -> tuple[Step, ...]:
    steps: dict[int, Step] = {e.step: _inference(e) for e in entries if e.kind is Checkpoint.ASSISTANT_TURN}
    steps |= {number: _round(found, number, asked) for number, asked in rounds.items()}
    if (last := _without_reply(found, steps)) is not None:
        steps[last.number] = last
    return tuple(steps[number] for number in sorted(steps))


def _inference(entry: Entry) -> InferenceStep:
    body = entry.body
    attempts = tuple(_attempt(attempt) for attempt in body["attempts"])
    return InferenceStep(
        number=entry.step, status=StepStatus.DONE, worker=body.get("worker"), model=body["model"],
        stop=StopReason(body["stop"]), text=body["text"], asks=len(body["asks"]), attempts=attempts,
        usage=Usage(**body["usage"]), seconds=round(sum(attempt.seconds for attempt in attempts), 3), at=entry.at,
    )  # fmt: skip


def _attempt(body: dict[str, str | float | None]) -> AttemptView:
    fault = body["fault"]
    return AttemptView(
        model=str(body["model"]),
        seconds=float(body["seconds"] or 0),
        fault=Fault(str(fault)) if fault else None,
        detail=str(body["detail"]),
    )


def _round(found: Run, number: int, asked: tuple[CallView, ...]) -> ToolRound:
    is_open = found.status is not RunStatus.DONE and found.step == number and found.in_flight > 0
    return ToolRound(number=number, status=StepStatus.OPEN if is_open else StepStatus.DONE, calls=asked)


def _without_reply(found: Run, steps: dict[int, Step]) -> InferenceStep | None:
    """The inference the run stands at: it is being made, or it is what the run ended at."""
    number = found.next_inference
    is_over = found.status is RunStatus.DONE
    if number is None or number in steps or found.status is RunStatus.WAITING:
        return None
    if is_over and not _had_begun(found, steps):
        return None
    return InferenceStep(
        number=number, status=StepStatus.BROKEN_OFF if is_over else StepStatus.OPEN, worker=found.claim_worker,
        model=None, stop=None, text=None, asks=0, attempts=(), usage=Usage(), seconds=None, at=found.ended_at,
    )  # fmt: skip


def _had_begun(found: Run, steps: dict[int, Step]) -> bool:
    """Behind a round only a failure tells that the model was asked again: a cancelled run may have ended in it."""
    before = steps.get(found.step)
    is_behind_round = found.phase is Phase.TOOL_ROUND and isinstance(before, ToolRound)
    return not is_behind_round or found.reason is Reason.ERROR
