"""How much work there is, by group. Only the partial indexes of what is open are read, nothing of what is done."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import RowMapping, func, select

from chordage.orchestrator.store.schema import OPEN_RUNS, QUEUED_TURNS, groups, runs, turns
from chordage.orchestrator.store.tx import Tx

Row = RowMapping


def queued(tx: Tx) -> Sequence[Row]:
    """`grp`, whether they are `ready`, `number`, and since when the first of them is due."""
    found = select(turns.c.grp, turns.c.ready, func.count().label("number"), func.min(turns.c.due_at).label("since"))
    return tx.execute(found.where(QUEUED_TURNS).group_by(turns.c.grp, turns.c.ready)).mappings().all()


def opened(tx: Tx) -> Sequence[Row]:
    """`grp`, `status` and `number` of runs."""
    found = select(runs.c.grp, runs.c.status, func.count().label("number"))
    return tx.execute(found.where(OPEN_RUNS).group_by(runs.c.grp, runs.c.status)).mappings().all()


def budgets(tx: Tx) -> dict[str, int]:
    """Those that go before the settings."""
    found = select(groups.c.name, groups.c.budget).where(groups.c.budget.is_not(None))
    return {row.name: row.budget for row in tx.execute(found)}
