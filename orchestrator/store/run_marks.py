"""What changes in the rows of runs that rest: few columns, for many runs at once, each found by a key."""

from __future__ import annotations

from collections.abc import Collection, Hashable
from typing import Any

from sqlalchemy import func, select

from chordage.orchestrator.store.database import Tx
from chordage.orchestrator.store.predicates import STILL_UNSETTLED
from chordage.orchestrator.store.schema import calls, runs, suspensions

_OF_RUN = select(
    runs.c.id,
    *(runs.c[name] for name in ("status", "reason", "epoch", "step", "phase", "resends", "steers", "rested_since")),
)
_OF_CALL = (
    select(calls.c.run_id, *(calls.c[name] for name in ("id", "status", "resends", "worker", "suspension_id")))
    .join(runs, runs.c.id == calls.c.run_id)
    .where(calls.c.step >= func.coalesce(runs.c.replay_from, runs.c.step) - 1)  # the round that waits, and what follows
    .order_by(calls.c.id)
)
_OF_QUESTION = (
    select(suspensions.c.run_id, suspensions.c.id, suspensions.c.status, suspensions.c.escalated_at)
    .where(STILL_UNSETTLED)
    .order_by(suspensions.c.id)
)


def marks_of(tx: Tx, run_ids: Collection[str]) -> dict[str, Hashable]:
    """By run; a mark that is another says that something has changed. Of a run that is at work it does not say all."""
    ids = sorted(run_ids)
    rows: dict[str, list[Any]] = {run_id: [] for run_id in ids}
    for statement, key in ((_OF_RUN, runs.c.id), (_OF_CALL, calls.c.run_id), (_OF_QUESTION, suspensions.c.run_id)):
        for row in tx.execute(statement.where(key.in_(ids))):
            rows[row[0]].append(tuple(row))
    return {run_id: tuple(of_run) for run_id, of_run in rows.items()}
