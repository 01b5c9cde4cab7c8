"""Who of a group is next: its tenants take turns, and of a tenant the turn that has been due longest.

The tenants of a group stand in a ring, in the order of their names; `groups.served` is whose turn it was last. Whoever
comes behind it and has a turn that may start is next. The ring is walked from tenant to tenant by the index of ready
turns: a tenant with ten thousand of them is one step, and nobody beyond the budget that is free is looked at.

While more may start than are ready, all of them may, in whatever order their wake-ups come. Otherwise the first of the
ring may; and where several may start at once, as many tenants have a seat as there is budget free: whoever sits may
start before another who sits, and takes nothing from it. The mark moves when the first of the ring starts and not
before, so the first has budget kept for it until it has started.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any

from sqlalchemy import (
    BindParameter,
    ColumnElement,
    and_,
    bindparam,
    case,
    func,
    literal,
    or_,
    select,
    tuple_,
    update,
)
from sqlalchemy.sql.selectable import CTE

from chordage.orchestrator.core.groups import Group
from chordage.orchestrator.core.records import Subject
from chordage.orchestrator.core.status import TurnStatus
from chordage.orchestrator.store.database import Tx
from chordage.orchestrator.store.predicates import RUNNING_IN_GROUP, STILL_QUEUED, has, nothing_is_open_on
from chordage.orchestrator.store.schema import groups, runs, turns
from chordage.orchestrator.store.statements import PreparedStatement


class StartRule(StrEnum):
    """By what right a turn starts. Each is a statement of its own, as small as it can be: most turns need the first."""

    ALL_FIT = "all_fit"  # the budget covers every ready turn
    FIRST = "first"  # it is the first turn of the next tenant
    HAS_SLOT = "has_slot"  # its tenant has one of as many slots as there is free budget
    HAS_ROOM = "has_room"  # there is free budget, whichever turns wait for it


_GROUP: BindParameter[str] = bindparam("group")
_NOW: BindParameter[datetime] = bindparam("now")


def may_start(turn: Any, guard: Callable[..., ColumnElement[bool]] = has) -> ColumnElement[bool]:
    """Ready, due, not too late, and nothing is open on its thread: a turn of higher rank may have overtaken it there.

    Without `not_before` it is due as soon as it is seen, whatever the clocks of two hosts say. `guard`: `still` of a
    turn that is found by its id.
    """
    return and_(
        guard(turn.c.status, TurnStatus.QUEUED),
        has(turn.c.ready, 1),
        or_(turn.c.not_before.is_(None), turn.c.not_before <= _NOW),
        or_(turn.c.deadline.is_(None), turn.c.deadline > _NOW),
        nothing_is_open_on(turn),
    )


def _tenant(*where: ColumnElement[bool], behind: Any = None) -> Any:
    """The next in the ring, not yet round it; without `behind` its first."""
    turn = turns.alias()
    found = select(turn.c.tenant).where(turn.c.grp == _GROUP, may_start(turn), *where).order_by(turn.c.tenant).limit(1)
    return (found if behind is None else found.where(turn.c.tenant > behind)).scalar_subquery()


LAST_TENANT = func.coalesce(select(groups.c.served).where(groups.c.name == _GROUP).scalar_subquery(), "")


_FIRST_TENANT = func.coalesce(_tenant(behind=LAST_TENANT), _tenant())


def slots(seats: Any) -> CTE:
    """As many tenants as there are seats, from the mark on, until the ring closes."""
    start = select(_FIRST_TENANT.label("tenant")).cte("first_of_ring")
    first_seat = select(start.c.tenant, start.c.tenant.label("first"), literal(1).label("place")).where(seats > 0)
    ring = first_seat.cte("ring", recursive=True)
    closed = and_(ring.c.place > 1, ring.c.tenant == ring.c.first)
    behind = func.coalesce(_tenant(behind=ring.c.tenant), _tenant())
    ring = ring.union_all(select(behind, ring.c.first, ring.c.place + 1).where(ring.c.place < seats, ~closed))
    closed = and_(ring.c.place > 1, ring.c.tenant == ring.c.first)
    return select(ring.c.tenant).where(ring.c.tenant.is_not(None), ~closed).cte("seated")


def _each(seated: CTE, seats: Any) -> Any:
    """How many turns each may start: there may be more seats than tenants."""
    return seats / func.nullif(select(func.count()).select_from(seated).scalar_subquery(), 0)


# the guard of the start, under the lock of the group

# As the group's row has it, else as the setting does.
_BUDGET = func.coalesce(
    select(groups.c.budget).where(groups.c.name == _GROUP).scalar_subquery(),
    bindparam("budget", type_=groups.c.budget.type),
)
_RUNNING = select(func.count()).select_from(runs).where(runs.c.grp == _GROUP, RUNNING_IN_GROUP).scalar_subquery()
_FREE = case((_BUDGET > _RUNNING, _BUDGET - _RUNNING), else_=0)
_OTHER = turns.alias("other")
_IS_READY = and_(has(_OTHER.c.status, TurnStatus.QUEUED), has(_OTHER.c.ready, 1), _OTHER.c.grp == _GROUP)
_IS_OTHER = _OTHER.c.id != bindparam("turn_id")
_OTHERS = select(_OTHER.c.id).where(_IS_READY, _IS_OTHER).limit(_BUDGET).subquery()
IS_ROOM = _BUDGET > _RUNNING
ALL_FIT = select(func.count()).select_from(_OTHERS).scalar_subquery() < _BUDGET - _RUNNING
_OLDER = turns.alias("older")
_OWN_BEFORE = (
    select(_OLDER.c.id)
    .where(_OLDER.c.grp == _GROUP, _OLDER.c.tenant == turns.c.tenant, _OLDER.c.due_at < turns.c.due_at)
    .where(may_start(_OLDER))
    .correlate(turns)
    .limit(_BUDGET)
)
_SLOTS = slots(_FREE)
HAS_SLOT = and_(
    turns.c.tenant.in_(select(_SLOTS.c.tenant)),
    select(func.count()).select_from(_OWN_BEFORE.subquery()).correlate(turns).scalar_subquery() < _each(_SLOTS, _FREE),
)

_EARLIER = select(_OLDER.c.id).where(
    _OLDER.c.grp == _GROUP, _OLDER.c.tenant == turns.c.tenant, _OLDER.c.due_at < turns.c.due_at, may_start(_OLDER)
)
IS_FIRST = and_(
    IS_ROOM,
    turns.c.tenant == _FIRST_TENANT,
    ~_EARLIER.correlate(turns).exists(),
)
_THIS: BindParameter[str] = bindparam("tenant")
_IS_BESIDE = or_(
    select(_OTHER.c.id).where(_IS_READY, _OTHER.c.tenant < _THIS).exists(),
    select(_OTHER.c.id).where(_IS_READY, _OTHER.c.tenant > _THIS).exists(),
)


def _no_ready_turn(*tenant: ColumnElement[bool]) -> ColumnElement[bool]:
    return ~select(_OTHER.c.id).where(_OTHER.c.grp == _GROUP, may_start(_OTHER), *tenant).exists()


# Each a range of the index.
_NO_TENANT_BETWEEN = case(
    (_THIS > LAST_TENANT, _no_ready_turn(_OTHER.c.tenant > LAST_TENANT, _OTHER.c.tenant < _THIS)),
    else_=and_(_no_ready_turn(_OTHER.c.tenant > LAST_TENANT), _no_ready_turn(_OTHER.c.tenant < _THIS)),
)
# A tenant's turn is over, if it was the first of the ring; where nobody else waits there is no ring.
SET_LAST_TENANT = (
    update(groups)
    .where(groups.c.name == _GROUP, _THIS != LAST_TENANT, _IS_BESIDE, _NO_TENANT_BETWEEN)
    .values(served=_THIS)
)


# who is worth a try, seen without a lock

_MANY: BindParameter[int] = bindparam("as_many")
_SLOTS_OF_MANY = slots(_MANY)


def _longest_due(tenant: Any, behind: Any = None) -> Any:
    turn = turns.alias()
    found = select(turn.c.id).where(turn.c.grp == _GROUP, turn.c.tenant == tenant, may_start(turn))
    if behind is not None:
        found = found.where(tuple_(turn.c.due_at, turn.c.id) > behind)
    return found.order_by(turn.c.due_at, turn.c.id).limit(1).scalar_subquery()


def _next_turns() -> Any:
    found = (turns.c.id, turns.c.thread_id, turns.c.tenant, turns.c.due_at)
    heads = (
        select(*found, literal(1).label("place"))
        .select_from(_SLOTS_OF_MANY.join(turns, turns.c.id == _longest_due(_SLOTS_OF_MANY.c.tenant)))
        .cte("heads", recursive=True)
    )
    behind = _longest_due(heads.c.tenant, tuple_(heads.c.due_at, heads.c.id))
    more = select(*found, heads.c.place + 1).select_from(heads.join(turns, turns.c.id == behind))
    heads = heads.union_all(more.where(heads.c.place < _each(_SLOTS_OF_MANY, _MANY)))
    return select(heads.c.id, heads.c.thread_id)


_NEXT_TURNS = PreparedStatement(_next_turns())
_NEXT_TURN = PreparedStatement(select(turns.c.id, turns.c.thread_id).where(turns.c.id == _longest_due(_FIRST_TENANT)))


def next_turns(tx: Tx, group: Group, now: datetime, as_many: int) -> list[tuple[str, str]]:
    """Turns that may start, each with its thread: at most so many, and no tenant's but in its turn."""
    binds = {"group": group.value, "now": now}
    rows = _NEXT_TURN.rows(tx, binds) if as_many == 1 else _NEXT_TURNS.rows(tx, {**binds, "as_many": as_many})
    return [(row["id"], row["thread_id"]) for row in rows]


# wake-ups that got lost

_READY = select(turns.c.id).where(turns.c.grp == bindparam("group"), may_start(turns)).limit(bindparam("as_many"))


_COUNT_READY = PreparedStatement(select(func.count()).select_from(_READY.subquery()))


def count_ready(tx: Tx, group: Group, now: datetime, as_many: int) -> int:
    """How many turns of a group may start; no more than so many are looked at."""
    return int(_COUNT_READY.scalar(tx, {"group": group.value, "now": now, "as_many": as_many}))


IN_TRANSIT = timedelta(seconds=1)  # a wake-up is on its way for so long
RESEND_IDLE = timedelta(seconds=5)  # a wake-up that a worker has taken is carried out by then, or lost with the worker
RESEND_BUSY = timedelta(seconds=60)  # a wake-up that waits in a long queue may have been lost with it all the same


def nudge(tx: Tx, among: list[str], now: datetime, *, nothing_waits: bool) -> list[tuple[str, Subject]]:
    """Those of them whose wake-up may have got lost. `nothing_waits`: no wake-up of the group does, so it is not
    merely late. One that has just come brought one; one that was asleep has none.
    """
    asked_before = now - RESEND_IDLE if nothing_waits else now - RESEND_BUSY
    due = (
        select(turns.c.id)
        .where(
            turns.c.id.in_(among),
            STILL_QUEUED,
            has(turns.c.ready, 1),
            turns.c.queued_at <= now - IN_TRANSIT,
            turns.c.nudge_at <= asked_before + RESEND_BUSY,
        )
        .order_by(turns.c.id)
        .with_for_update(skip_locked=True)
    )
    ids = list(tx.execute(due).scalars())
    asked_again = update(turns).where(turns.c.id.in_(ids), STILL_QUEUED, has(turns.c.ready, 1))
    asked_again = asked_again.values(nudge_at=now + RESEND_BUSY).returning(turns.c.id, turns.c.thread_id, turns.c.agent)
    return sorted((row.id, Subject(row.thread_id, row.agent)) for row in tx.execute(asked_again)) if ids else []


def put_to_sleep(tx: Tx, group: Group, agent: str, until: datetime) -> int:
    """No turn of this agent stands in the ring before then. How many did."""
    standing = and_(has(turns.c.status, TurnStatus.QUEUED), has(turns.c.ready, 1))
    found = select(turns.c.id).where(standing, turns.c.grp == group.value, turns.c.agent == agent).order_by(turns.c.id)
    asleep = update(turns).where(turns.c.id.in_(found.with_for_update(skip_locked=True).scalar_subquery()))
    return tx.execute(asleep.where(STILL_QUEUED, has(turns.c.ready, 1)).values(ready=2, due_at=until)).rowcount


def wake(tx: Tx, now: datetime, limit: int) -> int:
    """Turns whose time has come stand in the ring from now on."""
    asleep = and_(has(turns.c.status, TurnStatus.QUEUED), has(turns.c.ready, 2))
    due = select(turns.c.id).where(asleep, turns.c.due_at <= now).order_by(turns.c.due_at).limit(limit)
    ids = list(tx.execute(due.with_for_update(skip_locked=True)).scalars())
    woken = update(turns).where(turns.c.id.in_(ids), STILL_QUEUED, has(turns.c.ready, 2)).values(ready=1)
    return tx.execute(woken).rowcount if ids else 0
