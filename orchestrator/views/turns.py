"""A turn with all that became of its message, and lists of turns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from chordage.orchestrator.core import spaces
from chordage.orchestrator.core.errors import NotFound
from chordage.orchestrator.core.groups import Group
from chordage.orchestrator.core.message import Origin, Sender
from chordage.orchestrator.core.model import TOKENS, Usage
from chordage.orchestrator.core.reasons import Reason
from chordage.orchestrator.core.status import Disposition, TurnStatus
from chordage.orchestrator.store import approvals
from chordage.orchestrator.store import turns as turn_rows
from chordage.orchestrator.store.database import Store, Tx
from chordage.orchestrator.views.inbox import OpenQuestion, question_from
from chordage.orchestrator.views.rows import typed

QUESTIONS = 100  # that are shown with a turn; `inbox` has all


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
    source: str  # the way in it came by: `http`, `celery`, `cli`, `hook:NAME`, `poll:NAME`, `pulse` or `child`
    dedupe_key: str | None
    text: str
    meta: dict[str, Any]
    strategy: str
    status: TurnStatus
    disposition: Disposition | None  # how its message ended
    position: int | None  # among the queued turns of its thread: 1 is next to start
    run_id: str | None
    coalesce_key: str | None  # of the queued turns that have it, only the latest was kept
    into_turn: str | None  # that this one was merged into
    answer: str | None
    output: Any  # the value in the answer, where its agent demands one and it fits
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
    parent_run: str | None  # that asked this sub-agent, with this call
    parent_call: str | None
    root_run: str | None
    root_thread: str | None
    path: str | None  # the agents from the root down to this one
    questions: tuple[OpenQuestion, ...]  # that nobody has answered yet, of its run and of sub-agents below it

    @property
    def fate(self) -> str:
        """What became of the message, in a few words."""
        if self.status is TurnStatus.QUEUED:
            return f"queued, number {self.position} in the line of its thread"
        if self.disposition is Disposition.STEERED:
            return f"steered into run {self.run_id}"
        if self.disposition is Disposition.MERGED:
            return f"merged into turn {self.into_turn}"
        told = self.disposition.value if self.disposition else "active"
        why = [self.reason.value] if self.reason in {Reason.STOPPED, Reason.SUSPENDED, Reason.HELD} else []
        why += [word for word in (self.code, self.detail) if word]
        return f"{told} ({': '.join(why)})" if why else told


@dataclass(frozen=True, kw_only=True, slots=True)
class TurnLine:
    """A turn as a list shows it; `text` is only how its message begins."""

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


def turn(store: Store, turn_id: str, *, space: str | None = None) -> TurnView:
    """`space`: of a caller, outside of which there is no turn for it."""
    with store.read() as tx:
        row = turn_rows.details(tx, turn_id)
        questions = _questions(tx, row["run_id"]) if row and row["status"] == TurnStatus.ACTIVE else ()
    if row is None or not spaces.holds(space, row["root_thread"] or row["thread_id"]):
        raise NotFound(f"there is no turn {turn_id!r}; `chordage turns` lists them")
    return _full(row, questions)


def _questions(tx: Tx, run_id: str) -> tuple[OpenQuestion, ...]:
    asked = approvals.list_open(tx, limit=QUESTIONS, root_run=run_id)
    return tuple(question_from(one) for one in asked)


def is_done(store: Store, turn_id: str) -> bool:
    """A cheap question, for those who ask often."""
    with store.read() as tx:
        done = turn_rows.is_done(tx, turn_id)
    if done is None:
        raise NotFound(f"there is no turn {turn_id!r}; `chordage turns` lists them")
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
    return [TurnLine(**typed(row)) for row in rows]


def _full(row: Mapping[Any, Any], questions: tuple[OpenQuestion, ...]) -> TurnView:
    values = typed(row)
    reply = values.pop("last_reply") or {}
    end = values.pop("end") or {}
    rounds = values.pop("rounds") or 0
    tokens = {name: values.pop(name) or 0 for name in TOKENS}
    return TurnView(
        **values, answer=reply.get("text"), output=end.get("output"), rounds=rounds, usage=Usage(**tokens),
        questions=questions,
    )  # fmt: skip
