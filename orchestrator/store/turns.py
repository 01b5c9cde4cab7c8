"""Turns: one row per message, from its arrival to its disposition."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, NamedTuple

from sqlalchemy import and_, bindparam, case, func, insert, literal_column, or_, select, type_coerce, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.sql.elements import ColumnElement

from chordage.orchestrator.core import kinship, turn_limits
from chordage.orchestrator.core.errors import LostRace
from chordage.orchestrator.core.groups import Group
from chordage.orchestrator.core.records import Turn
from chordage.orchestrator.core.status import Disposition, TurnStatus
from chordage.orchestrator.core.stepping import Control
from chordage.orchestrator.store.hot import Hot, Row
from chordage.orchestrator.store.predicates import (
    OPEN_RUNS,
    QUEUED_TURNS,
    RUNNING_IN_GROUP,
    STILL_QUEUED,
    has,
    in_line,
    nothing_is_open_on,
)
from chordage.orchestrator.store.schema import groups, runs, turns
from chordage.orchestrator.store.tx import Tx

# Of a turn that says nothing else: nobody asked for it, it steers no run, and nobody drives it.
_USUAL = {
    **kinship.columns(None), "steers": 0, "control": Control.AUTO.value, "coalesce_key": None, "max_rounds": None,
    "timeout_ms": None, "space": None,
}  # fmt: skip
COLUMNS = [
    turns.c[name]
    for name in (
        "id", "thread_id", "arrival", "agent", "grp", "tenant", "status", "disposition", "run_id", "origin", "channel",
        "sender", "text", "meta", "strategy", "control", "deadline", "queued_at", "started_at", "done_at",
        "max_rounds", "timeout_ms",
        *kinship.COLUMNS,
    )
]  # fmt: skip


def from_row(row: Row) -> Turn:
    fields = dict(row)
    fields["group"] = Group(fields.pop("grp"))
    fields["status"] = TurnStatus(fields["status"])
    fields["control"] = Control(fields["control"])
    fields["disposition"] = Disposition(fields["disposition"]) if fields["disposition"] else None
    fields["timeout"] = turn_limits.in_seconds(fields.pop("timeout_ms"))
    kin = kinship.taken_from(fields)
    return Turn(**fields, kin=kin)


_LOAD = Hot(select(*COLUMNS).where(turns.c.id == bindparam("turn_id")))


def load(tx: Tx, turn_id: str) -> Turn | None:
    row = _LOAD.first(tx, {"turn_id": turn_id})
    return from_row(row) if row else None


_BY_DEDUPE_KEY = Hot(
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
    """Locks the open run it finds: a run that is just ending is waited for, so nobody misses the other's turn."""
    open_run = (
        select(runs.c.id)
        .where(runs.c.thread_id == bindparam("thread_id"), OPEN_RUNS)
        .limit(1)
        .with_for_update()
        .scalar_subquery()
    )
    return open_run.is_not(None)


def _somebody_is_ahead() -> ColumnElement[bool]:
    """Queued on the same thread, of this rank or above, and due: who waits for a time to come holds up nobody.

    Locks the first of them: one that is just starting is waited for, so that its end cannot come to pass unseen.
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


_FIELDS = (
    "id", "thread_id", "arrival", "agent", "grp", "rank", "tenant", "origin", "channel", "sender", "text", "meta",
    "strategy", "control", "source", "dedupe_key", "reply_target", "not_before", "due_at", "deadline", "queued_at",
    "nudge_at", "coalesce_key", "max_rounds", "timeout_ms", "space",
    *kinship.COLUMNS,
    "steers",
)  # fmt: skip

_ADMIT = Hot(
    insert(turns)
    .from_select(
        [*_FIELDS, "status", "ready"],
        select(
            *(type_coerce(bindparam(name, type_=turns.c[name].type), turns.c[name].type) for name in _FIELDS),
            literal_column("'queued'"),
            case(
                (or_(_thread_is_busy(), _somebody_is_ahead()), 0),
                (bindparam("not_before", type_=turns.c.not_before.type) > bindparam("queued_at"), 2),
                else_=1,
            ),
        ),
    )
    .returning(turns.c.ready)
)


def admit(tx: Tx, fields: Mapping[str, Any]) -> bool:
    """A queued turn; whether it is `ready`: its thread is free and nobody is ahead of it there."""
    try:
        return bool(_ADMIT.scalar(tx, {**_USUAL, **fields}))
    except IntegrityError as error:
        if _was_somebody_first(str(error.orig)):
            raise LostRace from error
        raise


def _was_somebody_first(told: str) -> bool:
    """Both databases name the key that was there already: by its index, or by the columns of that."""
    return any(name in told for name in ("dedupe", "coalesce", "uq_turns_will", "turns.origin"))


_RUNNING = (
    select(func.count()).select_from(runs).where(RUNNING_IN_GROUP, runs.c.grp == bindparam("group")).scalar_subquery()
)
_PLACES = Hot(
    select((func.coalesce(groups.c.budget, bindparam("budget")) - _RUNNING).label("free"), groups.c.hand_on).where(
        groups.c.name == bindparam("group")
    )
)


class Places(NamedTuple):
    """Of a group's budget."""

    free: int
    hand_on: bool  # a run that frees one sends for the next


def places(tx: Tx, group: Group, *, default: int) -> Places:
    row = _PLACES.rows(tx, {"group": group.value, "budget": default})[0]
    return Places(max(0, int(row["free"])), bool(row["hand_on"]))


def free_budget(tx: Tx, group: Group, *, default: int) -> int:
    """How many more runs of this group may start."""
    return places(tx, group, default=default).free


def stranded(tx: Tx, before: datetime, limit: int, *, look_again: datetime) -> list[str]:
    """Threads on which a turn queues while nothing is open there and nobody is ready, or sleeps until no later.

    Only so many are looked at, and then not again for a while: turns that wait for weeks behind a run that waits must
    not hide one that was forgotten.
    """
    looked_at = tx.execute(
        select(turns.c.id)
        .where(QUEUED_TURNS, has(turns.c.ready, 0), turns.c.nudge_at < before)
        .order_by(turns.c.nudge_at)
        .limit(limit)
        .with_for_update(skip_locked=True)
    )
    ids = list(looked_at.scalars())
    if not ids:
        return []
    tx.execute(update(turns).where(turns.c.id.in_(ids), STILL_QUEUED).values(nudge_at=look_again))
    other = turns.alias("other")
    ahead = select(other.c.id).where(
        other.c.thread_id == turns.c.thread_id,
        in_line(other),
        or_(has(other.c.ready, 1), and_(has(other.c.ready, 2), other.c.due_at <= turns.c.due_at)),
    )
    found = (
        select(turns.c.thread_id)
        .distinct()
        .where(
            turns.c.id.in_(ids),
            nothing_is_open_on(turns),
            ahead.limit(1).scalar_subquery().is_(None),
        )
    )
    return list(tx.execute(found).scalars())


def overdue(tx: Tx, now: datetime, limit: int) -> list[str]:
    """Queued turns whose deadline has passed."""
    found = select(turns.c.id).where(QUEUED_TURNS, turns.c.deadline <= now).limit(limit)
    return list(tx.execute(found).scalars())


def queued_ahead(tx: Tx, turn: Turn) -> int:
    line = select(func.count()).where(
        turns.c.thread_id == turn.thread_id, in_line(turns), turns.c.arrival < turn.arrival
    )
    return int(tx.execute(line).scalar_one())


def recent(tx: Tx, *, limit: int, status: TurnStatus | None = None, thread_id: str | None = None) -> list[Turn]:
    found = select(*COLUMNS).order_by(turns.c.queued_at.desc(), turns.c.id.desc()).limit(limit)
    if status:
        found = found.where(turns.c.status == status.value)
    if thread_id:
        found = found.where(turns.c.thread_id == thread_id)
    return [from_row(dict(row._mapping)) for row in tx.execute(found)]  # noqa: SLF001 - by name
