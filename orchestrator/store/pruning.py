"""Deletes old turns with all their rows: the one place that names every table which has rows of a turn.

A turn is deleted together with the run that it started, in one transaction, and only if

- it is done, and so are its run, the root of its tree and its sub-agents, all of them before the limit;
- nothing that is kept needs it: a delivery that is not sent yet, a fork of its run, the record of a task or chore, a
  turn that it was merged into;
- no prompt needs it: its thread has been idle since before the limit, or a summary replaces all that its run wrote.

Failure: a message comes for a thread that has just been judged idle. Mechanism: an arrival updates the row of its
thread before it inserts its turn, and this module locks that row before it judges. A thread or a turn that another
transaction has locked is left for a later pass. A thread goes with its last turn.

Not promised: that a thread whose pruning was interrupted is whole. It begins later, as after any prune of a live
thread, with a whole run.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import (
    Column,
    ColumnElement,
    FromClause,
    Select,
    Table,
    and_,
    delete,
    func,
    literal_column,
    or_,
    select,
)

from chordage.orchestrator.core.phases import Scope
from chordage.orchestrator.core.pruning import PruneLimits
from chordage.orchestrator.core.records import Checkpoint
from chordage.orchestrator.core.status import OPEN_RUN, TurnStatus
from chordage.orchestrator.store import agent_versions
from chordage.orchestrator.store.database import Tx
from chordage.orchestrator.store.journal import HISTORY_KINDS
from chordage.orchestrator.store.predicates import has, in_code_points, in_line, still
from chordage.orchestrator.store.schema import (
    bulk_jobs,
    bulk_refusals,
    calls,
    decisions,
    executions,
    forks,
    journal,
    ops,
    outbox,
    plugin_state,
    pulse,
    refusals,
    runs,
    stepped,
    suspensions,
    takeovers,
    threads,
    turns,
)

IDS = 1_000  # of one statement

_child = turns.alias("child")
_target = turns.alias("target")
_waiting = turns.alias("waiting")
_open = runs.alias("open")
_written = journal.alias("written")
_summary = journal.alias("summary")
_rollback = journal.alias("rollback")
_newest = journal.alias("newest")


def _exists(row: FromClause, *where: ColumnElement[bool]) -> ColumnElement[bool]:
    """A scalar subquery, not an EXISTS: PostgreSQL would turn that into a join with the whole table."""
    found: Select[Any] = select(literal_column("1")).select_from(row).where(*where).limit(1)
    return found.correlate_except(row).scalar_subquery().is_not(None)


def _unfinished(before: datetime) -> list[ColumnElement[bool]]:
    """What keeps a turn whatever its thread does."""
    trees = runs.c.id.in_([turns.c.run_id, turns.c.root_run, turns.c.parent_run])
    delivered = func.coalesce(outbox.c.sent_at, outbox.c.dead_at)
    return [
        _exists(runs, trees, or_(runs.c.ended_at.is_(None), runs.c.ended_at >= before)),
        _exists(
            _child,
            _child.c.parent_run == turns.c.run_id,
            or_(_child.c.done_at.is_(None), _child.c.done_at >= before),
        ),
        _exists(outbox, outbox.c.turn_id == turns.c.id, or_(delivered.is_(None), delivered >= before)),
        _exists(forks, forks.c.run_id == turns.c.run_id),
        _exists(_target, _target.c.id == turns.c.into_turn, _target.c.done_at.is_(None)),
        turns.c.id.in_(select(pulse.c.turn_id).where(pulse.c.turn_id.is_not(None))),
    ]


def _is_idle(thread_id: ColumnElement[str], before: datetime) -> ColumnElement[bool]:
    """Nothing happened on it since, and nothing is open. The arrival of a turn is in the journal too."""
    last_fact = (
        select(_newest.c.at)
        .where(_newest.c.thread_id == thread_id)
        .order_by(_newest.c.id.desc())
        .limit(1)
        .correlate_except(_newest)
        .scalar_subquery()
    )
    return and_(
        or_(last_fact.is_(None), last_fact < before),
        ~_exists(_waiting, _waiting.c.thread_id == thread_id, in_line(_waiting)),
        ~_exists(_open, _open.c.thread_id == thread_id, has(_open.c.status, *sorted(OPEN_RUN))),
    )


def _is_summarised() -> ColumnElement[bool]:
    """As the history of a thread is read: store/journal.py."""
    rolled_back = (
        select(_rollback.c.run_id)
        .where(_rollback.c.thread_id == turns.c.thread_id, has(_rollback.c.kind, Checkpoint.ROLLED_BACK))
        .correlate(turns)
    )
    of_run = (_written.c.run_id == turns.c.run_id, has(_written.c.kind, *HISTORY_KINDS))
    last = select(func.max(_written.c.id)).where(*of_run).correlate(turns)
    replaced = (
        select(_summary.c.upto)
        .where(
            _summary.c.thread_id == turns.c.thread_id, _summary.c.upto.is_not(None),
            _summary.c.run_id.not_in(rolled_back),
        )
        .order_by(_summary.c.upto.desc())
        .limit(1)
        .correlate(turns)
    )  # fmt: skip
    return func.coalesce(last.scalar_subquery(), 0) <= func.coalesce(replaced.scalar_subquery(), -1)


def _conditions(limits: PruneLimits) -> list[ColumnElement[bool]]:
    old = [still(turns.c.status, TurnStatus.DONE), turns.c.done_at < limits.before]
    old.append(or_(turns.c.dedupe_key.is_(None), turns.c.done_at < limits.keyed_before))
    if limits.dispositions:
        old.append(turns.c.disposition.in_(sorted(limits.dispositions)))
    kept = [~condition for condition in _unfinished(limits.before)]
    unread = or_(turns.c.run_id.is_(None), _is_idle(turns.c.thread_id, limits.before), _is_summarised())
    return [*old, *kept, unread]


@dataclass(frozen=True, kw_only=True, slots=True)
class Window:
    """Some of the oldest turns. `last`: the last that was looked at; None: there are none so old any more."""

    turn_ids: Sequence[str]
    last: str | None


def oldest(tx: Tx, limits: PruneLimits, after: str, looks: int) -> Window:
    """Of the next `looks` turns those that may go. Ids grow with time, so the primary key has the oldest first."""
    ids = select(turns.c.id, turns.c.queued_at).where(turns.c.id > after).order_by(turns.c.id).limit(looks)
    seen = [row.id for row in tx.execute(ids) if row.queued_at < limits.before]
    if not seen:
        return Window(turn_ids=(), last=None)
    fitting = select(turns.c.id).where(turns.c.id > after, turns.c.id <= seen[-1], *_conditions(limits))
    return Window(turn_ids=tx.execute(fitting.order_by(turns.c.id)).scalars().all(), last=seen[-1])


@dataclass(frozen=True, kw_only=True, slots=True)
class Subjects:
    """Whose rows are meant."""

    turn_ids: Sequence[str]
    run_ids: Sequence[str]  # that these turns started
    call_ids: Sequence[str]
    suspension_ids: Sequence[str]
    decision_ids: Sequence[str]

    def places(self) -> Iterator[tuple[Table, Column[Any], Sequence[str], ColumnElement[bool] | None]]:
        """Table, the column that is in these ids, and a further condition. Rows go before those that they point to."""
        of_call, of_run = plugin_state.c.scope == Scope.CALL.value, plugin_state.c.scope == Scope.RUN.value
        notes = [*self.turn_ids, *self.run_ids, *self.suspension_ids, *self.decision_ids]
        yield plugin_state, plugin_state.c.owner, self.call_ids, of_call
        yield plugin_state, plugin_state.c.owner, self.run_ids, of_run
        yield decisions, decisions.c.suspension_id, self.suspension_ids, None
        yield suspensions, suspensions.c.id, self.suspension_ids, None
        for of_run_alone in (takeovers, executions):
            yield of_run_alone, of_run_alone.c.run_id, self.run_ids, None
        yield calls, calls.c.id, self.call_ids, None
        yield journal, journal.c.run_id, notes, None
        for table in (stepped, ops, forks, outbox):
            yield table, table.c.turn_id, self.turn_ids, None
        yield runs, runs.c.id, self.run_ids, None
        yield turns, turns.c.id, self.turn_ids, None


def subjects_of(tx: Tx, turn_ids: Sequence[str], run_ids: Sequence[str]) -> Subjects:
    of_runs = _ids(tx, suspensions.c.id, suspensions.c.run_id, run_ids)
    return Subjects(
        turn_ids=turn_ids, run_ids=run_ids, call_ids=_ids(tx, calls.c.id, calls.c.run_id, run_ids),
        suspension_ids=of_runs, decision_ids=_ids(tx, decisions.c.id, decisions.c.suspension_id, of_runs),
    )  # fmt: skip


def in_lots(ids: Sequence[str]) -> Iterator[Sequence[str]]:
    for start in range(0, len(ids), IDS):
        yield ids[start : start + IDS]


def _ids(tx: Tx, wanted: Column[str], column: Column[str], values: Sequence[str]) -> list[str]:
    found: list[str] = []
    for lot in in_lots(values):
        found += tx.execute(select(wanted).where(column.in_(lot))).scalars()
    return found


def _started(tx: Tx, turn_ids: Sequence[str], run_ids: Collection[str]) -> dict[str, str]:
    """The run that each of these turns started: a turn that was steered into a run goes without it."""
    started = select(runs.c.turn_id, runs.c.id).where(runs.c.id.in_(sorted(run_ids)), runs.c.turn_id.in_(turn_ids))
    return {row.turn_id: row.id for row in tx.execute(started)}


def _lock(tx: Tx, key: Column[str], ids: Sequence[str]) -> list[str]:
    """Those that no other transaction has locked."""
    rows = select(key).where(key.in_(ids)).order_by(in_code_points(tx, key))
    return list(tx.execute(rows.with_for_update(skip_locked=True)).scalars())


def count(tx: Tx, turn_ids: Sequence[str]) -> Counter[str]:
    """The rows that would go with these turns, by table. Threads are not among them."""
    run_ids = {run_id for run_id in _ids(tx, turns.c.run_id, turns.c.id, turn_ids) if run_id is not None}
    started = _started(tx, turn_ids, run_ids)
    rows: Counter[str] = Counter()
    for table, column, ids, condition in subjects_of(tx, turn_ids, list(started.values())).places():
        for lot in in_lots(ids):
            where = [column.in_(lot)] if condition is None else [column.in_(lot), condition]
            rows[table.name] += tx.execute(select(func.count()).select_from(table).where(*where)).scalar_one()
    return rows


def remove(tx: Tx, limits: PruneLimits, turn_ids: Sequence[str]) -> Counter[str]:
    """Delete those of these turns that may still go; and their threads, if nothing is left of them."""
    homes = sorted(set(_ids(tx, turns.c.thread_id, turns.c.id, turn_ids)))
    thread_ids = _lock(tx, threads.c.id, homes)
    fitting = select(turns.c.id, turns.c.run_id).where(
        turns.c.id.in_(turn_ids), turns.c.thread_id.in_(thread_ids), *_conditions(limits)
    )
    rows = tx.execute(fitting.order_by(turns.c.id)).all()
    started = _started(tx, [row.id for row in rows], {row.run_id for row in rows if row.run_id})
    run_ids = set(_lock(tx, runs.c.id, sorted(started.values(), reverse=True)))
    free = [row.id for row in rows if row.id not in started or started[row.id] in run_ids]
    gone = _lock(tx, turns.c.id, free)
    pruned = delete_rows(tx, subjects_of(tx, gone, [started[turn_id] for turn_id in gone if turn_id in started]))
    pruned += _remove_threads(tx, limits, thread_ids)
    return pruned


def delete_rows(tx: Tx, subjects: Subjects) -> Counter[str]:
    rows: Counter[str] = Counter()
    for table, column, ids, condition in subjects.places():
        for lot in in_lots(ids):
            where = [column.in_(lot)] if condition is None else [column.in_(lot), condition]
            rows[table.name] += tx.execute(delete(table).where(*where)).rowcount
    return rows


def _remove_threads(tx: Tx, limits: PruneLimits, thread_ids: Sequence[str]) -> Counter[str]:
    """Those of which no turn is left; a thread that began as a fork has runs that no turn of it started."""
    any_turn = _exists(turns, turns.c.thread_id == threads.c.id)
    idle = _is_idle(threads.c.id, limits.before)
    empty = list(tx.execute(select(threads.c.id).where(threads.c.id.in_(thread_ids), ~any_turn, idle)).scalars())
    if not empty:
        return Counter()
    copied = select(runs.c.id).join(journal, journal.c.run_id == runs.c.id).where(journal.c.thread_id.in_(empty))
    own = copied.where(runs.c.thread_id == journal.c.thread_id).distinct()
    rows = delete_rows(tx, subjects_of(tx, [], list(tx.execute(own).scalars())))
    of_thread = (plugin_state.c.scope == Scope.THREAD.value, plugin_state.c.owner.in_(empty))
    rows["plugin_state"] += tx.execute(delete(plugin_state).where(*of_thread)).rowcount
    for table, column in ((journal, journal.c.thread_id), (threads, threads.c.id)):
        rows[table.name] += tx.execute(delete(table).where(column.in_(empty))).rowcount
    return rows


# Lists that belong to no turn.


def old_lists(tx: Tx, before: datetime, limit: int) -> tuple[Sequence[str], Sequence[int]]:
    """Bulk jobs that ended, and refusals of polled channels, the oldest first."""
    first_jobs = select(bulk_jobs.c.id, bulk_jobs.c.ended_at).order_by(bulk_jobs.c.id).limit(limit)
    first_refusals = select(refusals.c.id, refusals.c.at).order_by(refusals.c.id).limit(limit)
    ended = [row.id for row in tx.execute(first_jobs) if row.ended_at is not None and row.ended_at < before]
    return ended, [row.id for row in tx.execute(first_refusals) if row.at < before]


def remove_lists(tx: Tx, job_ids: Sequence[str], refusal_ids: Sequence[int]) -> Counter[str]:
    rows: Counter[str] = Counter()
    for table, column in ((bulk_refusals, bulk_refusals.c.job_id), (bulk_jobs, bulk_jobs.c.id)):
        rows[table.name] += tx.execute(delete(table).where(column.in_(job_ids))).rowcount
    rows[refusals.name] += tx.execute(delete(refusals).where(refusals.c.id.in_(refusal_ids))).rowcount
    return rows


def remove_versions(tx: Tx, before: datetime) -> Counter[str]:
    """Of agents: those that no run began with and no process uses."""
    old = agent_versions.old(tx, before)
    return Counter({"agent_versions": agent_versions.remove(tx, old)}) if old else Counter()


# Every other table, and why `prune` leaves it alone. A test compares this with the schema.
NOT_PRUNED = {
    "caller_audit": "has an age of its own: CHORDAGE_AUDIT_KEEP_DAYS",
    "replays": "rescue deletes what no longer counts",
    "groups": "settings", "tool_durations": "a row for each tool", "projection": "one row",
    "polls": "a row for each channel", "pulse": "a row for each task, chore and will",
    "processes": "rescue deletes those that are gone", "caller_keys": "people revoke them",
    "web_secrets": "a few rows", "cipher_keys": "a row for each key", "metric_sums": "a bounded number",
    "login_links": "they expire", "web_sessions": "they expire",
    "stream_tickets": "they expire", "question_links": "they expire", "saved_views": "people delete them",
}  # fmt: skip
