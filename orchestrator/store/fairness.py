"""Which turn of a group is next: its tenants take turns, and of a tenant the turn that has been due longest.

The tenants of a group are served in the order of their names, round and round; `groups.served` is the last one that was
served. The next is the first behind it with a turn that may start. An index of ready turns leads from tenant to
tenant, so a tenant with ten thousand turns is one step, and no turn beyond the free budget is read.

While more runs may start than turns are ready, all of them may, in whatever order their wake-ups come. Otherwise only
the first turn of the next tenant may. Where several may start at once, as many tenants as there is free budget have a
slot each: a turn with a slot may start before another one with a slot, and takes nothing from it. The last tenant
changes when the first turn in the order starts and not before, so budget is kept for that turn until it has started.
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
from chordage.orchestrator.store.groups import DEFAULT_BUDGET, GROUP, RUNNING, several_wait
from chordage.orchestrator.store.predicates import STILL_QUEUED, has, nothing_is_open_on
from chordage.orchestrator.store.schema import groups, turns
from chordage.orchestrator.store.statements import PreparedStatement


class StartRule(StrEnum):
    """What allows a turn to start. Each is a statement of its own, as small as possible: most turns need the first."""

    ALL_FIT = "all_fit"  # the budget covers every ready turn
    FIRST = "first"  # it is the first turn of the next tenant
    HAS_SLOT = "has_slot"  # its tenant has one of as many slots as there is free budget
    HAS_ROOM = "has_room"  # there is free budget, whichever turns wait for it


_NOW: BindParameter[datetime] = bindparam("now")


def may_start(turn: Any, guard: Callable[..., ColumnElement[bool]] = has) -> ColumnElement[bool]:
    """Ready, due, not too late, and its thread has no open run: a turn of higher rank may have overtaken it there.

    Without `not_before` it is due at once, even if the clocks of two hosts differ. `guard`: `still` for a turn that is
    looked up by its id.
    """
    return and_(
        guard(turn.c.status, TurnStatus.QUEUED),
        has(turn.c.ready, 1),
        or_(turn.c.not_before.is_(None), turn.c.not_before <= _NOW),
        or_(turn.c.deadline.is_(None), turn.c.deadline > _NOW),
        nothing_is_open_on(turn),
    )


def _tenant(*where: ColumnElement[bool], behind: Any = None) -> Any:
    """The first tenant by name that has a turn that may start; with `behind`, the first behind that name."""
    turn = turns.alias()
    first = select(turn.c.tenant).where(turn.c.grp == GROUP, may_start(turn), *where).order_by(turn.c.tenant).limit(1)
    return (first if behind is None else first.where(turn.c.tenant > behind)).scalar_subquery()


LAST_TENANT = func.coalesce(select(groups.c.served).where(groups.c.name == GROUP).scalar_subquery(), "")


FIRST_TENANT = func.coalesce(_tenant(behind=LAST_TENANT), _tenant())


def slots(number: Any) -> CTE:
    """Up to so many tenants, each once, beginning with the next to be served."""
    start = select(FIRST_TENANT.label("tenant")).cte("first_of_ring")
    first = select(start.c.tenant, start.c.tenant.label("first"), literal(1).label("place")).where(number > 0)
    ring = first.cte("ring", recursive=True)
    is_round = and_(ring.c.place > 1, ring.c.tenant == ring.c.first)
    following = func.coalesce(_tenant(behind=ring.c.tenant), _tenant())
    ring = ring.union_all(select(following, ring.c.first, ring.c.place + 1).where(ring.c.place < number, ~is_round))
    is_round = and_(ring.c.place > 1, ring.c.tenant == ring.c.first)
    return select(ring.c.tenant).where(ring.c.tenant.is_not(None), ~is_round).cte("seated")


def _each(tenants: CTE, number: Any) -> Any:
    """How many turns each tenant may start: there may be more places than tenants."""
    return number / func.nullif(select(func.count()).select_from(tenants).scalar_subquery(), 0)


# conditions of a start; that there is a place for it is another (store/starts.py)

BUDGET = func.coalesce(select(groups.c.budget).where(groups.c.name == GROUP).scalar_subquery(), DEFAULT_BUDGET)
_FREE = case((BUDGET > RUNNING, BUDGET - RUNNING), else_=0)
_OTHER = turns.alias("other")
_IS_READY = and_(has(_OTHER.c.status, TurnStatus.QUEUED), has(_OTHER.c.ready, 1), _OTHER.c.grp == GROUP)
_IS_OTHER = _OTHER.c.id != bindparam("turn_id")
_OTHERS = select(_OTHER.c.id).where(_IS_READY, _IS_OTHER).limit(BUDGET).subquery()
ALL_FIT = select(func.count()).select_from(_OTHERS).scalar_subquery() < BUDGET - RUNNING
_OLDER = turns.alias("older")
_OWN_BEFORE = (
    select(_OLDER.c.id)
    .where(_OLDER.c.grp == GROUP, _OLDER.c.tenant == turns.c.tenant, _OLDER.c.due_at < turns.c.due_at)
    .where(may_start(_OLDER))
    .correlate(turns)
    .limit(BUDGET)
)
_SLOTS = slots(_FREE)
HAS_SLOT = and_(
    turns.c.tenant.in_(select(_SLOTS.c.tenant)),
    select(func.count()).select_from(_OWN_BEFORE.subquery()).correlate(turns).scalar_subquery() < _each(_SLOTS, _FREE),
)

_EARLIER = select(_OLDER.c.id).where(
    _OLDER.c.grp == GROUP, _OLDER.c.tenant == turns.c.tenant, _OLDER.c.due_at < turns.c.due_at, may_start(_OLDER)
)
IS_FIRST = and_(
    turns.c.tenant == FIRST_TENANT,
    ~_EARLIER.correlate(turns).exists(),
)
# The order of the tenants is one for the whole group, so starts that follow it or move it come one by one, while more
# than one tenant waits.
_ORDER = select(groups.c.name).where(groups.c.name == GROUP)
LOCK_ORDER = PreparedStatement(_ORDER.where(several_wait(GROUP)).with_for_update(of=groups))
TRY_LOCK_ORDER = PreparedStatement(_ORDER.with_for_update(skip_locked=True))  # for those who hold rows behind it
_THIS: BindParameter[str] = bindparam("tenant")
_IS_BESIDE = or_(
    select(_OTHER.c.id).where(_IS_READY, _OTHER.c.tenant < _THIS).exists(),
    select(_OTHER.c.id).where(_IS_READY, _OTHER.c.tenant > _THIS).exists(),
)


def _no_ready_turn(*tenant: ColumnElement[bool]) -> ColumnElement[bool]:
    return ~select(_OTHER.c.id).where(_OTHER.c.grp == GROUP, may_start(_OTHER), *tenant).exists()


# Each reads a range of the index.
_NO_TENANT_BETWEEN = case(
    (_THIS > LAST_TENANT, _no_ready_turn(_OTHER.c.tenant > LAST_TENANT, _OTHER.c.tenant < _THIS)),
    else_=and_(_no_ready_turn(_OTHER.c.tenant > LAST_TENANT), _no_ready_turn(_OTHER.c.tenant < _THIS)),
)
# After the start of the first turn in the order. If no other tenant waits, the order does not matter.
SET_LAST_TENANT = (
    update(groups)
    .where(groups.c.name == GROUP, _THIS != LAST_TENANT, _IS_BESIDE, _NO_TENANT_BETWEEN)
    .values(served=_THIS)
)


# turns worth a try, read without a lock

_MANY: BindParameter[int] = bindparam("as_many")
_SLOTS_OF_MANY = slots(_MANY)


def _longest_due(tenant: Any, behind: Any = None) -> Any:
    turn = turns.alias()
    ready = select(turn.c.id).where(turn.c.grp == GROUP, turn.c.tenant == tenant, may_start(turn))
    if behind is not None:
        ready = ready.where(tuple_(turn.c.due_at, turn.c.id) > behind)
    return ready.order_by(turn.c.due_at, turn.c.id).limit(1).scalar_subquery()


def _next_turns() -> Any:
    columns = (turns.c.id, turns.c.thread_id, turns.c.tenant, turns.c.due_at)
    heads = (
        select(*columns, literal(1).label("place"))
        .select_from(_SLOTS_OF_MANY.join(turns, turns.c.id == _longest_due(_SLOTS_OF_MANY.c.tenant)))
        .cte("heads", recursive=True)
    )
    following = _longest_due(heads.c.tenant, tuple_(heads.c.due_at, heads.c.id))
    more = select(*columns, heads.c.place + 1).select_from(heads.join(turns, turns.c.id == following))
    heads = heads.union_all(more.where(heads.c.place < _each(_SLOTS_OF_MANY, _MANY)))
    return select(heads.c.id, heads.c.thread_id)


_NEXT_TURNS = PreparedStatement(_next_turns())
_NEXT_TURN = PreparedStatement(select(turns.c.id, turns.c.thread_id).where(turns.c.id == _longest_due(FIRST_TENANT)))


def next_turns(tx: Tx, group: Group, now: datetime, as_many: int) -> list[tuple[str, str]]:
    """Up to `as_many` turns that may start, in the order of their tenants, each with its thread."""
    binds = {"group": group.value, "now": now}
    rows = _NEXT_TURN.rows(tx, binds) if as_many == 1 else _NEXT_TURNS.rows(tx, {**binds, "as_many": as_many})
    return [(row["id"], row["thread_id"]) for row in rows]


_READY = select(turns.c.id).where(turns.c.grp == GROUP, may_start(turns)).limit(_MANY)
_COUNT_READY = PreparedStatement(select(func.count()).select_from(_READY.subquery()))


def count_ready(tx: Tx, group: Group, now: datetime, as_many: int) -> int:
    """How many turns of a group may start, counted up to `as_many`."""
    return int(_COUNT_READY.scalar(tx, {"group": group.value, "now": now, "as_many": as_many}))


# lost wake-ups and turns that sleep

IN_TRANSIT = timedelta(seconds=1)  # a wake-up is under way for so long
RESEND_IDLE = timedelta(seconds=5)  # a wake-up taken by a worker is carried out by then, or lost with the worker
RESEND_BUSY = timedelta(seconds=60)  # a wake-up that waits in a long queue may have been lost with it


_IS_READY_NOW = and_(has(turns.c.status, TurnStatus.QUEUED), has(turns.c.ready, 1))
_IS_ASLEEP = and_(has(turns.c.status, TurnStatus.QUEUED), has(turns.c.ready, 2))


def nudge(tx: Tx, among: list[str], now: datetime, *, nothing_waits: bool) -> list[tuple[str, Subject]]:
    """Those of these turns whose wake-up may be lost; from now on they count as sent. `nothing_waits`: no wake-up of
    the group is in its queue, so theirs is not merely late. A turn that has just come brought one; one that was asleep
    has none.
    """
    sent_before = now - RESEND_IDLE if nothing_waits else now - RESEND_BUSY
    due = (
        select(turns.c.id)
        .where(
            turns.c.id.in_(among),
            STILL_QUEUED,
            has(turns.c.ready, 1),
            turns.c.queued_at <= now - IN_TRANSIT,
            turns.c.nudge_at <= sent_before + RESEND_BUSY,
        )
        .order_by(turns.c.id)
        .with_for_update(skip_locked=True)
    )
    ids = list(tx.execute(due).scalars())
    if not ids:
        return []
    sent = update(turns).where(turns.c.id.in_(ids), STILL_QUEUED, has(turns.c.ready, 1))
    sent = sent.values(nudge_at=now + RESEND_BUSY).returning(turns.c.id, turns.c.thread_id, turns.c.agent)
    return sorted((row.id, Subject(row.thread_id, row.agent)) for row in tx.execute(sent))


def put_to_sleep(tx: Tx, group: Group, agent: str, until: datetime) -> int:
    """No turn of this agent may start before then. Returns how many were ready."""
    ready = select(turns.c.id).where(_IS_READY_NOW, turns.c.grp == group.value, turns.c.agent == agent)
    unlocked = ready.order_by(turns.c.id).with_for_update(skip_locked=True).scalar_subquery()
    asleep = update(turns).where(turns.c.id.in_(unlocked), STILL_QUEUED, has(turns.c.ready, 1))
    return tx.execute(asleep.values(ready=2, due_at=until)).rowcount


def wake(tx: Tx, now: datetime, limit: int) -> int:
    """Turns whose time has come are ready from now on."""
    due = select(turns.c.id).where(_IS_ASLEEP, turns.c.due_at <= now).order_by(turns.c.due_at).limit(limit)
    ids = list(tx.execute(due.with_for_update(skip_locked=True)).scalars())
    woken = update(turns).where(turns.c.id.in_(ids), STILL_QUEUED, has(turns.c.ready, 2)).values(ready=1)
    return tx.execute(woken).rowcount if ids else 0
