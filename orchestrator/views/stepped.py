"""A stepped turn for its consumer: the held reply, the results of its calls, and what is pending."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any

from chordage.orchestrator.core.agent import PlanSpec
from chordage.orchestrator.core.model import StopReason, ToolAsk, Usage
from chordage.orchestrator.core.planning import state
from chordage.orchestrator.core.records import Checkpoint, Entry
from chordage.orchestrator.core.settling import holds_round
from chordage.orchestrator.core.status import OPEN_CALL, CallStatus, Disposition
from chordage.orchestrator.core.stepping import Drive, Standing
from chordage.orchestrator.core.transcript import NOT_RUN
from chordage.orchestrator.store import journal
from chordage.orchestrator.store import stepped as stepped_rows
from chordage.orchestrator.store.database import Store, Tx
from chordage.orchestrator.store.stepped import SteppedRows, load_view
from chordage.orchestrator.views.conversion import view_of


@dataclass(frozen=True, kw_only=True, slots=True)
class HeldReply:
    id: str
    iteration: int
    text: str
    asks: tuple[ToolAsk, ...]
    stop: StopReason
    model: str
    usage: Usage


@dataclass(frozen=True, kw_only=True, slots=True)
class HeldCall:
    """A call of the held reply, in its newest generation."""

    id: str
    ask_id: str
    tool: str
    generation: int
    status: CallStatus
    code: str | None
    content: str | None


@dataclass(frozen=True, kw_only=True, slots=True)
class HeldPlan:
    """A planner's decision after normalisation. `ends`: why none of its commands would run. `refused`: commands that
    would not run, by their place.
    """

    round: int
    commands: tuple[dict[str, Any], ...]
    ends: str | None
    refused: dict[str, dict[str, Any]]
    notes: tuple[dict[str, Any], ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class HeldRound:
    """The results of a plan's round."""

    id: str
    index: int
    records: tuple[dict[str, Any], ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class SteppedView:
    turn_id: str
    run_id: str | None
    thread_id: str
    agent: str
    rev: int
    standing: Standing
    drive: Drive
    mutated: bool
    iteration: int
    max_iterations: int | None
    reply: HeldReply | None
    plan: HeldPlan | None  # that `next` runs: the planner's, or the consumer's in place of it
    round: HeldRound | None
    calls: tuple[HeldCall, ...]
    pending: tuple[dict[str, Any], ...]  # messages that become history when the run moves on
    replaces: bool
    steers: tuple[str, ...]
    verdicts: dict[str, Any]  # decisions about calls that are not open yet, by the model's ids
    params: dict[str, Any]
    options: dict[str, Any]
    held_until: datetime | None
    error: dict[str, Any] | None
    disposition: Disposition | None
    reason: str | None
    code: str | None
    detail: str | None
    answer: str | None  # of a turn that is done

    @property
    def tool_response(self) -> list[dict[str, Any]] | None:
        """The results of the reply's calls as messages. None: some are missing, or it asked for none."""
        if not self.calls or any(call.status in OPEN_CALL for call in self.calls):
            return None
        return [_result(call) for call in self.calls]


def _result(call: HeldCall) -> dict[str, Any]:
    failed = call.status is not CallStatus.SUCCEEDED
    content = call.content if call.content is not None else NOT_RUN if failed else ""
    return {"role": "tool", "ask_id": call.ask_id, "content": content, "is_error": failed}


def stepped(store: Store, target: str, *, space: str | None = None) -> SteppedView:
    """`target`: a turn, or its run. A caller with a `space` finds only the turns of its own threads."""
    answer = None
    with store.read() as tx:
        rows = load_view(tx, target, space=space)
        is_done = rows.standing is Standing.DONE
        if rows.run is not None and is_done:
            answer = _answer(journal.of_run(tx, rows.run.id))
        held_round = _round(tx, rows)
    row, run, turn, reply = rows.row, rows.run, rows.turn, rows.reply
    held_reply = None
    if reply is not None and rows.reply_id is not None:
        held_reply = view_of(HeldReply, reply, id=rows.reply_id, iteration=row.iteration)
    return view_of(
        SteppedView, row, turn_id=turn.id, run_id=run.id if run else None, thread_id=turn.thread_id, agent=turn.agent,
        standing=rows.standing, reply=held_reply, plan=_plan(rows.plan), round=held_round,
        calls=tuple(view_of(HeldCall, call) for call in rows.calls), pending=tuple(row.given),
        steers=tuple(row.steers), held_until=None if is_done else row.held_until, disposition=turn.disposition,
        reason=run.reason.value if run and run.reason else None, code=run.code if run else None,
        detail=run.detail if run else None, answer=answer,
    )  # fmt: skip


def driven(store: Store, turn_id: str) -> SteppedView | None:
    """None: the turn has no consumer."""
    with store.read() as tx:
        row = stepped_rows.load(tx, turn_id)
    return None if row is None else stepped(store, turn_id)


def as_json(view: SteppedView) -> dict[str, Any]:
    """The wire format."""
    until = view.held_until.isoformat() if view.held_until else None
    fields = {**asdict(view), "held_until": until, "tool_response": view.tool_response}
    plain: dict[str, Any] = json.loads(json.dumps(fields))
    return plain


def _round(tx: Tx, rows: SteppedRows) -> HeldRound | None:
    if rows.run is None or not holds_round(rows.run, rows.row):
        return None
    past = journal.history(tx, rows.turn.thread_id, plans_of=rows.run.id)
    last = state.read(PlanSpec(), past.entries, past.calls, rows.run.id).rounds[-1]
    records = tuple(record.as_json() for record in last.records)
    return HeldRound(id=f"{rows.run.id}:{rows.run.step}", index=last.index, records=records)


def _plan(body: dict[str, Any] | None) -> HeldPlan | None:
    if body is None:
        return None
    decision = body["decision"]
    return HeldPlan(
        round=body["round"], commands=tuple(decision["execution_commands"]), ends=body["ends"],
        refused=body["refused"], notes=tuple(decision["notes"]),
    )  # fmt: skip


def _answer(entries: Sequence[Entry]) -> str | None:
    finished = [entry.step for entry in entries if entry.kind is Checkpoint.RUN_FINISHED]
    replies = [entry for entry in entries if entry.kind is Checkpoint.ASSISTANT_TURN and entry.step in finished]
    return str(replies[-1].body["text"]) if replies else None
