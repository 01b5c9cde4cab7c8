"""The journal: checkpoints, append-only. Messages, replies and interruptions are the history of a thread."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement, and_, bindparam, func, or_, select

from chordage.orchestrator.core.records import Answer, Checkpoint, Entry, History
from chordage.orchestrator.core.status import CallStatus
from chordage.orchestrator.store.database import Tx
from chordage.orchestrator.store.predicates import has
from chordage.orchestrator.store.schema import calls, journal, threads
from chordage.orchestrator.store.statements import BulkInsert, PreparedStatement, readable_rows

# A journal row to write.
Row = dict[str, Any]

_OF_CALL = ("id", "run_id", "step", "place", "ask_id", "status", "code", "content", "replayed_at")
_CALL = [calls.c[name].label(f"call_{name}") for name in _OF_CALL]
HISTORY_KINDS = (
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
_ROLLBACKS = journal.alias("gone")
_ROLLED_BACK = select(_ROLLBACKS.c.run_id).where(
    _ROLLBACKS.c.thread_id == bindparam("thread_id"), has(_ROLLBACKS.c.kind, Checkpoint.ROLLED_BACK)
)
# A run that was rolled back is not part of the history. A partial index finds such runs.
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
    .order_by(_summaries.c.upto.desc())  # each replaces more than the one before
    .limit(1)
    .scalar_subquery()
)
_COMPACTIONS = select(threads.c.compact_asked).where(threads.c.id == bindparam("thread_id")).scalar_subquery()


def _history(*ask_for_calls: Checkpoint, wanted: ColumnElement[bool]) -> PreparedStatement:
    """Each wanted entry, and after those of these kinds the calls of the following step."""
    its_calls = and_(
        has(journal.c.kind, *ask_for_calls),
        calls.c.run_id == journal.c.run_id,
        calls.c.step == journal.c.step + 1,
    )
    joined = select(*_ENTRY, *_CALL, _COMPACTIONS.label("asked")).select_from(journal).outerjoin(calls, its_calls)
    of_thread = journal.c.thread_id == bindparam("thread_id")
    in_full = journal.c.id > func.coalesce(_REPLACED, 0)
    in_order = (journal.c.id, calls.c.place, calls.c.generation)
    return PreparedStatement(joined.where(of_thread, in_full, wanted, NOT_ROLLED_BACK).order_by(*in_order))


_HISTORY = _history(Checkpoint.ASSISTANT_TURN, Checkpoint.CLIENT_MESSAGES, wanted=has(journal.c.kind, *HISTORY_KINDS))
_WITH_PLANS = _history(
    Checkpoint.ASSISTANT_TURN,
    Checkpoint.CLIENT_MESSAGES,
    Checkpoint.PLAN,
    wanted=or_(
        has(journal.c.kind, *HISTORY_KINDS),
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
    """From now on the history of the thread begins behind the rows that the summary replaces."""
    _INSERT_SUMMARY.send(tx, [{**row, "upto": row["body"]["upto"]}])


def history(tx: Tx, thread_id: str, *, plans_of: str | None = None) -> History:
    """In one statement. `plans_of`: with the plans of this run."""
    return send_history(tx, thread_id, plans_of=plans_of)()


def send_history(tx: Tx, thread_id: str, *, plans_of: str | None = None) -> Callable[[], History]:
    """As `history`; returns a function that reads the result, which may come with the commit."""
    statement = _HISTORY if plans_of is None else _WITH_PLANS
    binds = {"thread_id": thread_id, **({"plans_of": plans_of} if plans_of else {})}
    sent = statement.send(tx, binds)
    return lambda: _history_from(sent.rows())


def _history_from(rows: Iterable[Mapping[Any, Any]]) -> History:
    entries: dict[int, Entry] = {}
    answers: list[Answer] = []
    asked = 0
    for row in rows:
        if row["id"] not in entries:
            entries[row["id"]] = _from_row(row)
        if row["call_id"] is not None:
            answers.append(_answer(row))
        asked = row["asked"] or 0
    return History(entries=list(entries.values()), calls=answers, asked=asked)


def unread_history(rows: Iterable[Row]) -> list[Entry]:
    """What history will have of rows that are just being written."""
    known = ((Checkpoint(row["kind"]), row) for row in rows)
    return [_from_row({**row, "id": 0}) for kind, row in known if kind in HISTORY_KINDS]


def _answer(row: Mapping[Any, Any]) -> Answer:
    fields = {name: row[f"call_{name}"] for name in _OF_CALL}
    return Answer(**{**fields, "status": CallStatus(fields["status"])})


def of_run(tx: Tx, run_id: str) -> list[Entry]:
    entries = select(journal).where(journal.c.run_id == run_id).order_by(journal.c.id)
    return readable_rows(tx.execute(entries).mappings(), _from_row)


def was_refused(tx: Tx, run_id: str) -> bool:
    """Whether an output for the last message of this run was refused already."""
    messages = (Checkpoint.USER_MESSAGE, Checkpoint.CLIENT_MESSAGES, Checkpoint.CLIENT_STEERS)
    kinds = has(journal.c.kind, *messages, Checkpoint.OUTPUT_REFUSED)
    entries = select(journal.c.kind).where(journal.c.run_id == run_id, kinds).order_by(journal.c.id.desc()).limit(1)
    return tx.execute(entries).scalar() == Checkpoint.OUTPUT_REFUSED.value


def count_notes(tx: Tx, subject: str, kind: Checkpoint) -> int:
    """A note that may come several times about its subject has this as its step: the next one's number."""
    counted = select(func.count()).where(journal.c.run_id == subject, journal.c.kind == kind.value)
    return tx.execute(counted.select_from(journal)).scalar_one()


def at_step(tx: Tx, run_id: str, step: int, kind: Checkpoint) -> Entry | None:
    entries = select(journal).where(journal.c.run_id == run_id, journal.c.step == step, journal.c.kind == kind.value)
    row = tx.execute(entries).mappings().first()
    return _from_row(row) if row else None


def of_thread(tx: Tx, thread_id: str, limit: int) -> list[Entry]:
    entries = select(journal).where(journal.c.thread_id == thread_id).order_by(journal.c.id.desc()).limit(limit)
    return readable_rows(reversed(tx.execute(entries).mappings().all()), _from_row)


def _from_row(row: Mapping[Any, Any]) -> Entry:
    kind = Checkpoint(row["kind"])
    names = ("id", "thread_id", "run_id", "step", "body", "at")
    return Entry(kind=kind, **{name: row[name] for name in names})


def history_before(tx: Tx, thread_id: str, entry_id: int, limit: int) -> list[Entry]:
    """The last entries of the history before a journal row, in their order; without runs that were rolled back."""
    kinds = journal.c.kind.in_([kind.value for kind in HISTORY_KINDS])
    entries = (
        select(*_ENTRY)
        .where(journal.c.thread_id == thread_id, journal.c.id < entry_id, kinds, NOT_ROLLED_BACK)
        .order_by(journal.c.id.desc())
        .limit(limit)
    )
    return readable_rows(reversed(tx.execute(entries, {"thread_id": thread_id}).mappings().all()), _from_row)
