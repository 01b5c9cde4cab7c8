"""Deletes all that is stored of a thread, at once and whatever needs it: what a person has a right to.

A thread goes with the threads that hold parts of it: those of its sub-agents, and its forks. The newest goes first, so
that an erasure that was cut short finds the rest again from the thread that was named.

Failure: a message arrives while its thread is deleted. Mechanism: an arrival updates the row of its thread before it
inserts its turn, and `remove` locks that row before it looks for open turns. Where there is one, nothing is deleted.

Failure: a run starts a sub-agent, or the thread is forked, after its family was listed. Mechanism: a fork locks the row
of its source, and only an open run starts a sub-agent, so `remove` sees both, and deletes nothing before they are gone.

Not promised: that copies outside these tables are gone, such as backups, the log of the database, and what was sent.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, Table, Text, delete, func, literal, or_, select, text, true, update
from sqlalchemy import cast as as_type

from chordage.orchestrator.core.audit import Audited
from chordage.orchestrator.core.phases import Scope
from chordage.orchestrator.core.status import OPEN_RUN, TurnStatus
from chordage.orchestrator.core.text import mention_of, written_forms
from chordage.orchestrator.store.contents import Contents, is_encrypted, json_text, owned
from chordage.orchestrator.store.database import Tx
from chordage.orchestrator.store.predicates import has
from chordage.orchestrator.store.pruning import Subjects, delete_rows, in_lots, subjects_of
from chordage.orchestrator.store.schema import (
    bulk_jobs,
    bulk_refusals,
    caller_audit,
    forks,
    journal,
    plugin_state,
    pulse,
    question_links,
    refusals,
    replays,
    runs,
    threads,
    turns,
)

ERASED = {"erased": True}  # what is left of the detail of an entry of the record


@dataclass(frozen=True, kw_only=True, slots=True)
class ErasedNames:
    """By which other stores know what was deleted."""

    threads: frozenset[str] = frozenset()
    runs: frozenset[str] = frozenset()
    turns: frozenset[str] = frozenset()
    upto: int = 0  # the last journal row that was deleted, which others may have read before

    def __or__(self, other: ErasedNames) -> ErasedNames:
        return ErasedNames(
            threads=self.threads | other.threads, runs=self.runs | other.runs, turns=self.turns | other.turns,
            upto=max(self.upto, other.upto),
        )  # fmt: skip


def family(tx: Tx, thread_id: str) -> list[str]:
    """This thread, those of its sub-agents, and its forks; none before those that came of it. Empty: there is none."""
    if tx.execute(select(threads.c.id).where(threads.c.id == thread_id)).first() is None:
        return []
    found, left = {thread_id: None}, [thread_id]
    while left:
        one = left.pop()
        for below in sorted(_below(tx, one)):
            if below not in found:
                found[below] = None
                left.append(below)
    return list(reversed(found))


def _below(tx: Tx, thread_id: str) -> set[str]:
    below = set(tx.execute(select(threads.c.id).where(threads.c.fork_of == thread_id)).scalars())
    for lot in in_lots(_runs_of(tx, thread_id)):
        below |= set(tx.execute(select(turns.c.thread_id).where(turns.c.parent_run.in_(lot))).scalars())
        forked = select(turns.c.thread_id).join(forks, forks.c.turn_id == turns.c.id).where(forks.c.run_id.in_(lot))
        below |= set(tx.execute(forked).scalars())
    return below


def _runs_of(tx: Tx, thread_id: str) -> list[str]:
    """Each has an entry in the history of its thread; a fork has runs that no turn of it started."""
    noted = select(journal.c.run_id).where(journal.c.thread_id == thread_id)
    return sorted(tx.execute(select(runs.c.id).where(runs.c.id.in_(noted))).scalars())


def parent_of(tx: Tx, thread_id: str) -> str | None:
    """The thread whose run this one works for."""
    root = select(turns.c.root_thread).where(turns.c.thread_id == thread_id, turns.c.root_thread != thread_id)
    return tx.execute(root.limit(1)).scalar_one_or_none()


def is_own_work(tx: Tx, thread_id: str) -> bool:
    """Whether it is the thread of a task, a chore or the will, which the pulse has on record."""
    named = select(pulse.c.key).join(turns, turns.c.id == pulse.c.turn_id).where(turns.c.thread_id == thread_id)
    return tx.execute(named.limit(1)).first() is not None


def open_turns(tx: Tx, thread_id: str) -> Sequence[str]:
    wanted = select(turns.c.id).where(turns.c.thread_id == thread_id, turns.c.status != TurnStatus.DONE.value)
    return tx.execute(wanted.order_by(turns.c.arrival.desc())).scalars().all()


def threads_of(tx: Tx, sender: str) -> tuple[list[str], list[str]]:
    """The threads on which this sender has written alone, and those on which others have written too. A sender is who
    `sent_by` of a turn names, the user of a key that spoke for users, or an address of a channel. All turns are read.
    """
    own = _is_of(sender)
    wrote = select(turns.c.thread_id).where(own).distinct()
    others = select(turns.c.thread_id).where(
        turns.c.thread_id.in_(wrote), ~func.coalesce(own, False), turns.c.parent_run.is_(None)
    )
    shared = set(tx.execute(others.distinct()).scalars())
    every = set(tx.execute(wrote).scalars())
    return sorted(every - shared), sorted(shared)


def _is_of(sender: str) -> ColumnElement[bool]:
    user, home = f"~{sender}", turns.c.channel + literal(f":{sender}")
    ending = func.substr(turns.c.sent_by, func.length(turns.c.sent_by) - len(user) + 1)
    beginning = func.substr(turns.c.thread_id, 1, func.length(home) + 1)
    is_named = or_(turns.c.sent_by == sender, ending == user, turns.c.thread_id == home, beginning == home + ":")
    return func.coalesce(is_named, literal(False))


def count(tx: Tx, thread_id: str) -> Counter[str]:
    """The rows that `remove` would delete, by table."""
    rows: Counter[str] = Counter()
    for table, column, ids, condition in _subjects(tx, thread_id).places():
        for lot in in_lots(ids):
            where = [column.in_(lot)] if condition is None else [column.in_(lot), condition]
            rows[table.name] += tx.execute(select(func.count()).select_from(table).where(*where)).scalar_one()
    of_thread = (plugin_state.c.scope == Scope.THREAD.value, plugin_state.c.owner == thread_id)
    rows[plugin_state.name] += tx.execute(select(func.count()).where(*of_thread)).scalar_one()
    rows[journal.name] = tx.execute(select(func.count()).where(journal.c.thread_id == thread_id)).scalar_one()
    rows[threads.name] = 1
    return rows


def _subjects(tx: Tx, thread_id: str) -> Subjects:
    turn_ids = tx.execute(select(turns.c.id).where(turns.c.thread_id == thread_id)).scalars().all()
    return subjects_of(tx, turn_ids, _runs_of(tx, thread_id))


def remove(tx: Tx, thread_id: str, above: Collection[str] = frozenset()) -> tuple[ErasedNames, Counter[str]] | None:
    """Delete the thread with all that is stored of it. None: something of it is open, or came of it and is still there,
    and nothing was deleted. `above`: go after it; a pruned thread may have come again as a fork of its own fork.
    """
    tx.execute(select(threads.c.id).where(threads.c.id == thread_id).with_for_update())
    is_open = select(runs.c.id).where(runs.c.thread_id == thread_id, has(runs.c.status, *sorted(OPEN_RUN)))
    if open_turns(tx, thread_id) or tx.execute(is_open.limit(1)).first() is not None:
        return None
    if _below(tx, thread_id) - {thread_id, *above}:
        return None
    subjects = _subjects(tx, thread_id)
    of_thread = (plugin_state.c.scope == Scope.THREAD.value, plugin_state.c.owner == thread_id)
    rows: Counter[str] = Counter()
    rows[plugin_state.name] += tx.execute(delete(plugin_state).where(*of_thread)).rowcount
    about = question_links.c.question_id
    for lot in in_lots(subjects.suspension_ids):
        rows[question_links.name] += tx.execute(delete(question_links).where(about.in_(lot))).rowcount
    for lot in in_lots(subjects.turn_ids):
        rows[replays.name] += tx.execute(delete(replays).where(replays.c.turn_id.in_(lot))).rowcount
    rows += _blank_record(tx, thread_id, [*subjects.turn_ids, *subjects.run_ids, *subjects.call_ids,
                                          *subjects.suspension_ids, *subjects.decision_ids])  # fmt: skip
    upto = tx.execute(select(func.max(journal.c.id)).where(journal.c.thread_id == thread_id)).scalar() or 0
    rows += delete_rows(tx, subjects)
    for table, column in ((journal, journal.c.thread_id), (threads, threads.c.id)):
        rows[table.name] += tx.execute(delete(table).where(column == thread_id)).rowcount
    gone = ErasedNames(
        threads=frozenset({thread_id}), runs=frozenset(subjects.run_ids), turns=frozenset(subjects.turn_ids), upto=upto
    )  # fmt: skip
    return gone, rows


def digest_of(name: str) -> str:
    """In the place of a name, which may be an address."""
    return f"sha256:{hashlib.sha256(name.encode()).hexdigest()[:32]}"


def is_recorded(tx: Tx, name: str) -> bool:
    """Whether its erasure was begun before."""
    begun = (caller_audit.c.action == Audited.ERASED.value, caller_audit.c.about == digest_of(name))
    return tx.execute(select(caller_audit.c.id).where(*begun).limit(1)).first() is not None


def _blank_record(tx: Tx, thread_id: str, ids: Sequence[str]) -> Counter[str]:
    """That something was decided stays on record; what it was about does not."""
    rows: Counter[str] = Counter()
    of_thread = update(caller_audit).where(caller_audit.c.about == thread_id)
    erased = owned(tx, caller_audit, {"detail": ERASED}, owner=None)
    rows["caller_audit, blanked"] += tx.execute(of_thread.values(about=digest_of(thread_id), **erased)).rowcount
    for lot in in_lots(ids):
        blanked = update(caller_audit).where(caller_audit.c.about.in_(lot)).values(erased)
        rows["caller_audit, blanked"] += tx.execute(blanked).rowcount
    return rows


def remove_mentions(tx: Tx, names: Collection[str]) -> Counter[str]:
    """Bulk jobs that have ended, and refused messages of channels, in which one of these names is written; and the user
    of an entry of the record who has such a name.
    """
    rows: Counter[str] = Counter()
    for name in sorted(names):
        jobs = _mentioning(tx, bulk_jobs, name, bulk_jobs.c.ended_at.is_not(None))
        said = _mentioning(tx, refusals, name)
        for table, column, ids in (
            (bulk_refusals, bulk_refusals.c.job_id, jobs), (bulk_jobs, bulk_jobs.c.id, jobs),
            (refusals, refusals.c.id, said),
        ):  # fmt: skip
            for lot in in_lots(ids):
                rows[table.name] += tx.execute(delete(table).where(column.in_(lot))).rowcount
        erased = owned(tx, caller_audit, {"detail": ERASED}, owner=None)
        blanked = update(caller_audit).where(caller_audit.c.on_behalf == name).values(on_behalf=None, **erased)
        rows["caller_audit, blanked"] += tx.execute(blanked).rowcount
    return rows


_MENTIONING: dict[str, tuple[str, ...]] = {
    bulk_jobs.name: ("wanted", "chosen", "query", "reason"),
    refusals.name: ("key", "why", "excerpt"),
}


def _mentioning(tx: Tx, table: Table, name: str, *where: ColumnElement[bool]) -> list[Any]:
    """The ids of rows in which the name is written. The database finds it in longer words too."""
    forms, is_in = written_forms(name), mention_of([name])
    columns = [_as_text(table.c[column]) for column in _MENTIONING[table.name]]
    like = or_(*(column.contains(form, autoescape=True) for column in columns for form in forms))
    if is_encrypted(tx):  # the database cannot look into them: all rows are read
        like = true()
    rows = tx.execute(select(table.c.id, *columns).where(like, *where)).all()
    return [row[0] for row in rows if any(is_in.search(text) for text in row[1:] if text is not None)]


def _as_text(column: ColumnElement[Any]) -> ColumnElement[Any]:
    return json_text(column) if isinstance(column.type, Contents) else as_type(column, Text)


def overwrite_deleted(tx: Tx) -> None:
    """SQLite would leave what is deleted in the file until its place is needed."""
    if tx.dialect.name == "sqlite":
        tx.execute(text("PRAGMA secure_delete=ON"))


def fold_log_in(tx: Tx) -> bool:
    """SQLite keeps pages in its write-ahead log too. False: another connection reads them just now."""
    if tx.dialect.name != "sqlite":
        return True
    busy, _, _ = tx.execute(text("PRAGMA wal_checkpoint(TRUNCATE)")).one()
    return not busy
