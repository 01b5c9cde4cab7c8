"""Threads: where turns line up, what runs on them, and their messages. Never more than a page is read."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import RowMapping, and_, bindparam, func, select, tuple_, update

from chordage.orchestrator.core.records import NOTES, Checkpoint
from chordage.orchestrator.store.database import Tx
from chordage.orchestrator.store.journal import NOT_ROLLED_BACK
from chordage.orchestrator.store.predicates import OPEN_RUNS, in_line
from chordage.orchestrator.store.schema import journal, runs, threads, turns
from chordage.orchestrator.store.statements import PreparedStatement, insert_or

_ROW = {
    "id": bindparam("thread_id"),
    "agent": bindparam("agent"),
    "arrivals": 1,
    "created_at": bindparam("now"),
    "updated_at": bindparam("now"),
}
_AGAIN = {"arrivals": threads.c.arrivals + 1, "updated_at": bindparam("now")}


def _arrive(dialect: str) -> Any:
    row = insert_or(dialect, threads).values(_ROW)
    return row.on_conflict_do_update(index_elements=["id"], set_=_AGAIN).returning(threads.c.arrivals)


_ARRIVE = PreparedStatement(_arrive)


def arrive(tx: Tx, thread_id: str, agent: str, now: datetime) -> Callable[[], int]:
    """The number of the next arrival on this thread. The row is locked until the commit: arrivals come one by one."""
    sent = _ARRIVE.send(tx, {"thread_id": thread_id, "agent": agent, "now": now})
    return lambda: int(sent.rows()[0]["arrivals"])


def request_compaction(tx: Tx, thread_id: str) -> int | None:
    """Returns the number of this request. None: there is no such thread. A compaction records the number it has read,
    so a request that comes meanwhile is not lost.
    """
    request = update(threads).where(threads.c.id == thread_id)
    counted = request.values(compact_asked=func.coalesce(threads.c.compact_asked, 0) + 1)
    number: int | None = tx.execute(counted.returning(threads.c.compact_asked)).scalar()
    return number


def lock(tx: Tx, thread_id: str) -> None:
    tx.execute(select(threads.c.id).where(threads.c.id == thread_id).with_for_update())


def exists(tx: Tx, thread_id: str) -> bool:
    return tx.execute(select(threads.c.id).where(threads.c.id == thread_id)).first() is not None


ThreadRow = RowMapping

_QUEUED = select(func.count()).where(turns.c.thread_id == threads.c.id, in_line(turns)).scalar_subquery()
_LAST_FACT = (
    select(journal.c.at)
    .where(journal.c.thread_id == threads.c.id, journal.c.kind.not_in([note.value for note in NOTES]))
    .order_by(journal.c.id.desc())
    .limit(1)
    .scalar_subquery()
)
_THREAD = (
    select(
        threads.c.id.label("thread_id"),
        threads.c.agent,
        threads.c.arrivals.label("turns"),
        threads.c.created_at,
        threads.c.updated_at.label("last_turn_at"),
        _QUEUED.label("queued"),
        _LAST_FACT.label("last_fact_at"),
        runs.c.id.label("open_run"),
        runs.c.status.label("open_run_status"),
    )
    .select_from(threads)
    .outerjoin(runs, and_(runs.c.thread_id == threads.c.id, OPEN_RUNS))
)

_MESSAGES = select(journal, runs.c.agent).join(runs, runs.c.id == journal.c.run_id)
_MESSAGE_KINDS = [Checkpoint.USER_MESSAGE.value, Checkpoint.ASSISTANT_TURN.value]


def details(tx: Tx, thread_id: str) -> ThreadRow | None:
    return tx.execute(_THREAD.where(threads.c.id == thread_id)).mappings().first()


def latest(tx: Tx, *, limit: int, before: tuple[datetime, str] | None = None) -> Sequence[ThreadRow]:
    """Those with the newest turns first. `before`: the last turn's time and the id of the last on the page before."""
    page = _THREAD.order_by(threads.c.updated_at.desc(), threads.c.id.desc()).limit(limit)
    if before is not None:
        page = page.where(tuple_(threads.c.updated_at, threads.c.id) < before)
    return tx.execute(page).mappings().all()


def messages(tx: Tx, thread_id: str, *, limit: int, before: int | None = None) -> Sequence[ThreadRow]:
    """The last messages of a thread, or the last before one of them, in their order."""
    page = (
        _MESSAGES.where(journal.c.thread_id == thread_id, journal.c.kind.in_(_MESSAGE_KINDS), NOT_ROLLED_BACK)
        .order_by(journal.c.id.desc())
        .limit(limit)
    )
    if before is not None:
        page = page.where(journal.c.id < before)
    return list(reversed(tx.execute(page, {"thread_id": thread_id}).mappings().all()))
