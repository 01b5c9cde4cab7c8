"""The path of one message: arrival, queue, every step of its run, its end, and what was sent for it.

The events of a run are made of its steps (`runs`). The field names of TraceView and TraceEvent are the keys of
`chordage trace --json`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, assert_never

from chordage.orchestrator.core.approvals import Action
from chordage.orchestrator.core.reasons import Reason
from chordage.orchestrator.core.records import Checkpoint, Entry
from chordage.orchestrator.core.status import Disposition, TurnStatus
from chordage.orchestrator.core.text import counted
from chordage.orchestrator.store import trace_reads
from chordage.orchestrator.store.database import Store
from chordage.orchestrator.store.trace_reads import WINDOW, TraceRow
from chordage.orchestrator.views import approvals, runs
from chordage.orchestrator.views.approvals import QuestionView
from chordage.orchestrator.views.calls import CallView
from chordage.orchestrator.views.ids import find_turn
from chordage.orchestrator.views.turns import TurnView
from chordage.orchestrator.views.turns import turn as load_turn

MAX_CHAIN = 20  # turns that were merged into one another


class EventKind(StrEnum):
    """Events of the same moment are listed in this order, the order of their causes."""

    RECEIVED = "received"
    QUEUED = "queued"
    READY = "ready"
    STARTED = "started"
    MERGED = "merged"
    STEERED = "steered"  # this message, into a run
    TOOK_IN = "took_in"  # another message, into the run of this one
    PUSHED = "pushed"  # messages from the consumer of a stepped run
    SAID = "said"  # text from the consumer of a stepped run
    MODEL = "model"
    PLAN = "plan"
    CALL = "call"
    SUB_AGENT = "sub_agent"
    ROUND = "round"  # its results were recorded
    ASKED = "asked"  # a decision is needed
    DECIDED = "decided"
    WAITED = "waited"
    REPLAYED = "replayed"
    COMPACTED = "compacted"
    INTERRUPTED = "interrupted"
    CHECKPOINT = "checkpoint"  # any other row of the journal
    ENDED = "ended"  # with its disposition
    LEFT = "left"  # a reply is in the outbox
    SENT = "sent"


@dataclass(frozen=True, kw_only=True, slots=True)
class TraceEvent:
    at: datetime | None  # None: it has not happened yet
    kind: EventKind
    text: str  # what happened
    step: int | None = None  # of the run
    worker: str | None = None
    attempts: int | None = None  # of a model call: models that were asked; of a tool call: messages that were sent
    seconds: float | None = None
    journal: tuple[int, ...] = ()  # positions of the journal rows committed with it
    id: str | None = None  # of its subject: a turn, a run, a call, a suspension or a decision


@dataclass(frozen=True, kw_only=True, slots=True)
class TraceView:
    turn: TurnView
    arrival: int
    source: str
    dedupe_key: str | None
    disposition: Disposition | None  # of the end
    why: str | None  # in words
    steered_into: str | None  # a run
    merged_into: str | None  # a turn
    events: tuple[TraceEvent, ...]
    left: tuple[Mapping[str, Any], ...]  # rows of what was sent for it, or will be
    on_the_bus: int | None = None  # the last position of the journal that is on the bus
    follows: TraceView | None = None  # the path of the turn it was merged into


_SORT_KEY_OF_KIND = {kind: number for number, kind in enumerate(EventKind)}
_AFTER_THE_RUN = frozenset({EventKind.MERGED, EventKind.ENDED, EventKind.LEFT, EventKind.SENT})
_NEVER = datetime.min.replace(tzinfo=UTC)
_CHECKPOINTS_OF_STEP: Mapping[runs.StepKind, tuple[Checkpoint, ...]] = {
    runs.StepKind.INFERENCE: (
        Checkpoint.ASSISTANT_TURN, Checkpoint.PLAN, Checkpoint.REPLY_HELD, Checkpoint.OUTPUT_REFUSED,
    ),
    runs.StepKind.TOOL_ROUND: (Checkpoint.TOOL_RESULTS,),
    runs.StepKind.REPLAY: (Checkpoint.TOOL_RESULTS,),
    runs.StepKind.WAITING: (Checkpoint.RUN_WAITING,),
    runs.StepKind.STEERED: (Checkpoint.USER_MESSAGE,),
    runs.StepKind.PUSHED: (Checkpoint.CLIENT_MESSAGES,),
    runs.StepKind.STEERED_BY_CONSUMER: (Checkpoint.CLIENT_STEERS,),
    runs.StepKind.COMPACTION: (Checkpoint.COMPACTED, Checkpoint.COMPACTION_FAILED),
    runs.StepKind.INTERRUPTED: (Checkpoint.RUN_INTERRUPTED, Checkpoint.ROLLED_BACK),
}  # fmt: skip
# Facts in the journal that belong to an event with the same id.
_EVENT_OF_FACT = {
    "TurnQueued": EventKind.QUEUED,
    "TurnDropped": EventKind.ENDED,
    "CallSuspended": EventKind.ASKED,
    "CallDecided": EventKind.DECIDED,
}
# Columns of a row in the outbox that the event names in words, or leaves out.
_OUTBOX_COLUMNS_NAMED = frozenset(
    {"id", "turn_id", "thread_id", "target", "body", "created_at", "sent_at", "claim_token", "receiver", "forgiven"}
)


def trace(store: Store, some_id: str, *, agent: str | None = None, source: str | None = None) -> TraceView:
    return _with_merges(store, find_turn(store, some_id, agent=agent, source=source), MAX_CHAIN)


def _with_merges(store: Store, turn_id: str, hops: int) -> TraceView:
    view = _trace_of_turn(store, turn_id)
    if view.merged_into is None or not hops:
        return view
    return replace(view, follows=_with_merges(store, view.merged_into, hops - 1))


def _trace_of_turn(store: Store, turn_id: str) -> TraceView:
    turn = load_turn(store, turn_id)
    with store.read() as tx:
        row = trace_reads.turn_row(tx, turn_id) or {}
        ahead = trace_reads.ahead(tx, row)
        outbox = trace_reads.deliveries_of(tx, turn_id)
    merged_into = row.get("into_turn")
    why = _why(turn, row)
    events = [*_arrival(turn, row, ahead), *_run(store, turn), *_end(turn, row, why, merged_into), *_outbox(outbox)]
    with store.read() as tx:
        facts = trace_reads.notes(tx, {event.id for event in events if event.id})
        on_the_bus = trace_reads.on_the_bus(tx)
    positions = {(of, _EVENT_OF_FACT[kind]): position for of, kind, position in facts if kind in _EVENT_OF_FACT}
    with_facts = (
        replace(event, journal=(position,)) if (position := positions.get((event.id or "", event.kind))) else event
        for event in events
    )
    return TraceView(
        turn=turn, arrival=row["arrival"], source=row["source"], dedupe_key=row["dedupe_key"],
        disposition=turn.disposition, why=why,
        steered_into=turn.run_id if turn.disposition is Disposition.STEERED else None, merged_into=merged_into,
        events=tuple(_in_order(with_facts)), left=tuple(_without_secrets(row) for row in outbox), on_the_bus=on_the_bus,
    )  # fmt: skip


def _in_order(events: Iterable[TraceEvent]) -> list[TraceEvent]:
    """By time, and what has not happened yet last. Of the same moment: the queue, the run by steps, the end."""

    def sort_key(event: TraceEvent) -> tuple[object, ...]:
        part = 2 if event.kind in _AFTER_THE_RUN else 0 if event.step is None else 1
        return event.at is None, event.at or _NEVER, part, event.step or 0, _SORT_KEY_OF_KIND[event.kind]

    return sorted(events, key=sort_key)


def _why(turn: TurnView, row: TraceRow) -> str | None:
    """The reason of the end: that of its run, or of its own row if it had none. A natural end needs no words."""
    if turn.disposition is Disposition.STEERED:
        return f"run {turn.run_id} took it in"
    words = [turn.reason.value] if turn.reason not in {None, Reason.NATURAL_END} and turn.reason else []
    words += [word for word in (turn.code, turn.detail) if word]
    return ": ".join(words) or row["detail"]


# Arrival and queue


def _arrival(turn: TurnView, row: TraceRow, ahead: Sequence[TraceRow]) -> Iterator[TraceEvent]:
    key = f", dedupe key {row['dedupe_key']}" if row["dedupe_key"] else ""
    where = f" on {turn.channel}" if turn.channel else ""
    parent = f", asked by run {turn.parent_run} ({turn.path})" if turn.parent_run else ""
    received = f"{turn.origin.value}{where} from {turn.sender.value} by {row['source']}{key}{parent}"
    yield TraceEvent(at=turn.queued_at, kind=EventKind.RECEIVED, text=received, id=turn.turn_id)
    place = f"arrival {row['arrival']} on thread {turn.thread_id}, group {turn.group.value}"
    yield TraceEvent(at=turn.queued_at, kind=EventKind.QUEUED, text=f"{place}, {_behind(ahead)}", id=turn.turn_id)
    ready_at = None if turn.disposition is Disposition.STEERED else _ready_at(turn, row, ahead)
    if ready_at is not None:
        seconds = (ready_at - turn.queued_at).total_seconds()
        text = "the next of its thread, and due" if turn.status is not TurnStatus.QUEUED else _waits_for(turn)
        yield TraceEvent(at=ready_at, kind=EventKind.READY, text=text, seconds=seconds or None)


def _behind(ahead: Sequence[TraceRow]) -> str:
    if not ahead:
        return "no turn ahead"
    more = "at least " if len(ahead) == WINDOW else ""
    nearest = ahead[-1]
    at = f" (run {nearest['run_id']})" if nearest["run_id"] else ""
    return f"behind {more}{len(ahead)}: nearest turn {nearest['id']}{at}"


def _waits_for(turn: TurnView) -> str:
    causes = f"the budget of group {turn.group.value}, a worker, its time, or its agent to be repaired"
    return f"it waits for {causes} (`chordage check` names what is broken)"


def _ready_at(turn: TurnView, row: TraceRow, ahead: Sequence[TraceRow]) -> datetime | None:
    """When it was the first of its thread and due. No row is written at that moment: it is derived from others."""
    if turn.started_at is None and not row["ready"]:
        return None
    until = turn.started_at
    moments = [turn.queued_at, *(other["done_at"] for other in ahead if other["done_at"] is not None)]
    if turn.not_before is not None:
        moments.append(turn.not_before)
    return max((at for at in moments if until is None or at <= until), default=turn.queued_at)


# The run


def _run(store: Store, turn: TurnView) -> Iterator[TraceEvent]:
    if turn.run_id is None:
        return
    run, entries = runs.run_with_journal(store, turn.run_id)
    first_step = 0
    if turn.disposition is Disposition.STEERED:
        steered_at = next((e.step for e in entries if _is_message_of(e, turn.turn_id) and e.step), 0)
        yield TraceEvent(
            at=turn.started_at, kind=EventKind.STEERED, step=steered_at, id=run.run_id,
            text=f"into run {run.run_id} at its step {steered_at}; it was started by turn {run.turn_id}",
            journal=_positions(entries, steered_at, Checkpoint.USER_MESSAGE),
        )  # fmt: skip
        first_step = steered_at + 1
    else:
        yield TraceEvent(
            at=run.started_at, kind=EventKind.STARTED, text=f"run {run.run_id}, strategy {run.strategy}", id=run.run_id,
            seconds=(run.started_at - turn.queued_at).total_seconds(),
            journal=_positions(entries, 0, Checkpoint.USER_MESSAGE),
        )  # fmt: skip
    yield from _steps(run, entries, _questions(store, run), first_step)
    for entry in entries:
        if entry.kind is Checkpoint.RUN_FINISHED:
            words = [entry.body.get(name) for name in ("reason", "code", "detail")]
            text = f"{entry.kind.value}: {': '.join(str(word) for word in words if word)}"
            yield TraceEvent(
                at=entry.at, kind=EventKind.CHECKPOINT, text=text, step=entry.step, journal=(entry.id,), id=run.run_id
            )


def _is_message_of(entry: Entry, turn_id: str) -> bool:
    return entry.kind is Checkpoint.USER_MESSAGE and entry.body.get("turn") == turn_id


def _positions(entries: Sequence[Entry], step: int, *kinds: Checkpoint) -> tuple[int, ...]:
    return tuple(entry.id for entry in entries if entry.step == step and entry.kind in kinds)


def _questions(store: Store, run: runs.RunView) -> dict[str, list[QuestionView]]:
    """All questions about the calls of the run, by call: a call may be asked about several times."""
    call_ids = [
        call.id for step in run.steps if isinstance(step, runs.ToolRound) for call in step.calls if call.question
    ]
    if not call_ids:
        return {}
    with store.read() as tx:
        ids = trace_reads.suspensions_of(tx, call_ids)
        views, call_of = approvals.by_id(tx, ids), trace_reads.call_of(tx, ids)
    by_call: dict[str, list[QuestionView]] = {}
    for question in sorted(views.values(), key=lambda view: view.created_at):
        by_call.setdefault(call_of[question.id], []).append(question)
    return by_call


def _steps(
    run: runs.RunView, entries: Sequence[Entry], questions: Mapping[str, Sequence[QuestionView]], first_step: int
) -> list[TraceEvent]:
    """The steps from `first_step` on, in order, and the journal rows that belong to no step."""
    events: list[TraceEvent] = []
    for step in run.steps:
        if step.number >= first_step:
            events += _of_step(step, _positions(entries, step.number, *_CHECKPOINTS_OF_STEP[step.kind]), questions)
    covered = {position for event in events for position in event.journal}
    at_ends = (Checkpoint.USER_MESSAGE, Checkpoint.RUN_FINISHED)  # part of the start and the end of the turn
    events += (
        TraceEvent(at=entry.at, kind=EventKind.CHECKPOINT, text=entry.kind.value, step=entry.step, journal=(entry.id,))
        for entry in entries
        if entry.id not in covered and entry.step >= first_step and entry.kind not in at_ends
    )
    return _in_order(events)


def _of_step(
    step: runs.Step, journal: tuple[int, ...], questions: Mapping[str, Sequence[QuestionView]]
) -> Iterator[TraceEvent]:
    def event(kind: EventKind, text: str, **more: Any) -> TraceEvent:
        return TraceEvent(at=step.at, kind=kind, text=text, step=step.number, journal=journal, **more)

    match step:
        case runs.InferenceStep():
            yield _inference(step, journal)
        case runs.ToolRound():
            for call in step.calls:
                yield from _of_call(call, step.number, questions.get(call.id, ()))
            if step.at is not None:
                yield event(EventKind.ROUND, f"results of {counted(len(step.calls), 'call')} recorded")
        case runs.ReplayStep():
            yield event(EventKind.REPLAYED, f"{_named(step.calls)} resumed after a decision")
        case runs.WaitStep():
            seconds = (step.until - step.at).total_seconds() if step.until and step.at else None
            waits_for = _named(step.calls) if step.calls else "its consumer"
            yield event(EventKind.WAITED, f"for {waits_for}", seconds=seconds)
        case runs.SteeredStep():
            text = f"the run took in a message from {step.sender}: turn {step.turn_id}"
            yield event(EventKind.TOOK_IN, text, id=step.turn_id)
        case runs.PushedStep():
            place = "in place of the whole history" if step.replaces else "behind the history"
            yield event(EventKind.PUSHED, f"its consumer gave {counted(len(step.messages), 'message')}, {place}")
        case runs.ConsumerSteerStep():
            yield event(EventKind.SAID, f"its consumer steered with {counted(len(step.texts), 'text')}")
        case runs.CompactionStep():
            summed = f"{step.entries} entries summed up" if step.why_not is None else f"no summary: {step.why_not}"
            yield event(
                EventKind.COMPACTED, f"{step.model}, {summed}", worker=step.worker,
                attempts=len(step.attempts) or None, seconds=step.seconds,
            )  # fmt: skip
        case runs.Interruption():
            words = (step.reason.value, step.code, step.detail)
            yield event(EventKind.INTERRUPTED, ": ".join(word for word in words if word))
        case _:
            assert_never(step)


def _inference(step: runs.InferenceStep, journal: tuple[int, ...]) -> TraceEvent:
    kind = EventKind.MODEL if step.plan is None else EventKind.PLAN
    if step.model is None:
        is_open = step.status is runs.StepStatus.OPEN
        text = "the model is being called" if is_open else "the run ended here, without a reply"
        return TraceEvent(at=None if is_open else step.at, kind=kind, text=text, step=step.number, worker=step.worker)
    failed = [f"{attempt.model}: {attempt.fault.value}" for attempt in step.attempts if attempt.fault]
    after = f" after {', '.join(failed)}" if failed else ""
    stop = f" stops with {step.stop.value}" if step.stop else ""
    asks = f", asks for {counted(step.asks, 'call')}" if step.asks else ""
    refused = f"; refused as output: {step.refused}" if step.refused else ""
    return TraceEvent(
        at=step.at, kind=kind, text=f"{step.model}{after}{stop}{asks}{refused}", step=step.number, worker=step.worker,
        attempts=len(step.attempts) or None, seconds=step.seconds, journal=journal,
    )  # fmt: skip


def _of_call(call: CallView, step: int, questions: Sequence[QuestionView]) -> Iterator[TraceEvent]:
    if (child := call.child) is not None:
        at = call.question.created_at if call.question else call.started_at
        text = f"asked agent {child.agent}: {child.outcome}, turn {child.turn_id}"
        yield TraceEvent(at=at, kind=EventKind.SUB_AGENT, text=text, step=step, seconds=call.seconds, id=child.turn_id)
        return
    code = f" ({call.code})" if call.code else ""
    placed = f", {call.placed}" if call.placed else ""
    yield TraceEvent(
        at=call.started_at or call.ended_at, kind=EventKind.CALL, text=f"{call.tool} {call.status.value}{code}{placed}",
        step=step, worker=call.worker, attempts=call.wake_ups, seconds=call.seconds, id=call.id,
    )  # fmt: skip
    for question in questions:
        text = f"{call.tool} waits ({question.why.value}): {question.prompt}"
        yield TraceEvent(at=question.created_at, kind=EventKind.ASKED, text=text, step=step, id=question.id)
        if (answer := question.answer) is not None:
            verdict = "denied" if answer.action is Action.CANCEL else "approved"
            reason = f": {answer.reason}" if answer.reason else ""
            pending = "" if answer.applied_at else ", not taken up yet"
            text = f"{call.tool} {verdict} by {answer.who}{pending}{reason}"
            yield TraceEvent(at=answer.created_at, kind=EventKind.DECIDED, text=text, step=step, id=answer.id)


def _named(calls: Sequence[CallView]) -> str:
    return f"{counted(len(calls), 'call')} ({', '.join(call.tool for call in calls)})"


# The end, and what was sent


def _end(turn: TurnView, row: TraceRow, why: str | None, merged_into: str | None) -> Iterator[TraceEvent]:
    if turn.disposition is None:
        return
    if merged_into is not None:
        text = f"into turn {merged_into}"
        yield TraceEvent(at=turn.done_at, kind=EventKind.MERGED, text=text, id=merged_into)
    text = turn.disposition.value + (f" ({why})" if why else "")
    since = turn.started_at or row["queued_at"]
    seconds = (turn.done_at - since).total_seconds() if turn.done_at else None
    yield TraceEvent(at=turn.done_at, kind=EventKind.ENDED, text=text, seconds=seconds or None, id=turn.turn_id)


def _outbox(rows: Sequence[TraceRow]) -> Iterator[TraceEvent]:
    for row in rows:
        more = "".join(
            f", {name.replace('_', ' ')} {value}"
            for name, value in row.items() if name not in _OUTBOX_COLUMNS_NAMED and value is not None and value != 0
        )  # fmt: skip
        target = f" for {_address(row['target'])}" if row.get("target") else ""
        text = f"a reply{target}, row {row.get('id')}{more}"
        yield TraceEvent(at=row.get("created_at"), kind=EventKind.LEFT, text=text)
        sent = row.get("sent_at") or row.get("delivered_at")
        yield TraceEvent(at=sent, kind=EventKind.SENT, text="delivered" if sent else "not delivered yet")


def _without_secrets(row: TraceRow) -> TraceRow:
    """The row without the claim of a worker, and of its target only the address."""
    shown = {name: value for name, value in row.items() if name != "claim_token"}
    return shown | ({"target": _address(row["target"])} if row.get("target") else {})


def _address(target: Mapping[str, Any]) -> str:
    """A target may hold secrets: only where it points to."""
    words = [str(target[name]) for name in ("channel", "address", "url", "thread_id") if target.get(name)]
    return " ".join(words) or ", ".join(sorted(target))
