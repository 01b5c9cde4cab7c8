"""How long the calls of each tool take, over the fleet: written and read by heartbeats, never in a turn."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta

from sqlalchemy import delete, select, tuple_

from chordage.orchestrator.core.placement import Duration
from chordage.orchestrator.store.database import Tx
from chordage.orchestrator.store.schema import tool_durations
from chordage.orchestrator.store.statements import insert_or

KEPT = timedelta(days=30)


def store(tx: Tx, measured: Mapping[tuple[str, str], Duration], now: datetime) -> None:
    """The last writer counts: each began with what was stored, so two that differ meet again."""
    rows = [
        {"agent": agent, "tool": tool, "mean": one.mean, "last": one.last, "at": now}
        for (agent, tool), one in sorted(measured.items())  # in one order: two writers do not deadlock
    ]
    insert = insert_or(tx.dialect.name, tool_durations).values(rows)
    new = {name: insert.excluded[name] for name in ("mean", "last", "at")}
    tx.execute(insert.on_conflict_do_update(index_elements=["agent", "tool"], set_=new))


def forget(tx: Tx, now: datetime) -> None:
    """What was not written for a long time: most of it is of agents and tools that exist no more. A tool that is
    still called is measured again. Rows that another process writes at this moment are passed over.
    """
    key = tool_durations.c.agent, tool_durations.c.tool
    old = select(*key).where(tool_durations.c.at < now - KEPT).with_for_update(skip_locked=True)
    tx.execute(delete(tool_durations).where(tuple_(*key).in_(old)))


def load(tx: Tx) -> dict[tuple[str, str], Duration]:
    rows = tx.execute(select(tool_durations))
    return {(row.agent, row.tool): Duration(mean=row.mean, last=row.last) for row in rows}


def tools(tx: Tx, limit: int) -> list[str]:
    """The names of tools that were called lately."""
    return list(
        tx.execute(select(tool_durations.c.tool).distinct().order_by(tool_durations.c.tool).limit(limit)).scalars()
    )
