"""The path of a message in lines for people, as wide as the terminal."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from datetime import datetime

from chordage.config.inert import inert_line
from chordage.orchestrator.views.trace import EventKind, TraceEvent, TraceView
from chordage.workers.cli.output import wrapped
from chordage.workers.cli.showing_calls import moment, short, span

INDENT = 25  # of what is told, behind the clock and the kind
_SPANS = {
    EventKind.READY: "after {}",
    EventKind.STARTED: "after {}",
    EventKind.ENDED: "took {}",
    EventKind.WAITED: "for {}",
}


def lines_of(trace: TraceView) -> Iterator[str]:
    turn = trace.turn
    yield f"turn      {turn.turn_id}"
    yield f"thread    {turn.thread_id}"
    yield f"agent     {turn.agent}, {turn.strategy}, group {turn.group.value}"
    yield f"came      {moment(turn.queued_at)}"
    yield from _wrapped("message   ", short(turn.text), 10)
    yield ""
    for mark in trace.marks:
        yield from _mark(mark)
    yield ""
    yield from _wrapped("", _end(trace), 0)
    if trace.on_the_bus is not None:
        yield f"on the bus up to journal {trace.on_the_bus}"
    if trace.follows is not None:
        yield ""
        yield from lines_of(trace.follows)


def _end(trace: TraceView) -> str:
    if trace.disposition is None:
        return f"not done: {trace.turn.fate}"
    if trace.steered_into is not None:
        return f"disposition: steered, into run {trace.steered_into}"
    into = f", into turn {trace.merged_into}, whose path follows" if trace.merged_into else ""
    return f"disposition: {trace.disposition.value}{f' ({trace.why})' if trace.why else ''}{into}"


def _mark(mark: TraceEvent) -> Iterator[str]:
    kind = mark.kind.value.replace("_", " ")
    yield from _wrapped(f"{_clock(mark.at):<12} {kind:<11} ", "; ".join([mark.told, *_more(mark)]), INDENT)


def _more(mark: TraceEvent) -> Iterator[str]:
    if mark.seconds is not None:
        yield _SPANS.get(mark.kind, "{}").format(span(mark.seconds))
    if mark.worker is not None:
        yield f"worker {mark.worker}"
    if mark.attempts is not None and mark.attempts > 1:
        yield f"{mark.attempts} attempts"
    if mark.step is not None:
        yield f"step {mark.step}"
    if mark.journal:
        yield f"journal {', '.join(str(position) for position in mark.journal)}"


def _clock(at: datetime | None) -> str:
    return "-" if at is None else f"{at.astimezone():%H:%M:%S}.{at.microsecond // 1000:03d}"


def _wrapped(head: str, text: str, indent: int) -> Iterator[str]:
    """On a terminal in lines of its width; elsewhere in one, for grep."""
    line = inert_line(f"{head}{text}")
    yield from wrapped(line, hang=indent) if sys.stdout.isatty() else [line]
