"""Turns, runs and threads in lines for people."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any, assert_never

from chordage.orchestrator.core.model import Usage
from chordage.orchestrator.views import (
    AttemptView,
    CallView,
    InferenceStep,
    Remark,
    RunView,
    Step,
    ThreadView,
    ToolRound,
    TurnView,
)
from chordage.workers.cli.output import ago
from chordage.workers.cli.output import span as long_span

WIDTH = 200  # characters of arguments and results in one line


def lines_of(found: Mapping[str, Any]) -> Iterator[str]:
    if "thread" in found:
        yield from _thread(found["thread"])
        for remark in found["history"]:
            yield ""
            yield from _remark(remark)
        return
    turn, run = found["turn"], found["run"]
    yield from _turn(turn)
    yield from _said(turn.sender.value, turn.text)
    if run is not None:
        yield from _run(run)
    if turn.answer:
        yield from _said(turn.agent, turn.answer)


def _pair(name: str, *values: object) -> str:
    return f"{name:<8}  {', '.join(str(value) for value in values if value not in {None, ''})}"


def _turn(turn: TurnView) -> Iterator[str]:
    yield _pair("turn", turn.id)
    yield _pair("status", turn.fate)
    yield _pair("thread", turn.thread_id)
    yield _pair("agent", turn.agent, turn.strategy, f"group {turn.group.value}")
    yield _pair("from", turn.sender.value, turn.origin.value, turn.channel)
    yield _pair("came", _moment(turn.queued_at))
    if turn.not_before is not None:
        yield _pair("not till", _moment(turn.not_before))
    if turn.deadline is not None:
        yield _pair("deadline", _moment(turn.deadline))
    if turn.started_at is not None:
        waited = f"after {_between(turn.queued_at, turn.started_at)}"
        yield _pair("started", waited, turn.done_at and f"took {_between(turn.started_at, turn.done_at)}")
    if turn.meta:
        yield _pair("meta", _short(turn.meta))


def _said(name: str, text: str) -> Iterator[str]:
    yield ""
    yield f"{name}:"
    yield from _indented(text)


def _run(run: RunView) -> Iterator[str]:
    yield ""
    yield f"run {run.id}: {run.status.value}, {_usage(run.usage)}"
    for step in run.steps:
        yield from _step(step)


def _step(step: Step) -> Iterator[str]:
    match step:
        case InferenceStep():
            yield from _inference(step)
        case ToolRound():
            yield f"  {step.number}  tools"
            for call in step.calls:
                yield from _call(call, "     ")
        case _:
            assert_never(step)


def _inference(step: InferenceStep) -> Iterator[str]:
    if step.model is None:
        worker = f", in hand of {step.worker}" if step.worker else ""
        yield f"  {step.number}  model  {step.status.value.replace('_', ' ')}{worker}"
        return
    asked = f", asks for {step.asks} {'call' if step.asks == 1 else 'calls'}" if step.asks else ""
    stop = f"stop {step.stop.value}" if step.stop else ""
    took = span(step.seconds or 0)
    yield f"  {step.number}  model  {step.model}, {took}, {_usage(step.usage)}, {stop}{asked}"
    yield from (_failed_attempt(attempt) for attempt in step.attempts if attempt.fault)
    if step.text and step.asks:
        yield from _indented(step.text, "     ")


def _failed_attempt(attempt: AttemptView) -> str:
    assert attempt.fault is not None
    return f"     tried {attempt.model}: {attempt.fault.value} after {span(attempt.seconds)}: {attempt.detail}"


def _call(call: CallView, indent: str) -> Iterator[str]:
    status = f"{call.status.value} ({call.code})" if call.code else call.status.value
    took = f", {span(call.seconds)}" if call.seconds is not None else ""
    worker = f", {call.worker}" if call.worker else ""
    again = f", woken {call.wake_ups} times" if call.wake_ups > 1 else ""
    yield f"{indent}{call.tool}  {status}{took}{worker}{again}"
    yield f"{indent}  asked  {_short(call.arguments)}"
    if call.content is not None:
        yield f"{indent}  said   {_short(call.content)}"
    elif call.progress:
        yield f"{indent}  doing  {_short(call.progress)}"


def _thread(thread: ThreadView) -> Iterator[str]:
    yield _pair("thread", thread.id)
    yield _pair("agent", thread.agent)
    yield _pair("turns", f"{thread.turns} came", f"{thread.queued} queued")
    if thread.open_run is not None and thread.open_run_status is not None:
        yield _pair("run", thread.open_run, thread.open_run_status.value)
    yield _pair("active", _moment(thread.last_activity))


def _remark(remark: Remark) -> Iterator[str]:
    yield f"{remark.name} ({_moment(remark.at)}):"
    yield from _indented(remark.text)
    for call in remark.calls:
        yield from _call(call, "  ")


def _indented(text: str, indent: str = "  ") -> Iterator[str]:
    return (f"{indent}{line}".rstrip() for line in text.splitlines())


def span(seconds: float) -> str:
    return f"{seconds * 1000:.0f} ms" if seconds < 1 else long_span(seconds)


def _usage(usage: Usage) -> str:
    cached = f" ({usage.cached_tokens} cached)" if usage.cached_tokens else ""
    return f"{usage.input_tokens}{cached} tokens in, {usage.output_tokens} out"


def _moment(moment: datetime) -> str:
    return f"{moment.astimezone():%Y-%m-%d %H:%M:%S} ({ago(moment)})"


def _between(start: datetime, end: datetime) -> str:
    return span((end - start).total_seconds())


def _short(value: object) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    line = " ".join(text.split())
    return line if len(line) <= WIDTH else f"{line[:WIDTH]}… ({len(line)} characters)"
