"""The journal: checkpoints, append-only. Its first three kinds are the history of a thread."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import Row as Fetched
from sqlalchemy import and_, bindparam, insert, select

from chordage.orchestrator.core.records import Call, Checkpoint, Entry

from chordage.orchestrator.store import calls as call_rows
from chordage.orchestrator.store.schema import calls, journal
from chordage.orchestrator.store.tx import Tx

# A journal row to be written.
Row = dict[str, Any]

_CALL = [column.label(f"call_{column.name}") for column in call_rows.COLUMNS]
_HISTORY = (
    select(journal, *_CALL)
    .outerjoin(
        calls,
        and_(
            journal.c.kind == Checkpoint.ASSISTANT_TURN.value,
            calls.c.run_id == journal.c.run_id,
            calls.c.step == journal.c.step + 1,
        ),
    )
    .where(
        journal.c.thread_id == bindparam("thread_id"),
        journal.c.kind.in_([Checkpoint.USER_MESSAGE.value, Checkpoint.ASSISTANT_TURN.value]),
    )
    .order_by(journal.c.id, calls.c.place)
)


def entry(thread_id: str, run_id: str, step: int, kind: Checkpoint, body: dict[str, Any], at: datetime) -> Row:
    return {"thread_id": thread_id, "run_id": run_id, "step": step, "kind": kind.value, "body": body, "at": at}


def append(tx: Tx, rows: Sequence[Row]) -> None:
    tx.execute(insert(journal), list(rows))


def history(tx: Tx, thread_id: str) -> tuple[list[Entry], list[Call]]:
    """What was said on a thread, and every call with its result, in one statement."""
    entries: dict[int, Entry] = {}
    asked: list[Call] = []
    for row in tx.execute(_HISTORY, {"thread_id": thread_id}):
        if row.id not in entries:
            entries[row.id] = _from_row(row)
        if row.call_id is not None:
            asked.append(call_rows.from_row(row, "call_"))
    return list(entries.values()), asked


def of_run(tx: Tx, run_id: str) -> list[Entry]:
    return [
        _from_row(row) for row in tx.execute(select(journal).where(journal.c.run_id == run_id).order_by(journal.c.id))
    ]


def of_thread(tx: Tx, thread_id: str, limit: int) -> list[Entry]:
    found = select(journal).where(journal.c.thread_id == thread_id).order_by(journal.c.id.desc()).limit(limit)
    return [_from_row(row) for row in reversed(tx.execute(found).all())]


def _from_row(row: Fetched[Any]) -> Entry:
    return Entry(
        id=row.id, thread_id=row.thread_id, run_id=row.run_id, step=row.step, kind=Checkpoint(row.kind), body=row.body,
        at=row.at,
    )  # fmt: skip
