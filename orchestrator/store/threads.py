"""Threads: where turns line up."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import bindparam, select
from sqlalchemy.dialects import postgresql, sqlite

from chordage.orchestrator.store.hot import Hot
from chordage.orchestrator.store.schema import threads
from chordage.orchestrator.store.tx import Tx

_ROW = {
    "id": bindparam("thread_id"),
    "agent": bindparam("agent"),
    "arrivals": 1,
    "created_at": bindparam("now"),
    "updated_at": bindparam("now"),
}
_AGAIN = {"arrivals": threads.c.arrivals + 1, "updated_at": bindparam("now")}
_INSERT: dict[str, Any] = {"sqlite": sqlite.insert, "postgresql": postgresql.insert}


def _arrive(dialect: str) -> Any:
    row = _INSERT[dialect](threads).values(_ROW)
    return row.on_conflict_do_update(index_elements=["id"], set_=_AGAIN).returning(threads.c.arrivals)


_ARRIVE = Hot(_arrive)


def arrive(tx: Tx, thread_id: str, agent: str, now: datetime) -> int:
    """The number of the next arrival on this thread. The row stays locked until commit: arrivals come one by one."""
    return int(_ARRIVE.scalar(tx, {"thread_id": thread_id, "agent": agent, "now": now}))


def exists(tx: Tx, thread_id: str) -> bool:
    return tx.execute(select(threads.c.id).where(threads.c.id == thread_id)).first() is not None
