"""How the newest calls of each tool ended. As many calls are read, however many there are: ids grow with time."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import case, func, select

from chordage.orchestrator.core.status import CallStatus
from chordage.orchestrator.store.database import Tx
from chordage.orchestrator.store.schema import calls, runs


@dataclass(frozen=True, kw_only=True, slots=True)
class ToolOutcomes:
    calls: int
    failed: int


def of_newest(tx: Tx, window: int) -> dict[tuple[str, str], ToolOutcomes]:
    """By agent and tool, among the newest calls of all."""
    newest = select(calls.c.run_id, calls.c.tool, calls.c.status).order_by(calls.c.id.desc()).limit(window).subquery()
    failed = func.sum(case((newest.c.status == CallStatus.FAILED.value, 1), else_=0))
    counted = (
        select(runs.c.agent, newest.c.tool, func.count(), failed)
        .join(runs, runs.c.id == newest.c.run_id)
        .group_by(runs.c.agent, newest.c.tool)
    )
    return {
        (agent, tool): ToolOutcomes(calls=number, failed=int(bad)) for agent, tool, number, bad in tx.execute(counted)
    }
