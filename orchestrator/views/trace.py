"""The path of one message: from its arrival to its disposition, and to what has left for it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from chordage.orchestrator.core.reasons import Reason
from chordage.orchestrator.core.records import Checkpoint, Entry
from chordage.orchestrator.core.status import Disposition, TurnStatus
from chordage.orchestrator.store import trace_reads
from chordage.orchestrator.store.database import Store, Tx
from chordage.orchestrator.store.trace_reads import WINDOW, TraceRow
from chordage.orchestrator.views import questions
from chordage.orchestrator.views.finding import turn_meant
from chordage.orchestrator.views.marks import Mark, MarkKind, in_order, of_run
from chordage.orchestrator.views.questions import QuestionView
from chordage.orchestrator.views.runs import RunView, with_checkpoints
from chordage.orchestrator.views.steps import ToolRound
from chordage.orchestrator.views.turns import TurnView
from chordage.orchestrator.views.turns import turn as full_turn

# Of a row in the outbox: what is told in words, or is nobody's business.
_TOLD_OF_OUTBOX = frozenset(
    {"id", "turn_id", "thread_id", "target", "body", "created_at", "sent_at", "claim_token", "receiver", "forgiven"}
)
_NOTED = {
    "TurnQueued": MarkKind.QUEUED,
    "TurnDropped": MarkKind.ENDED,
    "CallSuspended": MarkKind.ASKED,
    "CallDecided": MarkKind.DECIDED,
}
LONGEST_CHAIN = 20  # of turns that were merged into one another


@dataclass(frozen=True, kw_only=True, slots=True)
class TraceView:
    turn: TurnView
    arrival: int
    source: str
    dedupe_key: str | None
    disposition: Disposition | None  # the one it ended with
    why: str | None  # in words
    steered_into: str | None  # a run
    merged_into: str | None  # a turn
    marks: tuple[Mark, ...]
    left: tuple[Mapping[str, Any], ...]  # rows of what was sent for it, or is to be
    on_the_bus: int | None = None  # up to which position of the journal
    follows: TraceView | None = None  # the path of the turn that it was merged into


def trace(store: Store, given: str, *, agent: str | None = None, source: str | None = None) -> TraceView:
    return _followed(store, turn_meant(store, given, agent=agent, source=source), LONGEST_CHAIN)


def _followed(store: Store, turn_id: str, hops: int) -> TraceView:
    seen = _one(store, turn_id)
    if seen.merged_into is None or not hops:
        return seen
    return replace(seen, follows=_followed(store, seen.merged_into, hops - 1))


def _one(store: Store, turn_id: str) -> TraceView:
    turn = full_turn(store, turn_id)
    with store.read() as tx:
        row = trace_reads.turn_row(tx, turn_id) or {}
        ahead = trace_reads.ahead(tx, row)
        left = trace_reads.deliveries_of(tx, turn_id)
    steered = turn.run_id if turn.disposition is Disposition.STEERED else None
    merged = row.get("into_turn")
    why = _why(turn, row)
    marks = [*_of_line(turn, row, ahead), *_of_its_run(store, turn), *_of_end(turn, row, why, merged), *_of_left(left)]
    with store.read() as tx:
        notes = trace_reads.notes(tx, {mark.id for mark in marks if mark.id})
        on_the_bus = trace_reads.on_the_bus(tx)
    return TraceView(
        turn=turn, arrival=row["arrival"], source=row["source"], dedupe_key=row["dedupe_key"],
        disposition=turn.disposition, why=why, steered_into=steered, merged_into=merged,
        marks=tuple(in_order(_with_notes(marks, notes))), left=tuple(_shown(one) for one in left),
        on_the_bus=on_the_bus,
    )  # fmt: skip


def _shown(row: TraceRow) -> TraceRow:
    """Without what a target holds besides its address, and without the token of whoever has it in hand."""
    shown = {name: value for name, value in row.items() if name != "claim_token"}
    return shown | ({"target": _address(row["target"])} if row.get("target") else {})


def _with_notes(marks: Sequence[Mark], notes: Sequence[tuple[str, str, int]]) -> list[Mark]:
    """With the positions of what the journal notes beside checkpoints, such as that somebody decided."""
    noted = {(of, _NOTED[kind]): position for of, kind, position in notes if kind in _NOTED}
    found = ((mark, noted.get((mark.id or "", mark.kind))) for mark in marks)
    return [mark if position is None else replace(mark, journal=(position,)) for mark, position in found]


def _why(turn: TurnView, row: TraceRow) -> str | None:
    """Of a turn that had a run, the run knows; of others their own row does. Natural ends need no words."""
    if turn.disposition is Disposition.STEERED:
        return f"run {turn.run_id} took it in"
    words = [turn.reason.value] if turn.reason not in {None, Reason.NATURAL_END} and turn.reason else []
    words += [word for word in (turn.code, turn.detail) if word]
    return ": ".join(words) or row["detail"]


def _of_line(turn: TurnView, row: TraceRow, ahead: Sequence[TraceRow]) -> Iterator[Mark]:
    key = f", dedupe key {row['dedupe_key']}" if row["dedupe_key"] else ""
    where = f" on {turn.channel}" if turn.channel else ""
    asked = f", asked by run {turn.parent_run} ({turn.path})" if turn.parent_run else ""
    came = f"{turn.origin.value}{where} from {turn.sender.value} by {row['source']}{key}{asked}"
    yield Mark(at=turn.queued_at, kind=MarkKind.RECEIVED, told=came, id=turn.turn_id)
    yield Mark(at=turn.queued_at, kind=MarkKind.QUEUED, told=_place(turn, row, ahead), id=turn.turn_id)
    is_steered = turn.disposition is Disposition.STEERED
    ready = None if is_steered else _ready_at(turn, row, ahead)
    if ready is not None:
        waited = (ready - turn.queued_at).total_seconds()
        told = "the next of its thread, and due" if turn.status is not TurnStatus.QUEUED else _waits_for(turn)
        yield Mark(at=ready, kind=MarkKind.READY, told=told, seconds=waited or None)


def _place(turn: TurnView, row: TraceRow, ahead: Sequence[TraceRow]) -> str:
    place = f"arrival {row['arrival']} on thread {turn.thread_id}, group {turn.group.value}"
    if not ahead:
        return f"{place}, nobody ahead"
    more = "at least " if len(ahead) == WINDOW else ""
    nearest = ahead[-1]
    at = f" (run {nearest['run_id']})" if nearest["run_id"] else ""
    return f"{place}, behind {more}{len(ahead)}: nearest turn {nearest['id']}{at}"


def _waits_for(turn: TurnView) -> str:
    ways = f"the budget of group {turn.group.value}, a worker, its time, or its agent to be repaired"
    return f"it waits for {ways} (`chordage check` names what is broken)"


def _ready_at(turn: TurnView, row: TraceRow, ahead: Sequence[TraceRow]) -> datetime | None:
    """When nobody was ahead any more and its time had come, as far as rows tell: nothing is written at that moment."""
    if turn.started_at is None and not row["ready"]:
        return None
    until = turn.started_at
    moments = [turn.queued_at, *(one["done_at"] for one in ahead if one["done_at"] is not None)]
    if turn.not_before is not None:
        moments.append(turn.not_before)
    return max((at for at in moments if until is None or at <= until), default=turn.queued_at)


def _of_its_run(store: Store, turn: TurnView) -> Iterator[Mark]:
    if turn.run_id is None:
        return
    run, entries = with_checkpoints(store, turn.run_id)
    first = 0
    if turn.disposition is Disposition.STEERED:
        first = next((e.step for e in entries if _is_message_of(e, turn.turn_id) and e.step), 0)
        told = f"into run {run.run_id} at its step {first}; it was started by turn {run.turn_id}"
        journal = _positions(entries, first, Checkpoint.USER_MESSAGE)
        yield Mark(at=turn.started_at, kind=MarkKind.STEERED, told=told, step=first, journal=journal, id=run.run_id)
        first += 1
    else:
        told = f"run {run.run_id}, strategy {run.strategy}"
        waited = (run.started_at - turn.queued_at).total_seconds()
        journal = _positions(entries, 0, Checkpoint.USER_MESSAGE)
        yield Mark(at=run.started_at, kind=MarkKind.STARTED, told=told, seconds=waited, journal=journal, id=run.run_id)
    yield from of_run(run, entries, _questions(store, run), first_step=first)
    yield from _end_of_run(run, entries)


def _is_message_of(entry: Entry, turn_id: str) -> bool:
    return entry.kind is Checkpoint.USER_MESSAGE and entry.body.get("turn") == turn_id


def _positions(entries: Sequence[Entry], step: int, kind: Checkpoint) -> tuple[int, ...]:
    return tuple(entry.id for entry in entries if entry.step == step and entry.kind is kind)


def _end_of_run(run: RunView, entries: Sequence[Entry]) -> Iterator[Mark]:
    for entry in entries:
        if entry.kind is Checkpoint.RUN_FINISHED:
            words = [entry.body.get(name) for name in ("reason", "code", "detail")]
            told = f"{entry.kind.value}: {': '.join(str(word) for word in words if word)}"
            yield Mark(
                at=entry.at, kind=MarkKind.CHECKPOINT, told=told, step=entry.step, journal=(entry.id,), id=run.run_id,
            )  # fmt: skip


def _questions(store: Store, run: RunView) -> dict[str, list[QuestionView]]:
    asked = [call.id for step in run.steps if isinstance(step, ToolRound) for call in step.calls if call.question]
    if not asked:
        return {}
    with store.read() as tx:
        return _by_call(tx, asked)


def _by_call(tx: Tx, call_ids: Sequence[str]) -> dict[str, list[QuestionView]]:
    ids = trace_reads.suspensions_of(tx, call_ids)
    views, calls = questions.by_id(tx, ids), trace_reads.call_of(tx, ids)
    found: dict[str, list[QuestionView]] = {}
    for view in sorted(views.values(), key=lambda one: one.created_at):
        found.setdefault(calls[view.id], []).append(view)
    return found


def _of_end(turn: TurnView, row: TraceRow, why: str | None, merged: str | None) -> Iterator[Mark]:
    if turn.disposition is None:
        return
    if merged is not None:
        yield Mark(at=turn.done_at, kind=MarkKind.MERGED, told=f"into turn {merged}", id=merged)
    told = turn.disposition.value + (f" ({why})" if why else "")
    since = turn.started_at or row["queued_at"]
    seconds = (turn.done_at - since).total_seconds() if turn.done_at else None
    yield Mark(at=turn.done_at, kind=MarkKind.ENDED, told=told, seconds=seconds or None, id=turn.turn_id)


def _of_left(rows: Sequence[TraceRow]) -> Iterator[Mark]:
    for row in rows:
        more = "".join(
            f", {name.replace('_', ' ')} {value}"
            for name, value in row.items() if name not in _TOLD_OF_OUTBOX and value is not None and value != 0
        )  # fmt: skip
        target = f" for {_address(row['target'])}" if row.get("target") else ""
        told = f"a reply{target}, row {row.get('id')}{more}"
        yield Mark(at=row.get("created_at"), kind=MarkKind.LEFT, told=told)
        sent = row.get("sent_at") or row.get("delivered_at")
        yield Mark(at=sent, kind=MarkKind.SENT, told="delivered" if sent else "not delivered yet")


def _address(target: Mapping[str, Any]) -> str:
    """No more than where it goes to: a target may hold secrets."""
    words = [str(target[name]) for name in ("channel", "address", "url", "thread_id") if target.get(name)]
    return " ".join(words) or ", ".join(sorted(target))
