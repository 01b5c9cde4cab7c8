"""The steps of a run in lines for people."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Any, assert_never

from chordage.orchestrator.core.compaction import Cause
from chordage.orchestrator.core.model import Usage
from chordage.orchestrator.views.calls import CallView
from chordage.orchestrator.views.runs import (
    AttemptView,
    CompactionStep,
    ConsumerSteerStep,
    InferenceStep,
    Interruption,
    PlanView,
    PushedStep,
    ReplayStep,
    RunView,
    SteeredStep,
    Step,
    StepStatus,
    ToolRound,
    WaitStep,
)
from chordage.workers.cli.showing_calls import call_lines, clock, indented, moment, span, state
from chordage.workers.cli.showing_driven import pushed_lines


def run_lines(run: RunView) -> Iterator[str]:
    yield ""
    why = f" ({run.reason.value})" if run.reason else ""
    took = f", took {span((run.ended_at - run.started_at).total_seconds())}" if run.ended_at else ""
    yield f"run {run.run_id}: {run.status.value}{why}, {_usage(run.usage)}, began {clock(run.started_at)}{took}"
    for step in run.steps:
        yield from _step(step)


def _step(step: Step) -> Iterator[str]:
    match step:
        case InferenceStep():
            yield from _inference(step)
        case ToolRound():
            yield f"  {step.number}  tools{_recorded(step.status, step.at)}"
            for call in step.calls:
                yield from call_lines(call, "     ")
        case ReplayStep():
            yield f"  {step.number}  replay{_recorded(step.status, step.at)}"
            yield from (f"     {state(call)}" for call in step.calls)
        case WaitStep():
            yield f"  {step.number}  wait   {_wait(step)}"
        case SteeredStep():
            yield f"  {step.number}  steered  by {step.sender}, turn {step.turn_id}{_at(step.at)}"
            yield from indented(step.text, "     ")
        case PushedStep() | ConsumerSteerStep():
            yield from pushed_lines(step)
        case CompactionStep():
            yield from _compaction(step)
        case Interruption():
            why = ": ".join(word for word in (step.reason.value, step.code, step.detail) if word)
            yield f"  {step.number}  interrupted  {why}{_at(step.at)}"
        case _:
            assert_never(step)


def _inference(step: InferenceStep) -> Iterator[str]:
    if step.model is None:
        worker = f", in hand of {step.worker}" if step.worker else ""
        yield f"  {step.number}  model  {step.status.value.replace('_', ' ')}{worker}"
        yield from (_failed_attempt(attempt) for attempt in step.attempts if attempt.fault)
        return
    asked = f", asks for {_counted(step.asks, 'call')}" if step.asks else ""
    stop = f"stop {step.stop.value}{asked}" if step.stop else ""
    what, came = ("model", stop) if step.plan is None else ("plan ", _planned(step, step.plan))
    took = span(step.seconds or 0)
    held = "" if step.is_history else ", held, not appended"
    yield f"  {step.number}  {what}  {step.model}, {took}, {_usage(step.usage)}, {came}{held}{_at(step.at)}"
    yield from (_failed_attempt(attempt) for attempt in step.attempts if attempt.fault)
    if step.text and (step.asks or step.refused or held) and step.plan is None:
        yield from indented(step.text, "     ")
    if step.plan is not None:
        yield from (f"     {_noted(note)}" for note in step.plan.decision["notes"])
    if step.refused:
        yield from indented(f"refused as output: {step.refused}", "     ")


def _planned(step: InferenceStep, plan: PlanView) -> str:
    refused = f", {plan.refused} of them not offered" if plan.refused else ""
    return f"ends: {plan.ends}" if plan.ends else f"{_counted(step.asks, 'command')}{refused}"


def _noted(note: dict[str, Any]) -> str:
    """What was repaired, dropped or passed over when the plan was read."""
    place = "plan" if note["place"] is None else f"command {note['place'] + 1}"
    return f"{place}: {note['kind'].replace('_', ' ')}{': ' if note['detail'] else ''}{note['detail']}"


def _compaction(step: CompactionStep) -> Iterator[str]:
    became = f"{_counted(step.entries, 'entry', 'entries')} summed up" if step.why_not is None else "no summary"
    asked = ", on request" if step.cause is Cause.REQUEST else ""
    took = span(step.seconds)
    yield f"  {step.number}  compact  {step.model}, {took}, {_usage(step.usage)}, {became}{asked}{_at(step.at)}"
    yield from (_failed_attempt(attempt) for attempt in step.attempts if attempt.fault)
    yield from indented(f"the history stays whole: {step.why_not}" if step.why_not else step.summary or "", "     ")


def _failed_attempt(attempt: AttemptView) -> str:
    assert attempt.fault is not None
    return f"     tried {attempt.model}: {attempt.fault.value} after {span(attempt.seconds)}: {attempt.detail}"


def _wait(step: WaitStep) -> str:
    told = f"for {_named(step.calls)}"
    if step.at is None:
        return told
    if step.status is StepStatus.OPEN:
        return f"{told}, since {moment(step.at)}"
    took = f", {span((step.until - step.at).total_seconds())}" if step.until else ""
    return f"{told}{took}{_at(step.at)}"


def _named(calls: Sequence[CallView]) -> str:
    return f"{_counted(len(calls), 'call')}: {', '.join(call.tool for call in calls)}"


def _counted(number: int, word: str, words: str | None = None) -> str:
    return f"{number} {word}" if number == 1 else f"{number} {words or word + 's'}"


def _recorded(status: StepStatus, at: datetime | None) -> str:
    return "  open" if status is StepStatus.OPEN else f"  {clock(at)}" if at else ""


def _at(at: datetime | None) -> str:
    return f", {clock(at)}" if at else ""


def _usage(usage: Usage) -> str:
    of_cache = [
        f"{count} {what}"
        for count, what in ((usage.cached_tokens, "cached"), (usage.cache_write_tokens, "written to the cache"))
        if count
    ]
    told = f" ({', '.join(of_cache)})" if of_cache else ""
    return f"{usage.input_tokens}{told} tokens in, {usage.output_tokens} out"
