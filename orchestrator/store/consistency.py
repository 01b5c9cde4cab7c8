"""Reads all rows of some threads, or of every thread, for core/consistency.py to judge. For tests and drills."""

from __future__ import annotations

from collections.abc import Collection

from sqlalchemy import Column, ColumnElement, select, true

from chordage.orchestrator.core.consistency import StoredRows
from chordage.orchestrator.core.status import RunStatus, TurnStatus
from chordage.orchestrator.store import journal as history
from chordage.orchestrator.store.database import Tx
from chordage.orchestrator.store.schema import calls, journal, runs, suspensions, turns

DONE_RUN = select(runs.c.id).where(runs.c.status == RunStatus.DONE.value)


def stored_rows(tx: Tx, threads: Collection[str] | None = None) -> StoredRows:
    """`threads`: None for all there are."""

    def of(column: Column[str]) -> ColumnElement[bool]:
        return true() if threads is None else column.in_(sorted(threads))

    child = turns.c
    unwanted = select(child.id).where(
        child.parent_run.in_(DONE_RUN), child.status != TurnStatus.DONE.value, child.cancel_asked.is_(None)
    )
    all_turns = tx.execute(select(turns).where(of(turns.c.thread_id))).all()
    return StoredRows(
        turns=all_turns,
        runs=tx.execute(select(runs).where(of(runs.c.thread_id))).all(),
        calls=tx.execute(select(calls).where(of(calls.c.thread_id))).all(),
        entries=tx.execute(select(journal).where(of(journal.c.thread_id)).order_by(journal.c.id)).all(),
        questions=tx.execute(select(suspensions).where(of(suspensions.c.thread_id))).all(),
        unwanted_children=tx.execute(unwanted.where(of(turns.c.root_thread))).scalars().all(),
        histories={thread: history.history(tx, thread) for thread in sorted({turn.thread_id for turn in all_turns})},
    )
