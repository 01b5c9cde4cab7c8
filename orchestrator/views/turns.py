"""Turns: one with everything known of its message, and lists of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from chordage.orchestrator.core import message
from chordage.orchestrator.core.errors import NotFound
from chordage.orchestrator.core.groups import Group
from chordage.orchestrator.core.message import Origin, Sender
from chordage.orchestrator.core.model import Usage, usage_from
from chordage.orchestrator.core.reasons import Reason
from chordage.orchestrator.core.status import Disposition, TurnStatus
from chordage.orchestrator.store import approvals
from chordage.orchestrator.store import turns as turn_rows
from chordage.orchestrator.store.database import Store
from chordage.orchestrator.views.approvals import OpenQuestion, open_question
from chordage.orchestrator.views.conversion import view_of

MAX_QUESTIONS = 100  # shown with a turn; the inbox has all


@dataclass(frozen=True, kw_only=True, slots=True)
class TurnView:
    turn_id: str
    thread_id: str
    agent: str
    group: Group
    tenant: str
    origin: Origin
    channel: str | None
    sender: Sender
    source: str  # where the message came in: `http`, `celery`, `cli`, `hook:NAME`, `poll:NAME`, `pulse` or `child`
    sent_by: str | None  # the key, and the user for whom it spoke; `local` is a program of this machine
    dedupe_key: str | None
    text: str
    meta: dict[str, Any]
    strategy: str
    status: TurnStatus
    disposition: Disposition | None  # how its message ended
    position: int | None  # among the queued turns of its thread: 1 is next to start
    run_id: str | None
    coalesce_key: str | None  # of the queued turns with this key, only the latest is kept
    into_turn: str | None  # the turn this one was merged into
    answer: str | None
    output: Any  # the structured value of the answer, if its agent demands one and it fits
    reason: Reason | None  # why its run ended, or waits
    code: str | None
    detail: str | None
    rounds: int
    usage: Usage
    not_before: datetime | None
    deadline: datetime | None
    queued_at: datetime
    started_at: datetime | None
    done_at: datetime | None
    parent_run: str | None  # of a sub-agent: the run, and below it the call, that asked it
    parent_call: str | None
    root_run: str | None
    root_thread: str | None
    path: str | None  # the agents from the root down to this one
    fork_of: str | None  # the run that its own run is a fork of
    questions: tuple[OpenQuestion, ...]  # open questions of its run and of the sub-agents below it

    @property
    def fate(self) -> str:
        """How the message ended, or what it waits for, in a few words."""
        if self.status is TurnStatus.QUEUED:
            return f"queued, number {self.position} in the line of its thread"
        if self.disposition is Disposition.STEERED:
            return f"steered into run {self.run_id}"
        if self.disposition is Disposition.MERGED:
            return f"merged into turn {self.into_turn}"
        state = self.disposition.value if self.disposition else _activity(self.reason, is_asking=bool(self.questions))
        why = [self.reason.value] if self.reason is Reason.STOPPED else []
        why += [word for word in (self.code, self.detail) if word]
        return f"{state} ({': '.join(why)})" if why else state


@dataclass(frozen=True, kw_only=True, slots=True)
class TurnLine:
    """A turn in a list; `text` is the beginning of its message."""

    turn_id: str
    thread_id: str
    agent: str
    group: Group
    origin: Origin
    channel: str | None
    sender: Sender
    text: str
    status: TurnStatus
    disposition: Disposition | None
    run_id: str | None
    queued_at: datetime
    started_at: datetime | None
    done_at: datetime | None
    parent_run: str | None  # of a sub-agent
    path: str | None
    reason: Reason | None  # why its run ended, or waits
    usage: Usage  # of its run, with its sub-agents that have ended
    open_questions: int  # of its own run; those of a sub-agent count for the turn of the sub-agent

    @property
    def fate(self) -> str:
        """How the message ended, or what its run waits for, in a few words."""
        if self.status is TurnStatus.ACTIVE:
            return _activity(self.reason, is_asking=self.open_questions > 0)
        return (self.disposition or self.status).value


def _activity(reason: Reason | None, *, is_asking: bool) -> str:
    """What the run of an active turn does. `is_asking`: a question to a person is open."""
    match reason:
        case Reason.SUSPENDED:
            return "waiting for a decision" if is_asking else "waiting for a sub-agent"
        case Reason.HELD:
            return "waiting for its consumer"
    return TurnStatus.ACTIVE.value


def turn(store: Store, turn_id: str, *, space: str | None = None) -> TurnView:
    """A caller with a `space` finds only the turns of its own threads."""
    questions: tuple[OpenQuestion, ...] = ()
    with store.read() as tx:
        row = turn_rows.details(tx, turn_id)
        if row and row["status"] == TurnStatus.ACTIVE:
            open_rows = approvals.list_open(tx, limit=MAX_QUESTIONS, root_run=row["run_id"])
            questions = tuple(open_question(open_row) for open_row in open_rows)
    if row is None or not message.holds(space, row["root_thread"] or row["thread_id"]):
        raise _not_found(turn_id)
    return view_of(
        TurnView,
        row,
        answer=(row["last_reply"] or {}).get("text"),
        output=(row["end"] or {}).get("output"),
        rounds=row["rounds"] or 0,
        usage=usage_from(row),
        questions=questions,
    )


def is_done(store: Store, turn_id: str) -> bool:
    """A cheap read, for those who poll."""
    with store.read() as tx:
        done = turn_rows.is_done(tx, turn_id)
    if done is None:
        raise _not_found(turn_id)
    return done


def turns(
    store: Store,
    *,
    limit: int = 20,
    status: TurnStatus | None = None,
    thread_id: str | None = None,
    agent: str | None = None,
    before: str | None = None,
) -> list[TurnLine]:
    """Newest first. The next page is what came before the last of this one."""
    with store.read() as tx:
        rows = turn_rows.newest(tx, limit=limit, status=status, thread_id=thread_id, agent=agent, before=before)
    return [turn_line(row) for row in rows]


def turn_line(row: Mapping[Any, Any]) -> TurnLine:
    return view_of(TurnLine, row, usage=usage_from(row))


def _not_found(turn_id: str) -> NotFound:
    return NotFound(f"there is no turn {turn_id!r}; `chordage turns` lists them")
