"""Groups: their budgets, their queues, and the wake-up for a place that becomes free.

Invariant: no place of a budget is free while a turn is ready and no wake-up for its group is on its way. Every ready
turn comes with a wake-up. One that finds the budget spent, or the next turns in the hands of other workers, starts
nothing, and its turn stays. So it sets `groups.hand_on`, and from then on each run that frees a place sends the next
wake-up. A run reads that mark in the statement that ends its turn or suspends it, so the end costs no more. The mark
is cleared when no turn of the group is ready.

The first race: a run that is just ending has read that there is no mark, and has not committed, so the worker that sets
the mark counts its place as taken. Every such run wrote its own row before it read the mark. The worker that sets the
mark commits, waits until no row of a running run is being written, and then looks for free places again. On SQLite
writing transactions come one after the other, and there is nothing to wait for.

The second race: a wake-up may find the mark set and leave its turn to the runs that end, while another process, which
did not see that turn, clears the mark. So the one that clears it commits, and then looks for ready turns again: the
turn was committed before its wake-up read the mark, and the mark is cleared before that look, so one sees the other.

A start counts no place as taken that another start has only asked for, and takes none that a run has not left. Where
two want the same number, the index makes the later one wait for the first to commit, and it then looks again.

Not promised: rescue sends a wake-up again that was lost or died with its process, and nothing does so before rescue.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any, NamedTuple

import structlog
from sqlalchemy import (
    BindParameter,
    ColumnElement,
    RowMapping,
    and_,
    bindparam,
    case,
    exists,
    func,
    select,
    tuple_,
    update,
)

from chordage.orchestrator.core.errors import Unavailable
from chordage.orchestrator.core.groups import Group
from chordage.orchestrator.core.status import TurnStatus
from chordage.orchestrator.store.database import Store, Tx
from chordage.orchestrator.store.predicates import OPEN_RUNS, QUEUED_IN_GROUP, RUNNING_IN_GROUP, has, in_line
from chordage.orchestrator.store.schema import groups, runs, threads, turns
from chordage.orchestrator.store.statements import PreparedStatement

log = structlog.get_logger()

MAX_COUNTED = 10_000  # queued turns that a reader counts
GroupRow = RowMapping

GROUP: BindParameter[str] = bindparam("group")
LOCK = PreparedStatement(select(groups.c.name).where(groups.c.name == GROUP).with_for_update())
DEFAULT_BUDGET: BindParameter[int] = bindparam("budget", type_=groups.c.budget.type)
RUNNING = select(func.count()).select_from(runs).where(runs.c.grp == GROUP, RUNNING_IN_GROUP).scalar_subquery()


def lock(tx: Tx, group: Group) -> None:
    """Before any other row."""
    LOCK.rows(tx, {"group": group.value})


# budgets


def budgets(tx: Tx) -> dict[Group, int | None]:
    """As the database has them. None: as the setting says."""
    return {Group(row.name): row.budget for row in tx.execute(select(groups.c.name, groups.c.budget))}


def set_budget(tx: Tx, group: Group, budget: int | None) -> None:
    """For every start from now on."""
    tx.execute(update(groups).where(groups.c.name == group.value).values(budget=budget))


class Places(NamedTuple):
    free: int  # how many more runs may start
    hand_on: bool  # a run that frees a place sends the next wake-up


_PLACES = PreparedStatement(
    select((func.coalesce(groups.c.budget, DEFAULT_BUDGET) - RUNNING).label("free"), groups.c.hand_on).where(
        groups.c.name == GROUP
    )
)


def places(tx: Tx, group: Group, *, default: int) -> Places:
    row = _PLACES.rows(tx, {"group": group.value, "budget": default})[0]
    return Places(max(0, int(row["free"])), bool(row["hand_on"]))


def running_by_tenant(tx: Tx, group: Group) -> dict[str, int]:
    """All of them are read: they are no more than the budget."""
    running = (
        select(turns.c.tenant, func.count().label("number"))
        .join(runs, turns.c.id == runs.c.turn_id)
        .where(runs.c.grp == group.value, RUNNING_IN_GROUP)
        .group_by(turns.c.tenant)
    )
    return {row.tenant: row.number for row in tx.execute(running)}


# queues: never more is read than the caller needs


def queued_by_tenant(tx: Tx, group: Group, now: datetime) -> Sequence[GroupRow]:
    """Counted among those that came first, with the time since when the oldest is due."""
    first = (
        select(turns.c.tenant, turns.c.due_at)
        .where(QUEUED_IN_GROUP, turns.c.grp == group.value)
        .order_by(turns.c.queued_at, turns.c.id)
        .limit(MAX_COUNTED)
        .subquery()
    )
    number = func.count().label("number")
    since = func.min(case((first.c.due_at <= now, first.c.due_at))).label("since")
    by_tenant = select(first.c.tenant, number, since).group_by(first.c.tenant)
    return tx.execute(by_tenant.order_by(number.desc(), first.c.tenant)).mappings().all()


def is_full(tx: Tx, group: Group, bound: int) -> bool:
    """The caller holds the lock of the group, so this stays true until its message is stored."""
    queued = select(turns.c.id).where(QUEUED_IN_GROUP, turns.c.grp == group.value).limit(bound).subquery()
    return int(tx.execute(select(func.count()).select_from(queued)).scalar_one()) >= bound


MAX_TRIES = 20


def oldest_queued(tx: Tx, group: Group) -> str | None:
    """The oldest whose thread no other transaction is at work on. Its thread and the open run there are locked without
    a wait: a transaction that arrives holds the locks of its own thread, and two must not wait for each other. Turns of
    sub-agents stay, because their parent waits.
    """
    oldest = (
        select(turns.c.id, turns.c.thread_id, turns.c.queued_at)
        .join(threads, threads.c.id == turns.c.thread_id)
        .where(QUEUED_IN_GROUP, turns.c.grp == group.value, turns.c.parent_call.is_(None))
        .order_by(turns.c.queued_at, turns.c.id)
        .limit(1)
        .with_for_update(of=threads, skip_locked=True)
    )
    following = oldest
    for _ in range(MAX_TRIES):
        row = tx.execute(following).first()
        if row is None:
            return None
        if _lock_open_run(tx, row.thread_id):
            return str(row.id)
        following = oldest.where(tuple_(turns.c.queued_at, turns.c.id) > (row.queued_at, row.id))
    return None


def _lock_open_run(tx: Tx, thread_id: str) -> bool:
    """True too if there is none."""
    open_run = select(runs.c.id).where(runs.c.thread_id == thread_id, OPEN_RUNS)
    if tx.execute(open_run).first() is None:
        return True
    return tx.execute(open_run.with_for_update(skip_locked=True)).first() is not None


def newest_queued_on(tx: Tx, group: Group, thread_id: str) -> str | None:
    queued = select(turns.c.id).where(
        in_line(turns), turns.c.thread_id == thread_id, turns.c.grp == group.value, turns.c.parent_call.is_(None)
    )
    turn_id: str | None = tx.execute(queued.order_by(turns.c.arrival.desc()).limit(1)).scalar()
    return turn_id


# the mark `hand_on`

_OF_GROUP: BindParameter[str] = bindparam("of_group")
_IS_GROUP = groups.c.name == _OF_GROUP


def several_wait(group: BindParameter[str]) -> ColumnElement[bool]:
    """Whether more than one tenant has a ready turn."""
    first, following = turns.alias(), turns.alias()
    lowest = select(first.c.tenant).where(_is_ready(first, group)).order_by(first.c.tenant).limit(1)
    return exists().where(_is_ready(following, group), following.c.tenant > lowest.scalar_subquery())


def _is_ready(turn: Any, group: BindParameter[str]) -> ColumnElement[bool]:
    return and_(has(turn.c.status, TurnStatus.QUEUED), has(turn.c.ready, 1), turn.c.grp == group)


_READY = select(turns.c.id).where(_is_ready(turns, _OF_GROUP))
_SET = PreparedStatement(update(groups).where(_IS_GROUP, has(groups.c.hand_on, 0), _READY.exists()).values(hand_on=1))
_CLEAR = PreparedStatement(
    update(groups).where(_IS_GROUP, has(groups.c.hand_on, 1), ~_READY.exists()).values(hand_on=0)
)

SEVERAL = 2
# Read by a run that frees a place. 1: a turn waits for it. SEVERAL: turns of several tenants do.
PLACE_AWAITED = (
    select(case((and_(has(groups.c.hand_on, 1), several_wait(_OF_GROUP)), SEVERAL), else_=groups.c.hand_on))
    .where(_IS_GROUP)
    .scalar_subquery()
)
_PLACE_AWAITED = PreparedStatement(select(PLACE_AWAITED.label("hand_on")))


def place_awaited(tx: Tx, group: Group) -> int:
    """Whether a turn waits for the place that a run of this group frees in this transaction (PLACE_AWAITED). It has
    written its row.
    """
    return int(_PLACE_AWAITED.scalar(tx, {"of_group": group.value}) or 0)


def await_place(store: Store, group: Group) -> bool:
    """A turn is ready and could not start: each run that ends from now on sends a wake-up.

    True: this set the mark. Runs that were just ending did not see it, but have ended by now: look again.
    """
    if not _change_mark(store, group, _SET):
        return False
    if store.is_postgres:
        try:
            _wait_for_writers(store, group)
        except Unavailable as error:  # a process that stopped with its transaction open
            log.warning("a run did not let go of its row in time", group=group.value, error=str(error))
    return True


def clear_awaited(store: Store, group: Group) -> bool:
    """No turn of the group is ready, except one that comes just now.

    True: this cleared the mark. A wake-up may have read it before and left its turn to the runs that end: look again.
    """
    return _change_mark(store, group, _CLEAR)


def _change_mark(store: Store, group: Group, change: PreparedStatement) -> bool:
    """Under the lock of the group, so that no worker relies on a mark that another is just clearing."""
    with store.one_trip() as tx:
        LOCK.send(tx, {"group": group.value})
        changed = change.send(tx, {"of_group": group.value})
    return changed.changed() == 1


_RUNNING_IDS = select(runs.c.id).where(runs.c.grp == _OF_GROUP, RUNNING_IN_GROUP)
_NOT_BEING_WRITTEN = _RUNNING_IDS.with_for_update(read=True, skip_locked=True)
_WAIT = select(runs.c.id).where(runs.c.id == bindparam("run_id")).with_for_update(read=True)


def _wait_for_writers(store: Store, group: Group) -> None:
    """Each lock is released with its statement, so no other transaction waits for this one."""
    binds = {"of_group": group.value}
    with store.read() as tx:
        running = set(tx.execute(_RUNNING_IDS, binds).scalars())
        not_written = set(tx.execute(_NOT_BEING_WRITTEN, binds).scalars())
        for run_id in sorted(running - not_written):
            tx.execute(_WAIT, {"run_id": run_id})
