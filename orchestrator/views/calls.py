"""Tool calls as they are shown: arguments, status, question, sub-agent, and the stored result in parts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from chordage.orchestrator.core import message
from chordage.orchestrator.core.agent import Effect
from chordage.orchestrator.core.errors import NotFound
from chordage.orchestrator.core.records import Call
from chordage.orchestrator.core.status import CallStatus, Disposition, TurnStatus
from chordage.orchestrator.store import calls, children, runs
from chordage.orchestrator.store.database import Store, Tx
from chordage.orchestrator.views import approvals
from chordage.orchestrator.views.approvals import QuestionView
from chordage.orchestrator.views.conversion import view_of

MAX_PART = 262_144  # characters of one part of a result


@dataclass(frozen=True, kw_only=True, slots=True)
class ChildView:
    """The turn of a sub-agent."""

    turn_id: str
    thread_id: str
    agent: str
    run_id: str | None
    status: TurnStatus
    disposition: Disposition | None

    @property
    def outcome(self) -> str:
        return (self.disposition or self.status).value


@dataclass(frozen=True, kw_only=True, slots=True)
class CallView:
    id: str
    ask_id: str  # the model's own id of the call
    generation: int  # 1, and one more each time the model uses that id again in the run
    tool: str
    arguments: dict[str, Any]
    effect: Effect
    status: CallStatus
    code: str | None  # why it did not succeed
    content: str | None  # what the model reads of the result
    progress: str | None  # the last progress note
    worker: str | None
    started_at: datetime | None
    ended_at: datetime | None
    seconds: float | None
    wake_ups: int  # 1, and one more for each time its message was sent again
    replayed_at: int | None  # the step at which it last resumed after a decision
    placed: str | None  # where it runs, and why
    answered_from: str | None  # in a fork: the call whose recorded result it has; it did not run
    question: QuestionView | None  # the newest question about it
    child: ChildView | None = None  # of a call to a sub-agent


@dataclass(frozen=True, kw_only=True, slots=True)
class ResultView:
    call_id: str
    run_id: str
    thread_id: str
    tool: str
    status: CallStatus
    code: str | None  # why it did not succeed
    offset: int
    text: str
    total: int  # characters of the whole result
    next_offset: int | None  # where the next part begins; None: this is the last part


def by_round(tx: Tx, rows: Iterable[Call]) -> dict[tuple[str, int], tuple[CallView, ...]]:
    """The calls by run and step, each round in the order of the model's reply."""
    rows = list(rows)
    questions = approvals.about_calls(tx, rows)
    parents = [call.id for call in rows if call.suspension_id in questions and questions[call.suspension_id].is_child]
    child_rows = children.of_calls(tx, parents) if parents else []
    child_of = {row["parent_call"]: view_of(ChildView, row, turn_id=row["id"]) for row in child_rows}
    rounds: dict[tuple[str, int], list[CallView]] = {}
    for call in rows:
        question = questions.get(call.suspension_id) if call.suspension_id else None
        view = _call_view(call, question, child_of.get(call.id))
        rounds.setdefault((call.run_id, call.step), []).append(view)
    return {key: tuple(views) for key, views in rounds.items()}


def _call_view(call: Call, question: QuestionView | None, child: ChildView | None) -> CallView:
    seconds = None
    if call.started_at is not None and call.ended_at is not None:
        seconds = round((call.ended_at - call.started_at).total_seconds(), 6)
    return view_of(CallView, call, seconds=seconds, wake_ups=1 + call.resends, question=question, child=child)


def queued_children(store: Store, root_run: str) -> list[tuple[str, str]]:
    """The turns of a tree that have not started, each with its thread."""
    with store.read() as tx:
        return children.queued_below(tx, root_run)


def is_call(store: Store, some_id: str) -> bool:
    with store.read() as tx:
        return calls.load(tx, some_id) is not None


def result(
    store: Store, call_id: str, *, offset: int = 0, limit: int = MAX_PART, space: str | None = None
) -> ResultView:
    """One part of a stored result. A caller with a `space` finds only the calls of its own threads."""
    with store.read() as tx:
        call = calls.load(tx, call_id)
        run = runs.load(tx, call.run_id) if call is not None else None
        if run is None or not message.holds(space, run.home_thread):
            call = None
        part = calls.result_part(tx, call_id, offset, limit)
    if call is None or part is None:
        why = "has no result yet" if call is not None else "is not there"
        raise NotFound(f"call {call_id!r} {why}; `chordage show RUN --json` has the calls of a run with their ids")
    end = offset + len(part.text)
    next_offset = end if end < part.total else None
    text = {"offset": offset, "text": part.text, "total": part.total, "next_offset": next_offset}
    return view_of(ResultView, call, call_id=call.id, **text)


def result_parts(store: Store, call_id: str) -> Iterator[ResultView]:
    """The whole result, part by part."""
    offset: int | None = 0
    while offset is not None:
        part = result(store, call_id, offset=offset)
        yield part
        offset = part.next_offset


def shortened_results(store: Store, run_id: str) -> list[str]:
    """The ids of those calls of a run whose result was cut for the model."""
    with store.read() as tx:
        return calls.with_full_results(tx, run_id)
