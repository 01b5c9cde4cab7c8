"""Threads: what is queued and running on each, and what was said on one, with the calls of each reply."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from chordage.orchestrator.core.errors import NotFound
from chordage.orchestrator.core.model import Usage, usage_from
from chordage.orchestrator.core.records import Checkpoint
from chordage.orchestrator.core.status import RunStatus
from chordage.orchestrator.store import calls as call_rows
from chordage.orchestrator.store import threads as thread_rows
from chordage.orchestrator.store import usage as usage_rows
from chordage.orchestrator.store.database import Store
from chordage.orchestrator.store.threads import ThreadRow
from chordage.orchestrator.views import calls
from chordage.orchestrator.views.calls import CallView
from chordage.orchestrator.views.conversion import view_of


@dataclass(frozen=True, kw_only=True, slots=True)
class ThreadView:
    thread_id: str
    agent: str
    turns: int  # that ever arrived
    queued: int
    open_run: str | None
    open_run_status: RunStatus | None
    created_at: datetime
    last_turn_at: datetime
    last_activity: datetime


@dataclass(frozen=True, kw_only=True, slots=True)
class ThreadDetails(ThreadView):
    usage: Usage  # of all its runs, with their sub-agents that have ended


class RemarkRole(StrEnum):
    USER = "user"
    ASSISTANT = "assistant"


@dataclass(frozen=True, kw_only=True, slots=True)
class Remark:
    id: int
    at: datetime
    role: RemarkRole
    name: str  # the sender of a message, or the agent that replied
    text: str
    run_id: str
    step: int
    turn_id: str | None  # of a message
    model: str | None  # of a reply
    calls: tuple[CallView, ...]  # of a reply


def thread(store: Store, thread_id: str) -> ThreadView:
    with store.read() as tx:
        row = thread_rows.details(tx, thread_id)
    if row is None:
        raise _not_found(thread_id)
    return view_of_row(row)


def thread_details(store: Store, thread_id: str) -> ThreadDetails:
    view = thread(store, thread_id)
    with store.read() as tx:
        used = usage_rows.of_thread(tx, thread_id)
    return view_of(ThreadDetails, view, usage=usage_from(used))


def threads(store: Store, *, limit: int = 20, before: ThreadView | None = None) -> list[ThreadView]:
    """The threads with the newest turns first. The next page is what comes before the last of this one."""
    with store.read() as tx:
        position = (before.last_turn_at, before.thread_id) if before else None
        rows, _ = thread_rows.latest(tx, limit=limit, before=position)
    return [view_of_row(row) for row in rows]


def view_of_row(row: ThreadRow) -> ThreadView:
    last_turn_at = row["last_turn_at"]
    return view_of(ThreadView, row, last_activity=max(last_turn_at, row["last_fact_at"] or last_turn_at))


def history(store: Store, thread_id: str, *, limit: int = 100, before: int | None = None) -> list[Remark]:
    """The last messages and replies, or the last before the remark with id `before`; oldest first."""
    with store.read() as tx:
        rows = thread_rows.messages(tx, thread_id, limit=limit, before=before)
        if not rows and not thread_rows.exists(tx, thread_id):
            raise _not_found(thread_id)
        with_calls = (_round_of(row) for row in rows if row["body"].get("asks"))
        rounds = calls.by_round(tx, call_rows.of_rounds(tx, with_calls))
    return [_remark(row, rounds.get(_round_of(row), ())) for row in rows]


def _not_found(thread_id: str) -> NotFound:
    return NotFound(f"there is no thread {thread_id!r}; `chordage threads` lists them")


def _round_of(row: ThreadRow) -> tuple[str, int]:
    return row["run_id"], row["step"] + 1


def _remark(row: ThreadRow, asked_calls: tuple[CallView, ...]) -> Remark:
    body = row["body"]
    is_message = row["kind"] == Checkpoint.USER_MESSAGE.value
    return Remark(
        id=row["id"],
        at=row["at"],
        role=RemarkRole.USER if is_message else RemarkRole.ASSISTANT,
        name=body["sender"] if is_message else row["agent"],
        text=body["text"],
        run_id=row["run_id"],
        step=row["step"],
        turn_id=body["turn"] if is_message else None,
        model=None if is_message else body["model"],
        calls=() if is_message else asked_calls,
    )
