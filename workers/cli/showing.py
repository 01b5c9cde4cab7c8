"""Turns, runs and threads in lines for people."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any

from chordage.orchestrator.core.deliveries import DeliveryStatus
from chordage.orchestrator.views import TurnView
from chordage.orchestrator.views.deliveries import DeliveryView
from chordage.orchestrator.views.threads import Remark, ThreadView
from chordage.workers.cli.showing_calls import call_lines, indented, moment, short, span
from chordage.workers.cli.showing_driven import driven_lines
from chordage.workers.cli.showing_steps import run_lines


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
        yield from run_lines(run)
    if (driven := found.get("driven")) is not None:
        yield from driven_lines(driven)
    if (delivery := found.get("delivery")) is not None:
        yield _delivery(delivery)
    if turn.answer:
        yield from _said(turn.agent, turn.answer)


def _delivery(one: DeliveryView) -> str:
    """The last step of a turn, which no run knows of."""
    tried = f"{one.attempts} attempts" if one.attempts != 1 else "1 attempt"
    match one.status:
        case DeliveryStatus.SENT:
            became = f"sent after {tried}" + (f", {moment(one.sent_at)}" if one.sent_at else "")
        case DeliveryStatus.DEAD:
            became = f"given up after {tried}: {one.error}; `chordage deliveries retry {one.id}` sends it again"
        case DeliveryStatus.PENDING:
            became = f"pending, {tried}" + (f", the last: {one.error}" if one.error else "")
    return f"  -  delivery {one.id} to {one.to}: {became}"


def _pair(name: str, *values: object) -> str:
    return f"{name:<8}  {', '.join(str(value) for value in values if value not in {None, ''})}"


def _turn(turn: TurnView) -> Iterator[str]:
    yield _pair("turn", turn.turn_id)
    yield _pair("status", turn.fate)
    yield _pair("thread", turn.thread_id)
    yield _pair("agent", turn.agent, turn.strategy, f"group {turn.group.value}")
    if turn.parent_run is not None:
        yield _pair("asked by", f"run {turn.parent_run}", turn.path)
    yield _pair("from", turn.sender.value, turn.origin.value, turn.channel)
    yield _pair("came", moment(turn.queued_at))
    if turn.not_before is not None:
        yield _pair("not till", moment(turn.not_before))
    if turn.deadline is not None:
        yield _pair("deadline", moment(turn.deadline))
    if turn.started_at is not None:
        waited = f"after {_between(turn.queued_at, turn.started_at)}"
        yield _pair("started", waited, turn.done_at and f"took {_between(turn.started_at, turn.done_at)}")
    if turn.meta:
        yield _pair("meta", short(turn.meta))


def _said(name: str, text: str) -> Iterator[str]:
    yield ""
    yield f"{name}:"
    yield from indented(text)


def _thread(thread: ThreadView) -> Iterator[str]:
    yield _pair("thread", thread.thread_id)
    yield _pair("agent", thread.agent)
    yield _pair("turns", f"{thread.turns} came", f"{thread.queued} queued")
    if thread.open_run is not None and thread.open_run_status is not None:
        yield _pair("run", thread.open_run, thread.open_run_status.value)
    yield _pair("active", moment(thread.last_activity))


def _remark(remark: Remark) -> Iterator[str]:
    yield f"{remark.name} ({moment(remark.at)}):"
    yield from indented(remark.text)
    for call in remark.calls:
        yield from call_lines(call, "  ")


def _between(start: datetime, end: datetime) -> str:
    return span((end - start).total_seconds())
