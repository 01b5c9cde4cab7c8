"""What readers ask of threads: what lines up and runs on them, and what was said. Never more than a page is read."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime

from sqlalchemy import RowMapping, and_, func, select, tuple_

from chordage.orchestrator.core.records import NOTES, Call, Checkpoint
from chordage.orchestrator.store.calls import COLUMNS as CALL_COLUMNS
from chordage.orchestrator.store.calls import from_row as call_from_row
from chordage.orchestrator.store.journal import STANDS
from chordage.orchestrator.store.predicates import OPEN_RUNS, in_line
from chordage.orchestrator.store.schema import calls, journal, runs, threads, turns
from chordage.orchestrator.store.tx import Tx

Row = RowMapping

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

_SPOKEN = select(journal, runs.c.agent).join(runs, runs.c.id == journal.c.run_id)
_SPOKEN_KINDS = [Checkpoint.USER_MESSAGE.value, Checkpoint.ASSISTANT_TURN.value]


def one(tx: Tx, thread_id: str) -> Row | None:
    return tx.execute(_THREAD.where(threads.c.id == thread_id)).mappings().first()


def latest(tx: Tx, *, limit: int, before: tuple[datetime, str] | None = None) -> Sequence[Row]:
    """Those with the newest turns first; `before` is the last turn's time, and the id, of the last one seen."""
    found = _THREAD.order_by(threads.c.updated_at.desc(), threads.c.id.desc()).limit(limit)
    if before is not None:
        found = found.where(tuple_(threads.c.updated_at, threads.c.id) < before)
    return tx.execute(found).mappings().all()


def spoken(tx: Tx, thread_id: str, *, limit: int, before: int | None = None) -> Sequence[Row]:
    """The last things said on a thread, or the last before one of them, in the order they were said."""
    found = (
        _SPOKEN.where(journal.c.thread_id == thread_id, journal.c.kind.in_(_SPOKEN_KINDS), STANDS)
        .order_by(journal.c.id.desc())
        .limit(limit)
    )
    if before is not None:
        found = found.where(journal.c.id < before)
    return list(reversed(tx.execute(found, {"thread_id": thread_id}).mappings().all()))


def calls_of(tx: Tx, rounds: Iterable[tuple[str, int]]) -> list[Call]:
    """The calls of these rounds, each given by its run and its step."""
    wanted = list(rounds)
    if not wanted:
        return []
    of_runs = calls.c.run_id.in_(sorted({run_id for run_id, _ in wanted}))  # what SQLite finds an index for
    found = select(*CALL_COLUMNS).where(of_runs, tuple_(calls.c.run_id, calls.c.step).in_(wanted))
    rows = tx.execute(found.order_by(calls.c.run_id, calls.c.step, calls.c.place)).mappings()
    return [call_from_row(dict(row)) for row in rows]
