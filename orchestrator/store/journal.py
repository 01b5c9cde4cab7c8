"""The journal: checkpoints, append-only. Messages, replies and interruptions are the history of a thread."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement, and_, bindparam, func, or_, select

from chordage.orchestrator.core.records import Answer, Checkpoint, Entry
from chordage.orchestrator.core.status import CallStatus
from chordage.orchestrator.store.database import Tx
from chordage.orchestrator.store.predicates import has
from chordage.orchestrator.store.schema import calls, journal, threads
from chordage.orchestrator.store.statements import BulkInsert, PreparedStatement, readable_rows

# A journal row to be written.
Row = dict[str, Any]

_OF_CALL = ("id", "run_id", "step", "place", "ask_id", "status", "code", "content", "replayed_at")
_CALL = [calls.c[name].label(f"call_{name}") for name in _OF_CALL]
_SAID = (
    Checkpoint.USER_MESSAGE,
    Checkpoint.ASSISTANT_TURN,
    Checkpoint.CLIENT_MESSAGES,
    Checkpoint.CLIENT_STEERS,
    Checkpoint.RUN_WAITING,
    Checkpoint.RUN_INTERRUPTED,
    Checkpoint.OUTPUT_REFUSED,
    Checkpoint.COMPACTED,
    Checkpoint.COMPACTION_FAILED,
)
_GONE = journal.alias("gone")
_ROLLED_BACK = select(_GONE.c.run_id).where(
    _GONE.c.thread_id == bindparam("thread_id"), has(_GONE.c.kind, Checkpoint.ROLLED_BACK)
)
# What a run that was rolled back has said is no part of the history. Whether there is one an index of its own knows.
NOT_ROLLED_BACK = journal.c.run_id.not_in(_ROLLED_BACK)
_ENTRY = [column for column in journal.c if column.name != "upto"]
_summaries = journal.alias("summaries")
_REPLACED = (
    select(_summaries.c.upto)
    .where(
        _summaries.c.thread_id == bindparam("thread_id"),
        _summaries.c.upto.is_not(None),
        _summaries.c.run_id.not_in(_ROLLED_BACK),
    )
    .order_by(_summaries.c.upto.desc())  # each goes further than the one before
    .limit(1)
    .scalar_subquery()
)
_ASKED = select(threads.c.compact_asked).where(threads.c.id == bindparam("thread_id")).scalar_subquery()


def _history(*ask_for_calls: Checkpoint, wanted: ColumnElement[bool]) -> PreparedStatement:
    """Each entry that is wanted, and behind those of these kinds the calls of the step that follows it."""
    its_calls = and_(
        has(journal.c.kind, *ask_for_calls),
        calls.c.run_id == journal.c.run_id,
        calls.c.step == journal.c.step + 1,
    )
    found = select(*_ENTRY, *_CALL, _ASKED.label("asked")).select_from(journal).outerjoin(calls, its_calls)
    of_thread = journal.c.thread_id == bindparam("thread_id")
    in_full = journal.c.id > func.coalesce(_REPLACED, 0)
    in_order = (journal.c.id, calls.c.place, calls.c.generation)
    return PreparedStatement(found.where(of_thread, in_full, wanted, NOT_ROLLED_BACK).order_by(*in_order))


_HISTORY = _history(Checkpoint.ASSISTANT_TURN, Checkpoint.CLIENT_MESSAGES, wanted=has(journal.c.kind, *_SAID))
_WITH_PLANS = _history(
    Checkpoint.ASSISTANT_TURN,
    Checkpoint.CLIENT_MESSAGES,
    Checkpoint.PLAN,
    wanted=or_(
        has(journal.c.kind, *_SAID),
        and_(has(journal.c.kind, Checkpoint.PLAN), journal.c.run_id == bindparam("plans_of")),
    ),
)


def entry(thread_id: str, run_id: str, step: int, kind: Checkpoint, body: dict[str, Any], at: datetime) -> Row:
    return {"thread_id": thread_id, "run_id": run_id, "step": step, "kind": kind.value, "body": body, "at": at}


_INSERT = BulkInsert(journal, ("thread_id", "run_id", "step", "kind", "body", "at"))


def append(tx: Tx, rows: Sequence[Row]) -> None:
    _INSERT.send(tx, rows)


_INSERT_SUMMARY = BulkInsert(journal, ("thread_id", "run_id", "step", "kind", "body", "at", "upto"))


def append_summary(tx: Tx, row: Row) -> None:
    """From here on, a thread's history is read from behind what it stands for."""
    _INSERT_SUMMARY.send(tx, [{**row, "upto": row["body"]["upto"]}])


@dataclass(frozen=True, kw_only=True, slots=True)
class History:
    """What is said on a thread since what its newest summary stands for, that summary, and every call asked for."""

    entries: list[Entry]
    calls: list[Answer]
    asked: int  # how often somebody has asked for a summary


def history(tx: Tx, thread_id: str, *, plans_of: str | None = None) -> History:
    """In one statement; with the plans of one run, if asked for."""
    entries: dict[int, Entry] = {}
    answers: list[Answer] = []
    asked = 0
    statement = _HISTORY if plans_of is None else _WITH_PLANS
    binds = {"thread_id": thread_id, **({"plans_of": plans_of} if plans_of else {})}
    for row in statement.rows(tx, binds):
        if row["id"] not in entries:
            entries[row["id"]] = _from_row(row)
        if row["call_id"] is not None:
            answers.append(_answer(row))
        asked = row["asked"] or 0
    return History(entries=list(entries.values()), calls=answers, asked=asked)


def _answer(row: Mapping[Any, Any]) -> Answer:
    fields = {name: row[f"call_{name}"] for name in _OF_CALL}
    return Answer(**{**fields, "status": CallStatus(fields["status"])})


def of_run(tx: Tx, run_id: str) -> list[Entry]:
    found = select(journal).where(journal.c.run_id == run_id).order_by(journal.c.id)
    return readable_rows(tx.execute(found).mappings(), _from_row)


def was_refused(tx: Tx, run_id: str) -> bool:
    """Whether an answer to the last message of this run was refused already."""
    words = (Checkpoint.USER_MESSAGE, Checkpoint.CLIENT_MESSAGES, Checkpoint.CLIENT_STEERS)
    marks = has(journal.c.kind, *words, Checkpoint.OUTPUT_REFUSED)
    found = select(journal.c.kind).where(journal.c.run_id == run_id, marks).order_by(journal.c.id.desc()).limit(1)
    return tx.execute(found).scalar() == Checkpoint.OUTPUT_REFUSED.value


def at_step(tx: Tx, run_id: str, step: int, kind: Checkpoint) -> Entry | None:
    found = select(journal).where(journal.c.run_id == run_id, journal.c.step == step, journal.c.kind == kind.value)
    row = tx.execute(found).mappings().first()
    return _from_row(row) if row else None


def of_thread(tx: Tx, thread_id: str, limit: int) -> list[Entry]:
    found = select(journal).where(journal.c.thread_id == thread_id).order_by(journal.c.id.desc()).limit(limit)
    return readable_rows(reversed(tx.execute(found).mappings().all()), _from_row)


def _from_row(row: Mapping[Any, Any]) -> Entry:
    kind = Checkpoint(row["kind"])
    names = ("id", "thread_id", "run_id", "step", "body", "at")
    return Entry(kind=kind, **{name: row[name] for name in names})
