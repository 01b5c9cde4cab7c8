"""Sub-agents: turns that a call of another run waits for."""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import ColumnElement, func, or_, select, update

from chordage.orchestrator.core.approvals import SuspensionStatus, Why
from chordage.orchestrator.core.model import COUNTS
from chordage.orchestrator.core.records import Subject
from chordage.orchestrator.core.status import TurnStatus
from chordage.orchestrator.store.database import Tx
from chordage.orchestrator.store.predicates import (
    ASKED_OF_PEOPLE,
    QUEUED_IN_GROUP,
    STILL_OPEN_SUSPENSION,
    STILL_UNSETTLED,
    UNSETTLED_SUSPENSIONS,
    UNWANTED_TURNS,
    still,
)
from chordage.orchestrator.store.schema import runs, suspensions, turns

_OF_CHILD = suspensions.c.why == Why.CHILD.value


def count_started(tx: Tx, run_id: str, more: int) -> None:
    """The run has started that many more sub-agents."""
    tx.execute(update(runs).where(runs.c.id == run_id).values(children=runs.c.children + more))


def are_open(tx: Tx, run_id: str) -> bool:
    """Whether a child of this run has not answered yet."""
    waiting = select(suspensions.c.id).where(suspensions.c.run_id == run_id, _OF_CHILD, STILL_OPEN_SUSPENSION)
    return tx.execute(waiting.limit(1)).first() is not None


def is_person_asked(tx: Tx, root_run: str) -> bool:
    """Whether a question to a person is open anywhere in this tree."""
    joined = select(suspensions.c.id).join(runs, runs.c.id == suspensions.c.run_id)
    of_tree = joined.where(ASKED_OF_PEOPLE, or_(runs.c.id == root_run, runs.c.root_run == root_run))
    return tx.execute(of_tree.limit(1)).first() is not None


def waiting_calls(tx: Tx, run_id: str) -> list[str]:
    """The calls of this run whose child has not answered yet, or whose answer was not used yet."""
    waiting = select(suspensions.c.call_id).where(suspensions.c.run_id == run_id, _OF_CHILD, STILL_UNSETTLED)
    return list(tx.execute(waiting).scalars())


def open_suspension(tx: Tx, call_id: str) -> str | None:
    """The open suspension that the child of this call will answer."""
    return tx.execute(
        select(suspensions.c.id).where(
            suspensions.c.call_id == call_id, _OF_CHILD, UNSETTLED_SUSPENSIONS, STILL_OPEN_SUSPENSION
        )
    ).scalar()


def mark_answered(tx: Tx, suspension_id: str) -> bool:
    moved = update(suspensions).where(suspensions.c.id == suspension_id, STILL_OPEN_SUSPENSION)
    return tx.execute(moved.values(status=SuspensionStatus.DECIDED.value)).rowcount == 1


def charge(tx: Tx, parent_run: str, child_run: str) -> None:
    """Add what a child has used, its own children included, to a run above it. It is kept apart too, so that what each
    run has used itself is known.
    """
    used = {name: select(runs.c[name]).where(runs.c.id == child_run).scalar_subquery() for name in COUNTS}
    sums = {name: runs.c[name] + more for name, more in used.items()}
    apart = {f"children_{name}": runs.c[f"children_{name}"] + more for name, more in used.items()}
    tx.execute(update(runs).where(runs.c.id == parent_run).values({**sums, **apart}))


def give_up(tx: Tx, *, run_id: str | None = None, call_id: str | None = None) -> list[tuple[str, Subject]]:
    """Mark the open children of this run, or of this call, whose results are no longer needed. Returns them."""
    is_child: ColumnElement[bool] = turns.c.parent_run == run_id if call_id is None else turns.c.parent_call == call_id
    unwanted = update(turns).where(is_child, still(turns.c.status, TurnStatus.QUEUED, TurnStatus.ACTIVE))
    rows = tx.execute(unwanted.values(cancel_asked=1).returning(turns.c.id, turns.c.thread_id, turns.c.agent))
    return sorted((row.id, Subject(row.thread_id, row.agent)) for row in rows)


def is_given_up(tx: Tx, turn_id: str) -> bool:
    return tx.execute(select(turns.c.cancel_asked).where(turns.c.id == turn_id)).scalar() == 1


def unwanted(tx: Tx, limit: int) -> list[tuple[str, Subject]]:
    """Children that were given up and are not done."""
    waiting = select(turns.c.id, turns.c.thread_id, turns.c.agent).where(UNWANTED_TURNS).order_by(turns.c.id)
    return [(row.id, Subject(row.thread_id, row.agent)) for row in tx.execute(waiting.limit(limit))]


def spans(tx: Tx, run_id: str, since: datetime, now: datetime) -> list[tuple[datetime, datetime]]:
    """The times at which the children of this run worked after `since`, without their waits for decisions."""
    children = (
        select(runs.c.started_at, func.coalesce(runs.c.ended_at, now).label("to"), runs.c.rested_ms)
        .join(turns, turns.c.run_id == runs.c.id)
        .where(turns.c.parent_run == run_id)
    )
    worked = ((row.started_at + timedelta(milliseconds=row.rested_ms), row.to) for row in tx.execute(children))
    return [(max(since, start), end) for start, end in worked if end > since]


def of_calls(tx: Tx, call_ids: Collection[str]) -> list[dict[str, Any]]:
    """The turns of the children of these calls."""
    names = ("id", "thread_id", "agent", "run_id", "status", "disposition", "parent_call")
    matching = select(*(turns.c[name] for name in names)).where(turns.c.parent_call.in_(sorted(call_ids)))
    return [dict(row) for row in tx.execute(matching).mappings()]


def queued_below(tx: Tx, root_run: str) -> list[tuple[str, str]]:
    """Queued turns of a tree, each with its thread."""
    queued = select(turns.c.id, turns.c.thread_id).where(QUEUED_IN_GROUP, turns.c.root_run == root_run)
    return [(row.id, row.thread_id) for row in tx.execute(queued.order_by(turns.c.due_at, turns.c.id))]
