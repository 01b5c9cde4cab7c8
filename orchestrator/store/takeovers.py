"""Work whose worker was lost, as rescue found it. Nothing decides by these rows: people look at them."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import RowMapping, insert, select

from chordage.orchestrator.store.database import Tx
from chordage.orchestrator.store.schema import processes, takeovers

TakeoverRow = RowMapping


@dataclass(frozen=True, kw_only=True, slots=True)
class LostWork:
    """A model call, or a tool call, that a worker held. `since`: it did not begin before that."""

    run_id: str
    step: int
    worker: str | None
    since: datetime
    call_id: str | None = None


def record(tx: Tx, lost: LostWork, now: datetime) -> None:
    """The worker showed itself last where its process is on record with it, or is taken to have died just now."""
    seen = None
    if lost.worker is not None:
        seen = tx.execute(select(processes.c.seen_at).where(processes.c.id == lost.worker)).scalar()
    tx.execute(
        insert(takeovers),
        {
            "run_id": lost.run_id, "call_id": lost.call_id, "step": lost.step, "worker": lost.worker,
            "lost_at": min(now, max(lost.since, seen or now)), "noticed_at": now,
        },
    )  # fmt: skip


def of_runs(tx: Tx, run_ids: Collection[str]) -> Sequence[TakeoverRow]:
    if not run_ids:
        return []
    found = select(takeovers).where(takeovers.c.run_id.in_(sorted(run_ids))).order_by(takeovers.c.id)
    return tx.execute(found).mappings().all()
