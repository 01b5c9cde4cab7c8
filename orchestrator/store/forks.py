"""What a fork copies into a new thread: the journal rows of a conversation up to a point, their runs and calls."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement, RowMapping, func, or_, select

from chordage.orchestrator.core.model import COUNTS
from chordage.orchestrator.core.reasons import Reason
from chordage.orchestrator.core.records import Checkpoint
from chordage.orchestrator.core.status import OPEN_CALL, CallStatus, RunStatus
from chordage.orchestrator.store import journal as journal_rows
from chordage.orchestrator.store.database import Tx
from chordage.orchestrator.store.journal import HISTORY_KINDS, NOT_ROLLED_BACK
from chordage.orchestrator.store.predicates import has
from chordage.orchestrator.store.schema import calls, journal, runs, threads
from chordage.orchestrator.store.statements import BulkInsert, insert_or

Copied = RowMapping
NOT_COPIED = "This call belongs to the thread that this one was forked from, and had not ended there."
_OF_HISTORY = (has(journal.c.kind, *HISTORY_KINDS), NOT_ROLLED_BACK)
_RUN_COLUMNS = tuple(column.name for column in runs.c)
_CALL_COLUMNS = tuple(column.name for column in calls.c)
_INSERT_RUNS = BulkInsert(runs, _RUN_COLUMNS)
_INSERT_CALLS = BulkInsert(calls, _CALL_COLUMNS)


def agent_of(tx: Tx, thread_id: str) -> str | None:
    agent: str | None = tx.execute(select(threads.c.agent).where(threads.c.id == thread_id)).scalar()
    return agent


def newest_entry(tx: Tx, thread_id: str) -> int | None:
    return _greatest(tx, thread_id)


def entry_upto(tx: Tx, thread_id: str, position: int) -> int | None:
    """The entry of the conversation at this position; None: there is none."""
    return _greatest(tx, thread_id, journal.c.id == position)


def first_entry_of(tx: Tx, run_id: str) -> int:
    """The message that it started with, or the first journal row that it wrote."""
    position: int | None = tx.execute(select(func.min(journal.c.id)).where(journal.c.run_id == run_id)).scalar()
    return position or 0


def last_entry_of_step(tx: Tx, thread_id: str, run_id: str, step: int) -> int | None:
    """The last entry that the run wrote up to the end of this step."""
    return _greatest(tx, thread_id, journal.c.run_id == run_id, journal.c.step <= step)


def _greatest(tx: Tx, thread_id: str, *where: ColumnElement[bool]) -> int | None:
    entries = select(func.max(journal.c.id)).where(journal.c.thread_id == thread_id, *_OF_HISTORY, *where)
    position: int | None = tx.execute(entries, {"thread_id": thread_id}).scalar()
    return position


def create_thread(tx: Tx, thread_id: str, source: str, agent: str, now: datetime) -> bool:
    """False: there is one of that id."""
    row = {"id": thread_id, "agent": agent, "arrivals": 0, "created_at": now, "updated_at": now, "fork_of": source}
    made = insert_or(tx.dialect.name, threads).values(row).on_conflict_do_nothing().returning(threads.c.id)
    return tx.execute(made).first() is not None


def conversation(tx: Tx, thread_id: str, upto: int, limit: int) -> Sequence[Copied]:
    """As a model would read it at that point: the newest summary until then, and what it does not replace. No more than
    `limit` rows.
    """
    of_thread = (journal.c.thread_id == thread_id, journal.c.id <= upto, *_OF_HISTORY)
    binds = {"thread_id": thread_id}
    summaries = select(journal.c.id, journal.c.upto).where(*of_thread, journal.c.upto.is_not(None))
    summary = tx.execute(summaries.order_by(journal.c.upto.desc()).limit(1), binds).first()
    replaced, summary_id = (summary.upto, summary.id) if summary else (0, 0)
    kinds = journal.c.kind.not_in([Checkpoint.COMPACTED.value, Checkpoint.COMPACTION_FAILED.value])
    rows = select(journal).where(*of_thread, journal.c.id > replaced, or_(kinds, journal.c.id == summary_id))
    return tx.execute(rows.order_by(journal.c.id).limit(limit), binds).mappings().all()


def copy(
    tx: Tx, entries: Sequence[Copied], thread_id: str, run_ids: Mapping[str, str], call_ids: Mapping[str, str]
) -> None:
    """`run_ids` and `call_ids`: the new id of each that was there before. In their order."""
    before: list[dict[str, Any]] = []
    for entry in entries:
        kind, body = Checkpoint(entry["kind"]), entry["body"]
        if kind is Checkpoint.RUN_WAITING:
            body = {**body, "calls": [call_ids[call] for call in body["calls"] if call in call_ids]}
        if kind is Checkpoint.COMPACTED:
            body = {**body, "upto": 0}  # nothing that it replaces is here
        row = journal_rows.entry(thread_id, run_ids[entry["run_id"]], entry["step"], kind, body, entry["at"])
        if kind is Checkpoint.COMPACTED:
            journal_rows.append(tx, before)
            journal_rows.append_summary(tx, row)
            before = []
        else:
            before.append(row)
    journal_rows.append(tx, before)


def copy_runs(tx: Tx, run_ids: Mapping[str, str], thread_id: str, now: datetime) -> None:
    """They are done, count for no budget and no usage, and belong to no tree."""
    rows = []
    for row in tx.execute(select(runs).where(runs.c.id.in_(sorted(run_ids)))).mappings():
        ended = {"status": RunStatus.DONE.value, "ended_at": row["ended_at"] or now}
        ended["reason"] = row["reason"] if row["ended_at"] else Reason.NATURAL_END.value
        idle = dict.fromkeys(("claim_token", "claim_worker", "lease_until", "place", "rested_since", "replay_from"))
        idle |= dict.fromkeys(("kept_reason", "kept_code", "kept_detail", "parent_run", "parent_call", "root_run"))
        idle |= dict.fromkeys(("root_thread", "path", "max_depth", "moved_by", "fork_of"))
        counts = {f"{of}{name}": 0 for of in ("", "children_") for name in COUNTS}
        counts |= dict.fromkeys(("suspended", "steers", "stalled", "children"), 0)
        rows.append({**row, **idle, **counts, **ended, "id": run_ids[row["id"]], "thread_id": thread_id})
    _INSERT_RUNS.send(tx, rows)


def calls_of(tx: Tx, rounds: Collection[tuple[str, int]]) -> list[Copied]:
    """With their whole results."""
    by_run: dict[str, set[int]] = {}
    for run_id, step in rounds:
        by_run.setdefault(run_id, set()).add(step)
    rows: list[Copied] = []
    for run_id, steps in sorted(by_run.items()):
        of_run = select(calls).where(calls.c.run_id == run_id, calls.c.step.in_(sorted(steps)))
        rows += tx.execute(of_run.order_by(calls.c.step, calls.c.place, calls.c.generation)).mappings().all()
    return rows


def copy_calls(
    tx: Tx,
    rows: Sequence[Copied],
    thread_id: str,
    run_ids: Mapping[str, str],
    call_ids: Mapping[str, str],
    now: datetime,
) -> None:
    """A call that has not ended is cancelled in the copy: only its own thread carries it out."""
    copies = []
    for row in rows:
        own = {
            **row, "id": call_ids[row["id"]], "run_id": run_ids[row["run_id"]], "thread_id": thread_id,
            "claim_token": None, "lease_until": None, "suspension_id": None,
        }  # fmt: skip
        if row["status"] in {status.value for status in OPEN_CALL}:
            own |= {"status": CallStatus.CANCELLED.value, "code": "forked", "content": NOT_COPIED, "ended_at": now}
        copies.append(own)
    _INSERT_CALLS.send(tx, copies)
