"""What readers ask of turns: one with all that became of it, and lists of them. Nothing here locks or writes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import ColumnElement, RowMapping, Select, and_, bindparam, case, func, or_, select

from chordage.orchestrator.core.model import TOKENS
from chordage.orchestrator.core.records import Checkpoint
from chordage.orchestrator.core.status import TurnStatus
from chordage.orchestrator.store.hot import Hot
from chordage.orchestrator.store.predicates import OPEN_RUNS, QUEUED_IN_GROUP, STILL_QUEUED, has, in_line
from chordage.orchestrator.store.schema import journal, runs, turns
from chordage.orchestrator.store.tx import Tx

Row = RowMapping

EXCERPT = 200  # characters of a message that a list shows

_AHEAD = turns.alias("ahead")
_QUEUED_UP_TO_HERE = (
    select(func.count())
    .where(
        _AHEAD.c.thread_id == turns.c.thread_id,
        in_line(_AHEAD),
        or_(
            _AHEAD.c.rank < turns.c.rank,
            and_(_AHEAD.c.rank == turns.c.rank, _AHEAD.c.arrival <= turns.c.arrival),
        ),
    )
    .scalar_subquery()
)
_TURN_ID = turns.c.id.label("turn_id")
_FULL = [
    turns.c[name]
    for name in (
        "thread_id", "agent", "tenant", "origin", "channel", "sender", "text", "meta", "strategy", "status",
        "disposition", "run_id", "coalesce_key", "into_turn", "not_before", "deadline", "queued_at", "started_at",
        "done_at", "parent_run", "parent_call", "root_run", "root_thread", "path", "source", "dedupe_key",
    )
]  # fmt: skip
_OF_RUN = [runs.c[name] for name in ("reason", "code", "rounds", *TOKENS)]
_WHY = func.coalesce(runs.c.detail, turns.c.detail).label("detail")  # its own, where it ended without a run
_REPLY = journal.alias("reply")
# Recorded together with the end of its run: that is the answer. A value, and not a join: PostgreSQL would go through
# the replies of all runs while it believes that there are few.
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
_ONE = Hot(
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
_LINE = select(
    _TURN_ID,
    *(
        turns.c[name]
        for name in (
            "thread_id", "agent", "origin", "channel", "sender", "status", "disposition", "run_id", "queued_at",
            "started_at", "done_at", "parent_run", "path",
        )
    ),
    turns.c.grp.label("group"),
    func.substr(turns.c.text, 1, EXCERPT).label("text"),
)  # fmt: skip


def one(tx: Tx, turn_id: str) -> dict[str, Any] | None:
    """A turn, its place in its thread's line, its run, and the reply that ended it: in one statement."""
    return _ONE.first(tx, {"turn_id": turn_id})


_STATUS = Hot(select(turns.c.status).where(turns.c.id == bindparam("turn_id")))


def is_done(tx: Tx, turn_id: str) -> bool | None:
    """None: there is no such turn."""
    status: str | None = _STATUS.scalar(tx, {"turn_id": turn_id})
    return None if status is None else status == TurnStatus.DONE.value


def newest(
    tx: Tx,
    *,
    limit: int,
    status: TurnStatus | None = None,
    thread_id: str | None = None,
    agent: str | None = None,
    before: str | None = None,
) -> Sequence[Row]:
    """Newest first, those that came before the turn `before`. Ids grow with time: the key is the index of the list."""
    found = _LINE.limit(limit)
    if status is not None:
        found = found.where(_stands(status) if thread_id is None else _stands_in_line(status))
    if agent is not None:
        found = found.where(turns.c.agent == agent)
    return tx.execute(_paged(found, thread_id, before)).mappings().all()


def _paged(found: Select[Any], thread_id: str | None, before: str | None) -> Select[Any]:
    """The line of one thread has an index of its own, by arrival."""
    if thread_id is None:
        return (found.where(turns.c.id < before) if before else found).order_by(turns.c.id.desc())
    found = found.where(turns.c.thread_id == thread_id)
    if before is not None:
        other = turns.alias("other")
        arrival = select(other.c.arrival).where(other.c.id == before).scalar_subquery()
        found = found.where(turns.c.arrival < arrival)
    return found.order_by(turns.c.arrival.desc())


def _stands(status: TurnStatus) -> ColumnElement[bool]:
    """The few that are open are found by their partial indexes, however many are done."""
    match status:
        case TurnStatus.QUEUED:
            return QUEUED_IN_GROUP
        case TurnStatus.ACTIVE:
            opened = turns.c.id.in_(select(runs.c.turn_id).where(OPEN_RUNS))
            return and_(has(turns.c.status, status), opened)
        case TurnStatus.DONE:
            return has(turns.c.status, status)


def _stands_in_line(status: TurnStatus) -> ColumnElement[bool]:
    """The same, of one thread."""
    return in_line(turns) if status is TurnStatus.QUEUED else _stands(status)


def count_ways(tx: Tx) -> dict[tuple[str, str], int]:
    """How many turns of each group ended in which way, or stand where."""
    way = func.coalesce(turns.c.disposition, turns.c.status)
    found = select(turns.c.grp, way, func.count()).group_by(turns.c.grp, way)
    return {(group, how): count for group, how, count in tx.execute(found)}
