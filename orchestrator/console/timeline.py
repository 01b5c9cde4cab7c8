"""A run as rows with bars over time: what waited, what worked, what was lost and done again.

All positions are computed here, in per cent, so that a page needs no script to draw them. Long stretches in which
nothing works are cut to a notch: a run that waited for a month still shows its seconds of work. A row has the same id
and order in the first page and in every update.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import assert_never

from chordage.orchestrator.console.scale import NOTICED, BarKind, DrawnBar, Tick, TimelineSpan, TimeScale
from chordage.orchestrator.console.words import span
from chordage.orchestrator.core.model import Usage
from chordage.orchestrator.core.status import SETTLED_CALL, CallStatus, RunStatus
from chordage.orchestrator.core.text import counted
from chordage.orchestrator.views.calls import CallView
from chordage.orchestrator.views.processes import Takeover
from chordage.orchestrator.views.runs import (
    CompactionStep,
    ConsumerSteerStep,
    InferenceStep,
    Interruption,
    PushedStep,
    ReplayStep,
    RunView,
    SteeredStep,
    Step,
    StepStatus,
    ToolRound,
    WaitStep,
)


@dataclass(frozen=True, kw_only=True, slots=True)
class TimelineRow:
    id: str  # of its element
    anchor: str = ""  # `step-3`: of the first row of a step of the run itself
    order: str  # rows are sorted by it
    level: int  # 0: a step; 1: a call of a round; then those of sub-agents
    run_id: str
    name: str
    state: str
    note: str = ""
    step: Step | None = None  # of the row of a step
    call: CallView | None = None  # of the row of a call
    usage: Usage | None = None
    seconds: float | None = None
    who: str | None = None  # the process that did it
    spans: tuple[TimelineSpan, ...] = ()
    bars: tuple[DrawnBar, ...] = ()
    is_open: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Timeline:
    rows: tuple[TimelineRow, ...]
    ticks: tuple[Tick, ...]
    has_notches: bool  # some stretches are cut, or would be


@dataclass(frozen=True, kw_only=True, slots=True)
class RunFamily:
    """A run, the moment its turn was queued, and the runs of the sub-agents below it, by their ids."""

    run: RunView
    queued_at: datetime
    children: Mapping[str, RunView] = field(default_factory=dict)
    takeovers: Mapping[str, Sequence[Takeover]] = field(default_factory=dict)  # by run


def timeline(family: RunFamily, now: datetime, *, with_idle: bool = False) -> Timeline:
    """`with_idle`: at true scale, with nothing cut."""
    run = family.run
    rows = [_queue_row(family)] if (run.started_at - family.queued_at).total_seconds() >= NOTICED else []
    rows += _rows_of(family, run, "", 0)
    is_open = run.status is not RunStatus.DONE
    end = now if run.ended_at is None else run.ended_at
    scale = TimeScale(
        [piece for row in rows for piece in row.spans], family.queued_at, end, now, is_open=is_open, with_idle=with_idle
    )
    drawn = tuple(replace(row, bars=tuple(scale.bar(piece) for piece in row.spans)) for row in rows)
    return Timeline(rows=drawn, ticks=tuple(scale.ticks()), has_notches=scale.has_cuts)


def _queue_row(family: RunFamily) -> TimelineRow:
    run = family.run
    seconds = (run.started_at - family.queued_at).total_seconds()
    wait = TimelineSpan(
        kind=BarKind.QUEUED, start=family.queued_at, end=run.started_at, text=f"queued for {span(seconds)}"
    )
    return TimelineRow(
        id=f"row-{run.run_id}-queue", order="0000", level=0, run_id=run.run_id, name="queued", state="done",
        seconds=seconds, spans=(wait,),
    )  # fmt: skip


def _rows_of(family: RunFamily, run: RunView, prefix: str, level: int) -> list[TimelineRow]:
    rows: list[TimelineRow] = []
    before = run.started_at  # when the step before had ended
    takeovers = family.takeovers.get(run.run_id, ())
    for place, step in enumerate(run.steps):
        order = f"{prefix}{step.number + 1:04}{place % 10}"
        row = TimelineRow(
            id=f"row-{run.run_id}-{step.number}-{step.kind.value}", order=order, level=level, run_id=run.run_id,
            name=_name(step), state=_state(step), step=step, is_open=step.status is StepStatus.OPEN,
            anchor=_anchor(run, place) if level == 0 else "",
        )  # fmt: skip
        lost = [one for one in takeovers if one.step == step.number]
        row, before = _with_spans(row, step, before, lost)
        rows.append(row)
        if isinstance(step, ToolRound):
            for number, call in enumerate(step.calls):
                rows += _call_rows(family, run, call, row, f"{order}.{number:03}", lost)
    return rows


def _anchor(run: RunView, place: int) -> str:
    """Several rows may belong to one step, and an address may name one element."""
    number = run.steps[place].number
    return "" if place and run.steps[place - 1].number == number else f"step-{number}"


def _state(step: Step) -> str:
    if step.status is not StepStatus.OPEN:
        return step.status.value
    return "waiting" if isinstance(step, WaitStep) else "running"


def _name(step: Step) -> str:
    match step:
        case InferenceStep():
            return step.model or ("model" if step.plan is None else "planner")
        case ToolRound():
            return counted(len(step.calls), "call")
        case ReplayStep():
            of_child = bool(step.calls) and all(call.child for call in step.calls)
            return "result of a sub-agent" if of_child else f"{counted(len(step.calls), 'call')} after a decision"
        case WaitStep():
            return "waits for " + (", ".join(sorted({call.tool for call in step.calls})) or "its consumer")
        case SteeredStep():
            return f"message from {step.sender}"
        case PushedStep():
            return f"{counted(len(step.messages), 'message')} from its consumer"
        case ConsumerSteerStep():
            return "steered by its consumer"
        case CompactionStep():
            return f"summary by {step.model}"
        case Interruption():
            return f"interrupted: {step.reason.value}"
        case _:
            assert_never(step)


def _with_spans(
    row: TimelineRow, step: Step, before: datetime, lost: Sequence[Takeover]
) -> tuple[TimelineRow, datetime]:
    """The row with what took time in it, and when it had ended."""
    at = step.at
    match step:
        case InferenceStep():
            spans = tuple(_of_inference(step, before, [one for one in lost if one.call_id is None]))
            note = f"asks for {counted(step.asks, 'call')}" if step.asks else ""
            note = note or ("answer" if step.stop is not None and step.text else "")
            done = replace(
                row, spans=spans, usage=step.usage if step.model else None, seconds=step.seconds, who=step.worker,
                note=note,
            )  # fmt: skip
            return done, at or before
        case WaitStep():
            start = at or before
            is_open = step.status is StepStatus.OPEN
            for_children = bool(step.calls) and all(call.child for call in step.calls)
            kind = BarKind.CHILD if for_children else BarKind.WAITING
            wait = TimelineSpan(kind=kind, start=start, end=None if is_open else step.until or start, text=row.name)
            seconds = None if is_open or step.until is None else (step.until - start).total_seconds()
            return replace(row, spans=(wait,), seconds=seconds), step.until or start
        case ToolRound() | ReplayStep():
            ends = [call.ended_at for call in step.calls if call.ended_at is not None]
            # Results are recorded with the next reply, so the calls say better when it was over.
            is_settled = bool(ends) and len(ends) == len(step.calls)
            end = max(before, *ends) if is_settled else at or before
            end = end if at is None else max(before, min(end, at))
            seconds = None if row.is_open else max(0.0, (end - before).total_seconds())
            spans = ()
            if isinstance(step, ReplayStep):
                spans = (
                    TimelineSpan(kind=BarKind.REPLAY, start=before, end=None if row.is_open else end, text=row.name),
                )
            return replace(row, seconds=seconds, spans=spans), end
        case CompactionStep():
            end = at or before
            work = TimelineSpan(
                kind=BarKind.COMPACTION, start=end - timedelta(seconds=step.seconds), end=end, text=row.name
            )
            return replace(row, spans=(work,), usage=step.usage, seconds=step.seconds, who=step.worker), end
        case _:
            return row, at or before


def _of_inference(step: InferenceStep, before: datetime, lost: Sequence[Takeover]) -> Iterator[TimelineSpan]:
    """Attempts end at the moment of the reply, one behind the other; what is before them was a wait for a worker."""
    for one in lost:
        worker = one.worker or "a worker"
        yield TimelineSpan(kind=BarKind.MODEL, start=before, end=one.lost_at, text=f"{worker} asked the model")
        yield TimelineSpan(kind=BarKind.LOST, start=one.lost_at, end=one.noticed_at, text=f"{worker} was lost")
        before = max(before, one.noticed_at)
    if step.at is None or step.status is not StepStatus.DONE:
        text = "the model is being asked" if step.at is None else "the model was asked"
        yield TimelineSpan(kind=BarKind.MODEL, start=before, end=step.at, text=text)
        return
    if step.is_repeated:  # no model was asked
        return
    start = max(before, step.at - timedelta(seconds=sum(attempt.seconds for attempt in step.attempts)))
    if (start - before).total_seconds() >= NOTICED:
        yield TimelineSpan(kind=BarKind.QUEUED, start=before, end=start, text="waited for a worker")
    for attempt in step.attempts:
        end = min(step.at, start + timedelta(seconds=attempt.seconds))
        fault = f": {attempt.fault.value}" if attempt.fault else ""
        yield TimelineSpan(
            kind=BarKind.RETRY if attempt.fault else BarKind.MODEL, start=start, end=end,
            text=f"{attempt.model}{fault}, {span(attempt.seconds)}",
        )  # fmt: skip
        start = end


def _call_rows(
    family: RunFamily, run: RunView, call: CallView, round_row: TimelineRow, order: str, lost: Sequence[Takeover]
) -> Iterator[TimelineRow]:
    since = _opened_at(round_row, run)
    own = [one for one in lost if one.call_id == call.id]
    child = family.children.get(call.child.run_id) if call.child and call.child.run_id else None
    is_open = call.status not in SETTLED_CALL
    yield TimelineRow(
        id=f"row-{call.id}", order=order, level=round_row.level + 1, run_id=run.run_id, name=call.tool,
        state=call.status.value, call=call, seconds=_worked(call), who=call.worker, is_open=is_open,
        note=call.code or "", usage=child.usage if child else None,
        spans=tuple(_of_call(call, since, own)),
    )  # fmt: skip
    if child is not None:
        yield from _rows_of(family, child, f"{order}.", round_row.level + 2)


def _opened_at(round_row: TimelineRow, run: RunView) -> datetime:
    """When the reply that asked for the calls was recorded."""
    step = round_row.step
    replies = [one.at for one in run.steps if step is not None and one.number == step.number - 1 and one.at is not None]
    return max(replies, default=run.started_at)


def _worked(call: CallView) -> float | None:
    """Without the wait for an answer."""
    question = call.question
    if call.seconds is None or question is None or question.answer is None or call.started_at is None:
        return call.seconds
    if call.started_at >= question.created_at:
        return call.seconds
    return max(0.0, call.seconds - (question.answer.created_at - question.created_at).total_seconds())


def _of_call(call: CallView, since: datetime, lost: Sequence[Takeover]) -> Iterator[TimelineSpan]:
    question, answer = call.question, call.question.answer if call.question else None
    kind = BarKind.CHILD if call.child else BarKind.TOOL
    begun = call.started_at
    if question is not None:
        yield from _work(call, since, begun, question.created_at, lost, kind)
        waits = BarKind.CHILD if question.is_child else BarKind.WAITING
        ends = answer.created_at if answer else call.ended_at
        yield TimelineSpan(
            kind=waits, start=question.created_at, end=ends,
            text=f"sub-agent {call.child.agent}" if call.child else f"waits: {question.why.value.replace('_', ' ')}",
        )  # fmt: skip
        if answer is None or question.is_child:
            return
        resumed = max(answer.created_at, begun) if begun and begun > question.created_at else answer.created_at
        if call.status in {CallStatus.RESUMING, CallStatus.RUNNING} or (call.ended_at and call.ended_at > resumed):
            yield TimelineSpan(
                kind=BarKind.REPLAY, start=resumed, end=call.ended_at, text=f"{call.tool} after the decision"
            )
        return
    is_over = call.status in SETTLED_CALL
    yield from _work(call, since, begun, call.ended_at if is_over else None, lost, kind)


def _work(
    call: CallView,
    since: datetime,
    begun: datetime | None,
    end: datetime | None,
    lost: Sequence[Takeover],
    kind: BarKind,
) -> Iterator[TimelineSpan]:
    """Its wait for a worker, and its work; broken where a worker was lost.

    The start of a call that may run again is recorded with its first heartbeat, or with its result, which is that of
    the last worker. Until then it is drawn as begun with its round.
    """
    again = begun if lost else None
    if lost or (end is None and begun is not None and not call.effect.starts_on_record):
        begun = since
    if begun is None or (end is not None and begun >= end):
        if end is None or (end - since).total_seconds() >= NOTICED:
            yield TimelineSpan(kind=BarKind.QUEUED, start=since, end=end, text="waits for a worker")
        return
    if (begun - since).total_seconds() >= NOTICED:
        yield TimelineSpan(kind=BarKind.QUEUED, start=since, end=begun, text="waited for a worker")
    for one in lost:
        worker = one.worker or "a worker"
        yield TimelineSpan(kind=kind, start=begun, end=one.lost_at, text=f"{call.tool} on {worker}")
        resumed = max(one.noticed_at, again) if one is lost[-1] and again is not None else one.noticed_at
        resumed = resumed if end is None else min(resumed, end)
        yield TimelineSpan(kind=BarKind.LOST, start=one.lost_at, end=resumed, text=f"{worker} was lost; sent again")
        begun = max(begun, resumed)
    where = f" on {call.worker}" if call.worker else ""
    took = f", {span((end - begun).total_seconds())}" if end else ""
    yield TimelineSpan(kind=kind, start=begun, end=end, text=f"{call.tool}{where}{took}")
