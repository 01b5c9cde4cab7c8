"""Where the work of a run was taken over from a worker that was lost."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime

from chordage.orchestrator.store import takeovers as takeover_rows
from chordage.orchestrator.store.database import Store
from chordage.orchestrator.views.conversion import view_of


@dataclass(frozen=True, kw_only=True, slots=True)
class Takeover:
    call_id: str | None  # None: a model call
    step: int
    worker: str | None
    lost_at: datetime  # its last sign of life
    noticed_at: datetime  # the work was sent again


def takeovers(store: Store, run_ids: Collection[str]) -> dict[str, tuple[Takeover, ...]]:
    """By run."""
    with store.read() as tx:
        rows = takeover_rows.of_runs(tx, run_ids)
    return {
        run_id: tuple(view_of(Takeover, row) for row in rows if row["run_id"] == run_id)
        for run_id in {row["run_id"] for row in rows}
    }
