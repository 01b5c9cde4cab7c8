"""Threads: where turns line up, what runs on them, and their messages. Never more than a page is read."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import RowMapping, and_, bindparam, func, select, tuple_, update

from chordage.orchestrator.core.records import NOTES, Checkpoint
from chordage.orchestrator.store.database import Tx
from chordage.orchestrator.store.journal import NOT_ROLLED_BACK
from chordage.orchestrator.store.predicates import OPEN_RUNS, in_line, threads_in_space
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


ThreadPlace = tuple[datetime, str]  # the time of the last turn, and the id
LOOKED_AT = 20_000  # threads that a page of one agent looks at


def latest(
    tx: Tx, *, limit: int, space: str | None = None, agent: str | None = None, before: ThreadPlace | None = None
) -> tuple[Sequence[ThreadRow], ThreadPlace | None]:
    """Those with the newest turns first, of one space or agent, and the place behind which the next page begins.
    Threads of other agents are passed over, LOOKED_AT of them at most: so such a page may be short.
    """
    place = tuple_(threads.c.updated_at, threads.c.id)
    bounds = [threads_in_space(space)] if space is not None else []
    bounds += [place < before] if before is not None else []
    order = (threads.c.updated_at.desc(), threads.c.id.desc())
    conditions = [threads.c.agent == agent] if agent is not None else []
    lowest = None
    if conditions:
        window = select(threads.c.updated_at, threads.c.id).where(*bounds).order_by(*order).limit(LOOKED_AT).subquery()
        number = tx.execute(select(func.count()).select_from(window)).scalar_one()
        if number == LOOKED_AT:
            edge = tx.execute(select(window).order_by(window.c.updated_at, window.c.id).limit(1)).one()
            lowest = (edge[0], edge[1])
            bounds.append(place >= lowest)
    page = _THREAD.where(*bounds, *conditions).order_by(*order).limit(limit + 1)
    rows = tx.execute(page).mappings().all()
    if len(rows) > limit:
        end = rows[limit - 1]
        return rows[:limit], (end["last_turn_at"], end["thread_id"])
    return rows, lowest


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
