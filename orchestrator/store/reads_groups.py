"""What readers ask of groups. However long a queue is, no more of it is read than is told."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from sqlalchemy import RowMapping, case, func, select, update

from chordage.orchestrator.core.groups import Group
from chordage.orchestrator.store.predicates import QUEUED_IN_GROUP, RUNNING_IN_GROUP
from chordage.orchestrator.store.schema import groups, runs, turns
from chordage.orchestrator.store.tx import Tx

COUNTED = 10_000  # at most; of more is said that there are more
Row = RowMapping


def budgets(tx: Tx) -> dict[Group, int | None]:
    """What is laid down in the database. None: the setting decides."""
    return {Group(row.name): row.budget for row in tx.execute(select(groups.c.name, groups.c.budget))}


def set_budget(tx: Tx, group: Group, budget: int | None) -> None:
    """From the next start on, everywhere."""
    tx.execute(update(groups).where(groups.c.name == group.value).values(budget=budget))


def running(tx: Tx, group: Group) -> dict[str, int]:
    """By tenant. As many as the budget, so all of them are read."""
    of_turn = turns.c.id == runs.c.turn_id
    found = (
        select(turns.c.tenant, func.count().label("number"))
        .join(runs, of_turn)
        .where(runs.c.grp == group.value, RUNNING_IN_GROUP)
    )
    return {row.tenant: row.number for row in tx.execute(found.group_by(turns.c.tenant))}


def queued(tx: Tx, group: Group, now: datetime) -> Sequence[Row]:
    """By tenant, among those that came first; and since when the oldest is due."""
    first = (
        select(turns.c.tenant, turns.c.due_at)
        .where(QUEUED_IN_GROUP, turns.c.grp == group.value)
        .order_by(turns.c.queued_at, turns.c.id)
        .limit(COUNTED)
        .subquery()
    )
    number = func.count().label("number")
    since = func.min(case((first.c.due_at <= now, first.c.due_at))).label("since")
    found = select(first.c.tenant, number, since).group_by(first.c.tenant)
    return tx.execute(found.order_by(number.desc(), first.c.tenant)).mappings().all()
