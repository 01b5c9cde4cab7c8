"""What monitors read of the rows as they are now. Each count is answered by an index and stops at a bound."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

from sqlalchemy import ColumnElement, RowMapping, case, func, select

from chordage.orchestrator.core.deliveries import DeliveryStatus
from chordage.orchestrator.core.groups import Group
from chordage.orchestrator.core.status import Disposition, RunStatus
from chordage.orchestrator.store.database import Tx
from chordage.orchestrator.store.pages import SKEW, first_id_at
from chordage.orchestrator.store.predicates import (
    ASKED_OF_PEOPLE,
    PENDING_DELIVERIES,
    QUEUED_IN_GROUP,
    RUNNING_RUNS,
    has,
)
from chordage.orchestrator.store.schema import outbox, processes, runs, suspensions, turns

MOST = 10_000  # rows that one gauge counts
MOST_KINDS = 100  # of questions, by agent and cause: the most frequent


def queued(tx: Tx, group: Group, now: datetime) -> tuple[int, datetime | None]:
    """How many turns of the group are in the queue, and since when the oldest that may start is due."""
    first = (
        select(turns.c.due_at)
        .where(QUEUED_IN_GROUP, turns.c.grp == group.value)
        .order_by(turns.c.queued_at, turns.c.id)
        .limit(MOST)
        .subquery()
    )
    due = func.min(case((first.c.due_at <= now, first.c.due_at)))
    number, since = tx.execute(select(func.count(), due).select_from(first)).one()
    return number, since


_WAITING = has(runs.c.status, RunStatus.WAITING)


def open_runs(tx: Tx) -> list[tuple[str, str, int]]:
    """Group, status and number."""
    found: list[tuple[str, str, int]] = []
    for status, condition in ((RunStatus.RUNNING, RUNNING_RUNS), (RunStatus.WAITING, _WAITING)):
        some = select(runs.c.grp).where(condition).limit(MOST).subquery()
        by_group = select(some.c.grp, func.count().label("number")).group_by(some.c.grp)
        found += [(row.grp, status.value, row.number) for row in tx.execute(by_group)]
    return found


def questions(tx: Tx, now: datetime, *, soon: timedelta) -> Sequence[RowMapping]:
    """Open questions to people, the oldest of them, by agent and cause."""
    columns = (suspensions.c.agent, suspensions.c.why, suspensions.c.created_at, suspensions.c.expires_at)
    some = (
        select(*columns)
        .where(ASKED_OF_PEOPLE)
        .order_by(suspensions.c.created_at, suspensions.c.id)
        .limit(MOST)
        .subquery()
    )
    number = func.count().label("number")
    expiring = func.count(case((some.c.expires_at <= now + soon, 1))).label("expiring")
    by_kind = select(some.c.agent, some.c.why, number, expiring, func.min(some.c.created_at).label("oldest"))
    by_kind = by_kind.group_by(some.c.agent, some.c.why).order_by(number.desc(), some.c.agent, some.c.why)
    return tx.execute(by_kind.limit(MOST_KINDS)).mappings().all()


def poison_runs(tx: Tx, since: datetime) -> int:
    """Ended since then. Found by the index of the turns that failed."""
    failed = (
        select(turns.c.run_id)
        .where(has(turns.c.disposition, Disposition.FAILED), turns.c.id >= first_id_at(since - SKEW))
        .where(turns.c.done_at >= since)
        .order_by(turns.c.id.desc())
        .limit(MOST)
        .subquery()
    )
    poison = select(func.count()).select_from(failed).join(runs, runs.c.id == failed.c.run_id)
    return int(tx.execute(poison.where(runs.c.code == "poison")).scalar_one())


def pending_deliveries(tx: Tx) -> int:
    return _count_deliveries(tx, PENDING_DELIVERIES)


def dead_deliveries(tx: Tx) -> int:
    return _count_deliveries(tx, has(outbox.c.status, DeliveryStatus.DEAD))


def _count_deliveries(tx: Tx, condition: ColumnElement[bool]) -> int:
    some = select(outbox.c.id).where(condition).limit(MOST).subquery()
    return int(tx.execute(select(func.count()).select_from(some)).scalar_one())


def serving(tx: Tx, since: datetime) -> list[str]:
    """The queues that each living process takes messages from, as one text with commas."""
    living = select(processes.c.queues).where(
        processes.c.gone_at.is_(None), processes.c.seen_at >= since, processes.c.queues.is_not(None)
    )
    return list(tx.execute(living.limit(MOST)).scalars())
