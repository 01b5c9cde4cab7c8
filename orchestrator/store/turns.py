"""Turns: one row for each message, from its arrival to its disposition.

A turn ends once: the WHERE of its update admits only turns that are not done. The same statement makes the next turn in
the thread's line ready, so no reader sees one without the other.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import (
    ColumnElement,
    RowMapping,
    and_,
    bindparam,
    case,
    func,
    insert,
    literal_column,
    or_,
    select,
    true,
    type_coerce,
    update,
)
from sqlalchemy.exc import IntegrityError

from chordage.orchestrator.core import limits
from chordage.orchestrator.core.approvals import Why
from chordage.orchestrator.core.errors import LostRace
from chordage.orchestrator.core.groups import Group
from chordage.orchestrator.core.intents import Hint
from chordage.orchestrator.core.model import COUNTS
from chordage.orchestrator.core.reasons import WITHOUT_A_RUN
from chordage.orchestrator.core.records import KIN_COLUMNS, Checkpoint, Kin, Subject, Turn, take_kin
from chordage.orchestrator.core.status import TURN, Disposition, TurnStatus, sources
from chordage.orchestrator.core.stepping import Control
from chordage.orchestrator.store.contents import beginning, owned
from chordage.orchestrator.store.database import Tx
from chordage.orchestrator.store.groups import PLACE_AWAITED, SEVERAL
from chordage.orchestrator.store.predicates import (
    KEYED_TURNS,
    OPEN_RUNS,
    OPEN_WILLS,
    QUEUED_IN_GROUP,
    QUEUED_TURNS,
    STILL_OPEN_SUSPENSION,
    STILL_QUEUED,
    has,
    in_line,
    nothing_is_open_on,
    still,
)
from chordage.orchestrator.store.schema import journal, runs, suspensions, threads, turns
from chordage.orchestrator.store.statements import PreparedStatement, insert_or

# Whatever else a turn has is given when it is queued.
_WRITTEN_LATER = {
    "status", "ready", "disposition", "detail", "run_id", "into_turn", "cancel_asked", "started_at", "done_at",
}  # fmt: skip
_GIVEN = [column.name for column in turns.c if column.name not in {*_WRITTEN_LATER, "arrival"}]
# Unless a message says otherwise: it steers no run, and is not driven by a consumer.
_USUAL = {
    **{name: None for name in _GIVEN if turns.c[name].nullable},
    "steers": 0,
    "control": Control.AUTO.value,
}
COLUMNS = [
    turns.c[name]
    for name in (
        "id", "thread_id", "arrival", "agent", "grp", "tenant", "status", "disposition", "run_id", "origin", "channel",
        "sender", "text", "meta", "strategy", "control", "deadline", "queued_at", "started_at", "done_at",
        "max_rounds", "timeout_ms", "fork_of", "client_tools",
        *KIN_COLUMNS,
    )
]  # fmt: skip


def from_row(row: Mapping[Any, Any]) -> Turn:
    fields = dict(row)
    fields["group"] = Group(fields.pop("grp"))
    fields["status"] = TurnStatus(fields["status"])
    fields["control"] = Control(fields["control"])
    fields["disposition"] = Disposition(fields["disposition"]) if fields["disposition"] else None
    fields["timeout"] = limits.in_seconds(fields.pop("timeout_ms"))
    kin = take_kin(fields)
    return Turn(**fields, kin=kin)


def admitted(fields: Mapping[str, Any]) -> Turn:
    """As `admit` stores it."""
    made = dict.fromkeys(("disposition", "run_id", "started_at", "done_at"))
    row = {**made, **_USUAL, **fields, "status": TurnStatus.QUEUED}
    return from_row({column.name: row[column.name] for column in COLUMNS})


_LOAD = PreparedStatement(select(*COLUMNS).where(turns.c.id == bindparam("turn_id")))


def load(tx: Tx, turn_id: str) -> Turn | None:
    row = _LOAD.first(tx, {"turn_id": turn_id})
    return from_row(row) if row else None


_BY_DEDUPE_KEY = PreparedStatement(
    select(turns.c.id).where(
        turns.c.agent == bindparam("agent"),
        turns.c.source == bindparam("source"),
        turns.c.dedupe_key == bindparam("key"),
    )
)


def by_dedupe_key(tx: Tx, agent: str, source: str, key: str) -> str | None:
    turn_id: str | None = _BY_DEDUPE_KEY.scalar(tx, {"agent": agent, "source": source, "key": key})
    return turn_id


def _thread_is_busy() -> ColumnElement[bool]:
    """Locks the open run: a run that is just ending is waited for, so that neither misses the other's turn."""
    open_run = (
        select(runs.c.id)
        .where(runs.c.thread_id == bindparam("thread_id"), OPEN_RUNS)
        .limit(1)
        .with_for_update()
        .scalar_subquery()
    )
    return open_run.is_not(None)


def _is_behind_another() -> ColumnElement[bool]:
    """A turn is queued on the same thread, of this rank or above, and due: one that sleeps holds up no other.

    Locks the first of them: one that is just starting is waited for, so that its end cannot go unnoticed.
    """
    ahead = turns.alias("ahead")
    first = (
        select(ahead.c.id)
        .where(
            ahead.c.thread_id == bindparam("thread_id"),
            in_line(ahead),
            ahead.c.rank <= bindparam("rank"),
            or_(ahead.c.not_before.is_(None), ahead.c.not_before <= bindparam("queued_at")),
        )
        .order_by(ahead.c.rank, ahead.c.arrival)
        .limit(1)
        .with_for_update()
        .scalar_subquery()
    )
    return first.is_not(None)


DEDUPED = [turns.c.agent, turns.c.source, turns.c.dedupe_key]
# As the statement before, in this transaction, has counted it: store/threads.py.
_ARRIVAL = select(threads.c.arrivals).where(threads.c.id == bindparam("thread_id")).scalar_subquery()
_ADMITTED = select(
    *(type_coerce(bindparam(name, type_=turns.c[name].type), turns.c[name].type) for name in _GIVEN),
    _ARRIVAL,
    literal_column("'queued'"),
    case(
        (or_(_thread_is_busy(), _is_behind_another()), 0),
        (bindparam("not_before", type_=turns.c.not_before.type) > bindparam("queued_at"), 2),
        else_=1,
    ),
).where(literal_column("1") == literal_column("1"))  # SQLite would take ON CONFLICT for a join
_ADMIT = PreparedStatement(
    lambda dialect: (
        insert_or(dialect, turns)
        .from_select([*_GIVEN, "arrival", "status", "ready"], _ADMITTED)
        .on_conflict_do_nothing(index_elements=DEDUPED, index_where=turns.c.dedupe_key.is_not(None))
        .returning(turns.c.ready)
    )
)


def admit(tx: Tx, fields: Mapping[str, Any]) -> bool:
    """Queue a turn behind those that have arrived on its thread; the trigger `note_arrival` notes it in the journal.
    Returns whether it is ready: its thread is free and no turn is ahead of it there. Raises LostRace where a turn with
    the same dedupe key, or for the same work, is there.
    """
    with _one_of_each():
        ready = _ADMIT.scalar(tx, {**_USUAL, **fields})
    if ready is None:
        raise LostRace
    return bool(ready)


@contextmanager
def _one_of_each() -> Iterator[None]:
    """Both databases name the unique key that was violated: by its index, or by its columns."""
    try:
        yield
    except IntegrityError as error:
        if any(name in str(error.orig) for name in ("dedupe", "coalesce", "uq_turns_will", "turns.origin")):
            raise LostRace from error
        raise


LINES = 250  # of which one sweep looks at whether they are stuck


def _first_line_after(thread: Any) -> Any:
    """Of the threads with a turn that was not made ready, the first by name after `thread`."""
    turn = turns.alias()
    found = select(turn.c.thread_id).where(_is_behind(turn), turn.c.thread_id > thread)
    return found.order_by(turn.c.thread_id).limit(1).scalar_subquery()


def _is_behind(turn: Any) -> ColumnElement[bool]:
    return and_(has(turn.c.status, TurnStatus.QUEUED), has(turn.c.ready, 0))


def _lines() -> Any:
    first = select(_first_line_after(bindparam("after")).label("thread_id"), literal_column("1").label("number"))
    lines = first.cte("lines", recursive=True)
    following = select(_first_line_after(lines.c.thread_id), lines.c.number + 1)
    return lines.union_all(following.where(lines.c.thread_id.is_not(None), lines.c.number < bindparam("most")))


def _stands_still(line: Any) -> ColumnElement[bool]:
    """No run is open, no turn is ready, and one could start before all that sleep. In this order: nearly all lines
    have an open run, and of the others nearly all have a ready turn in front.
    """
    turn = turns.alias()
    of_line = select(turn.c.id).where(turn.c.thread_id == line.c.thread_id, in_line(turn)).correlate(line)
    kind = turn.c.ready + literal_column("0")  # a condition of no index: only the line is to be read
    ready = of_line.where(kind == 1).order_by(turn.c.rank, turn.c.arrival).limit(1).scalar_subquery()
    due = of_line.with_only_columns(func.min(turn.c.due_at))
    behind = due.where(kind == 0, turn.c.queued_at < bindparam("before")).scalar_subquery()
    asleep = due.where(kind == 2).scalar_subquery()
    return case(
        (nothing_is_open_on(line).is_(False), False),
        (ready.is_not(None), False),
        (behind.is_(None), False),
        (asleep.is_(None), True),
        else_=behind < asleep,
    )


_LINES = _lines()
_STRANDED = PreparedStatement(
    select(_LINES.c.thread_id, _stands_still(_LINES).label("stands_still"))
    .where(_LINES.c.thread_id.is_not(None))
    .order_by(_LINES.c.number)
)


def stranded(tx: Tx, before: datetime, *, after: str) -> tuple[list[str], str]:
    """Threads with a queued turn but no open run, and no turn that is ready or that sleeps no longer than it.

    The lines of threads are looked at in the order of their names, up to `LINES` of them behind the thread `after`.
    Returns also the last of these, or "" if there are no more. Nothing is noted in rows: thousands of lines behind
    waiting runs, each with many turns, would be written again and again, and each write adds to all indexes.
    """
    rows = _STRANDED.rows(tx, {"after": after, "before": before, "most": LINES})
    last = rows[-1]["thread_id"] if len(rows) == LINES else ""
    return [row["thread_id"] for row in rows if row["stands_still"]], last


def overdue(tx: Tx, now: datetime, limit: int) -> list[str]:
    """Queued turns whose deadline has passed."""
    overdue_turns = select(turns.c.id).where(QUEUED_TURNS, turns.c.deadline <= now).limit(limit)
    return list(tx.execute(overdue_turns).scalars())


# the same work: turns with a coalesce key, and the will of an agent


@dataclass(frozen=True, kw_only=True, slots=True)
class QueuedWork:
    """The queued turn for some work."""

    id: str
    thread_id: str
    due_at: datetime


_QUEUED_WORK = PreparedStatement(
    select(turns.c.id, turns.c.thread_id, turns.c.due_at).where(
        KEYED_TURNS,
        turns.c.agent == bindparam("agent"),
        turns.c.grp == bindparam("group"),
        turns.c.coalesce_key == bindparam("key"),
    )
)
_OPEN_WILL = PreparedStatement(select(turns.c.id).where(OPEN_WILLS, turns.c.agent == bindparam("agent")))


def queued_work(tx: Tx, agent: str, group: Group, key: str) -> QueuedWork | None:
    row = _QUEUED_WORK.first(tx, {"agent": agent, "group": group.value, "key": key})
    return QueuedWork(**row) if row else None


def open_will(tx: Tx, agent: str) -> str | None:
    """The turn of the agent's will that is queued or active."""
    turn_id: str | None = _OPEN_WILL.scalar(tx, {"agent": agent})
    return turn_id


def record_merged(tx: Tx, fields: Mapping[str, Any], into: str, detail: str) -> None:
    """A message that is done as it arrives: the turn `into` does the same work. Raises LostRace where a turn with the
    same dedupe key is there.
    """
    done = {
        "status": TurnStatus.DONE.value, "ready": 0, "disposition": Disposition.MERGED.value, "into_turn": into,
        "detail": detail, "done_at": fields["queued_at"],
    }  # fmt: skip
    with _one_of_each():
        tx.execute(insert(turns), owned(tx, turns, {**fields, **done}))


# the end of a turn, and the next in the line of its thread

_NEXT = turns.alias("next")
_LATER = _NEXT.c.not_before > bindparam("now")
_NEXT_IN_LINE = (
    select(_NEXT.c.id)
    .where(_NEXT.c.thread_id == bindparam("thread"), in_line(_NEXT))
    .order_by(case((_LATER, 1), else_=0), case((_LATER, _NEXT.c.not_before)), _NEXT.c.rank, _NEXT.c.arrival)
    .limit(1)
    .scalar_subquery()
)
_READY_OR_ASLEEP = case((turns.c.not_before > bindparam("now"), 2), else_=1)
_IS_IT = turns.c.id == bindparam("turn_id")
_IS_OPEN = still(turns.c.status, *sources(TURN, TurnStatus.DONE))
_END = PreparedStatement(
    update(turns)
    .where(turns.c.id.in_([bindparam("turn_id"), _NEXT_IN_LINE]), or_(~_IS_IT, _IS_OPEN))
    .values(
        status=case((_IS_IT, TurnStatus.DONE.value), else_=turns.c.status),
        disposition=case((_IS_IT, bindparam("how")), else_=turns.c.disposition),
        done_at=case((_IS_IT, bindparam("now", type_=turns.c.done_at.type)), else_=turns.c.done_at),
        ready=case((_IS_IT, 0), else_=_READY_OR_ASLEEP),
    )
    .returning(turns.c.id, turns.c.grp, turns.c.agent, turns.c.reply_target, PLACE_AWAITED.label("hand_on"))
)


@dataclass(frozen=True, kw_only=True, slots=True)
class EndedTurn:
    """What has to happen after the end of a turn."""

    reply_target: dict[str, Any] | None
    next_in_line: tuple[Group, Hint, Subject] | None
    hand_on: bool  # a turn waits for the place that is free now
    several: bool  # turns of several tenants do


def end(tx: Tx, turn_id: str, thread_id: str, group: Group, disposition: Disposition, *, now: datetime) -> EndedTurn:
    """The turn is done, and the next one in its thread's line is ready, in one statement."""
    binds = {
        "turn_id": turn_id, "thread": thread_id, "of_group": group.value, "how": disposition.value, "now": now,
    }  # fmt: skip
    rows = {row["id"]: row for row in _END.rows(tx, binds)}
    own = rows.pop(turn_id, None)
    follower = next(iter(rows.values()), None)
    hand_on = (own or follower or {}).get("hand_on") or 0
    return EndedTurn(
        reply_target=own["reply_target"] if own else None,
        next_in_line=(
            (Group(follower["grp"]), Hint(follower["id"], thread_id), Subject(thread_id, follower["agent"]))
            if follower
            else None
        ),
        hand_on=hand_on > 0,
        several=hand_on == SEVERAL,
    )


_LOCK_THREAD = select(threads.c.id).join(turns, turns.c.thread_id == threads.c.id)
_THREAD_OF_TURN = select(turns.c.thread_id).where(turns.c.id == bindparam("turn_id")).scalar_subquery()
_LOCK_RUN = select(runs.c.id).where(runs.c.thread_id == _THREAD_OF_TURN, OPEN_RUNS).with_for_update()


@dataclass(frozen=True, kw_only=True, slots=True)
class DroppedTurn:
    """A turn that ended in the queue."""

    turn_id: str
    thread_id: str
    reply_target: dict[str, Any] | None
    kin: Kin | None


def end_queued(
    tx: Tx,
    turn_id: str,
    disposition: Disposition,
    now: datetime,
    *,
    detail: str | None = None,
    into: str | None = None,
    parent_run: str | None = None,
) -> DroppedTurn | None:
    """End a turn that never started. `into`: the turn that it is merged into. One that expires does so only if its
    deadline has passed: it may have been moved since it was read.

    Its thread and the open run there are locked first, in the order in which an arrival locks them: a transaction that
    joins or advances the line at this moment waits, and then sees the line without this turn. `parent_run`: of a child;
    the end is reported to that run, so it is locked after the thread's own run and before the turn, as everywhere.
    """
    assert disposition in WITHOUT_A_RUN, disposition
    thread_id = tx.execute(_LOCK_THREAD.where(turns.c.id == turn_id).with_for_update(of=threads)).scalar()
    tx.execute(_LOCK_RUN, {"turn_id": turn_id})
    if parent_run is not None:
        tx.execute(select(runs.c.id).where(runs.c.id == parent_run).with_for_update())
    ended = (
        update(turns)
        .where(turns.c.id == turn_id, STILL_QUEUED)
        .where(turns.c.deadline <= now if disposition is Disposition.EXPIRED else true())
        .values(
            status=TurnStatus.DONE.value, disposition=disposition.value, into_turn=into, done_at=now, ready=0,
            **owned(tx, turns, {"detail": detail}, owner=thread_id),
        )
        .returning(turns.c.thread_id, turns.c.reply_target, *(turns.c[name] for name in KIN_COLUMNS))
    )  # fmt: skip
    row = tx.execute(ended).mappings().first()
    if row is None:
        return None
    kin = take_kin(dict(row))
    return DroppedTurn(turn_id=turn_id, thread_id=row["thread_id"], reply_target=row["reply_target"], kin=kin)


def change_queued(tx: Tx, seen: Turn, *, group: Group, deadline: datetime | None, now: datetime) -> bool:
    """Another group or deadline, for a turn that waits as it was `seen`. False: it has started, or was changed. Raises
    LostRace if the same work is queued in that group.
    """
    changed = update(turns).where(
        turns.c.id == seen.id,
        STILL_QUEUED,
        turns.c.grp == seen.group.value,
        turns.c.deadline.is_not_distinct_from(seen.deadline),
        or_(turns.c.deadline.is_(None), turns.c.deadline > now),
    )
    with _one_of_each():
        return tx.execute(changed.values(grp=group.value, deadline=deadline)).rowcount == 1


def make_next_ready(tx: Tx, thread_id: str, now: datetime) -> Group | None:
    """Make the head of a thread's line ready (a due turn goes before one that sleeps), if the thread has no open run.
    Returns its group. None: there is none.
    """
    made = (
        update(turns)
        .where(turns.c.id == _NEXT_IN_LINE, nothing_is_open_on(turns))
        .values(ready=_READY_OR_ASLEEP)
        .returning(turns.c.grp)
    )
    group = tx.execute(made, {"thread": thread_id, "now": now}).scalar()
    return Group(group) if group else None


# what readers see

TurnRow = RowMapping

EXCERPT = 200  # characters of a message that a list shows

_UP_TO_HERE = turns.alias("ahead")
_QUEUED_UP_TO_HERE = (
    select(func.count())
    .where(
        _UP_TO_HERE.c.thread_id == turns.c.thread_id,
        in_line(_UP_TO_HERE),
        or_(
            _UP_TO_HERE.c.rank < turns.c.rank,
            and_(_UP_TO_HERE.c.rank == turns.c.rank, _UP_TO_HERE.c.arrival <= turns.c.arrival),
        ),
    )
    .scalar_subquery()
)
_TURN_ID = turns.c.id.label("turn_id")
_FULL = [column for column in turns.c if column.name not in {"id", "grp", "detail"}]
_OF_RUN = [runs.c[name] for name in ("reason", "code", "rounds", *COUNTS)]
_WHY = func.coalesce(runs.c.detail, turns.c.detail).label("detail")  # its own if it ended without a run
_REPLY = journal.alias("reply")
# The answer is the reply recorded together with the end of its run. A scalar subquery, and no join: PostgreSQL would
# read the replies of all runs while it estimates that there are few.
_ANSWER = (
    select(_REPLY.c.body)
    .where(
        _REPLY.c.run_id == turns.c.run_id,
        _REPLY.c.step == journal.c.step,
        has(_REPLY.c.kind, Checkpoint.ASSISTANT_TURN),
    )
    .correlate(turns, journal)
    .scalar_subquery()
)
_DETAILS = PreparedStatement(
    select(
        _TURN_ID,
        *_FULL,
        turns.c.grp.label("group"),
        *_OF_RUN,
        _WHY,
        _ANSWER.label("last_reply"),
        journal.c.body.label("end"),
        case((STILL_QUEUED, _QUEUED_UP_TO_HERE)).label("position"),
    )
    .outerjoin(runs, runs.c.id == turns.c.run_id)
    .outerjoin(journal, and_(journal.c.run_id == turns.c.run_id, has(journal.c.kind, Checkpoint.RUN_FINISHED)))
    .where(turns.c.id == bindparam("turn_id"))
)
SUMMARY = select(
    _TURN_ID,
    *(
        turns.c[name]
        for name in (
            "thread_id", "agent", "origin", "channel", "sender", "status", "disposition", "run_id", "queued_at",
            "started_at", "done_at", "parent_run", "path",
        )
    ),
    turns.c.grp.label("group"),
    beginning(turns.c.text, EXCERPT).label("text"),
    # Scalar subqueries, and no joins: they are read for the rows of the page alone, by key.
    *(
        select(runs.c[name]).where(runs.c.id == turns.c.run_id).scalar_subquery().label(name)
        for name in ("reason", *COUNTS)
    ),
    select(func.count())
    .select_from(suspensions)
    .where(suspensions.c.run_id == turns.c.run_id, STILL_OPEN_SUSPENSION, suspensions.c.why != Why.CHILD.value)
    .scalar_subquery()
    .label("open_questions"),
)  # fmt: skip


def details(tx: Tx, turn_id: str) -> dict[str, Any] | None:
    """A turn, its position in its thread's line, its run, and the reply that ended it."""
    return _DETAILS.first(tx, {"turn_id": turn_id})


_STATUS = PreparedStatement(select(turns.c.status).where(turns.c.id == bindparam("turn_id")))


def is_done(tx: Tx, turn_id: str) -> bool | None:
    """None: there is no such turn."""
    status: str | None = _STATUS.scalar(tx, {"turn_id": turn_id})
    return None if status is None else status == TurnStatus.DONE.value


def home_of_thread(tx: Tx, thread_id: str) -> str:
    """The thread of the conversation: for that of a sub-agent, the root's."""
    first = select(func.coalesce(turns.c.root_thread, turns.c.thread_id)).where(turns.c.thread_id == thread_id)
    return tx.execute(first.order_by(turns.c.arrival).limit(1)).scalar() or thread_id


def newest(
    tx: Tx,
    *,
    limit: int,
    status: TurnStatus | None = None,
    thread_id: str | None = None,
    agent: str | None = None,
    before: str | None = None,
) -> Sequence[TurnRow]:
    """Newest first, those that came before the turn `before`. Ids grow with time, so the primary key orders the list;
    the turns of one thread have an index by arrival.
    """
    page = SUMMARY.limit(limit)
    if status is not None:
        page = page.where(_has_status(status) if thread_id is None else _has_status_on_thread(status))
    if agent is not None:
        page = page.where(turns.c.agent == agent)
    if thread_id is not None:
        page = page.where(turns.c.thread_id == thread_id).order_by(turns.c.arrival.desc())
        other = turns.alias("other")
        arrival = select(other.c.arrival).where(other.c.id == before).scalar_subquery()
        page = page.where(turns.c.arrival < arrival) if before else page
    else:
        page = page.order_by(turns.c.id.desc())
        page = page.where(turns.c.id < before) if before else page
    return tx.execute(page).mappings().all()


def _has_status(status: TurnStatus) -> ColumnElement[bool]:
    """Open turns are found by partial indexes, however many are done."""
    match status:
        case TurnStatus.QUEUED:
            return QUEUED_IN_GROUP
        case TurnStatus.ACTIVE:
            opened = turns.c.id.in_(select(runs.c.turn_id).where(OPEN_RUNS))
            return and_(has(turns.c.status, status), opened)
        case TurnStatus.DONE:
            return has(turns.c.status, status)


def _has_status_on_thread(status: TurnStatus) -> ColumnElement[bool]:
    """The same for the turns of one thread."""
    return in_line(turns) if status is TurnStatus.QUEUED else _has_status(status)


def count_by_outcome(tx: Tx) -> dict[tuple[str, str], int]:
    """How many turns each group has of each disposition, or of each status if they are not done."""
    outcome = func.coalesce(turns.c.disposition, turns.c.status)
    counted = select(turns.c.grp, outcome, func.count()).group_by(turns.c.grp, outcome)
    return {(group, name): count for group, name, count in tx.execute(counted)}
