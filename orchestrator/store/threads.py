"""Threads: where turns line up."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import bindparam, func, select, update
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


def ask_to_compact(tx: Tx, thread_id: str) -> int | None:
    """Once more: whoever compacts notes how often was asked by then, so that a request in between is not lost. The
    number of this request; None: there is no such thread.
    """
    asked = update(threads).where(threads.c.id == thread_id)
    once_more = asked.values(compact_asked=func.coalesce(threads.c.compact_asked, 0) + 1)
    number: int | None = tx.execute(once_more.returning(threads.c.compact_asked)).scalar()
    return number


def exists(tx: Tx, thread_id: str) -> bool:
    return tx.execute(select(threads.c.id).where(threads.c.id == thread_id)).first() is not None
