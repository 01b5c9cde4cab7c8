"""What readers ask of groups. However long a queue is, no more of it is read than is told.

The queue of a group as a whole: how full it is, and which of its turns gives way. Never more than its bound is read.

Whoever asks holds the lock of the group: the count stays as it was seen until the message is stored.

A place of a group's budget that becomes free is handed on to a ready turn.

Invariant: no place is free while a turn is ready and no wake-up for its group is under way. Every ready turn comes with
a wake-up of its own. One that finds the budget spent, or the next turns in the hands of others, starts nothing, and its
turn stays; so it sets `groups.hand_on`, and from then on each run that frees a place sends the next wake-up. Runs read
that mark in the statement that ends their turn or puts them to rest, so an end costs nothing more. The mark goes when
no turn of the group is ready.

The race: a run that is just ending has read that there is no mark, and has not committed; so whoever sets the mark has
counted its place as taken. Every such run has written its own row before it read the mark. Whoever sets the mark
commits, waits until no row of a running run is being written, and then looks for free places again. On SQLite
transactions that write come one after the other, and nothing is to be waited for.

Not promised: a wake-up that is lost, or dies with its process, is sent again by rescue, and by nobody before.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import NamedTuple

import structlog
from sqlalchemy import RowMapping, bindparam, case, func, select, tuple_, update

from chordage.orchestrator.core.errors import Unavailable
from chordage.orchestrator.core.groups import Group
from chordage.orchestrator.core.status import TurnStatus
from chordage.orchestrator.store.database import Store, Tx
from chordage.orchestrator.store.predicates import OPEN_RUNS, QUEUED_IN_GROUP, RUNNING_IN_GROUP, has, in_line
from chordage.orchestrator.store.schema import groups, runs, threads, turns
from chordage.orchestrator.store.statements import PreparedStatement

COUNTED = 10_000  # at most; of more is said that there are more
GroupRow = RowMapping


def budgets(tx: Tx) -> dict[Group, int | None]:
    """What is laid down in the database. None: the setting decides."""
    return {Group(row.name): row.budget for row in tx.execute(select(groups.c.name, groups.c.budget))}


def set_budget(tx: Tx, group: Group, budget: int | None) -> None:
    """From the next start on, everywhere."""
    tx.execute(update(groups).where(groups.c.name == group.value).values(budget=budget))


_RUNNING = (
    select(func.count()).select_from(runs).where(RUNNING_IN_GROUP, runs.c.grp == bindparam("group")).scalar_subquery()
)


_PLACES = PreparedStatement(
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


def free_places(tx: Tx, group: Group, *, default: int) -> int:
    """How many more runs of this group may start."""
    return places(tx, group, default=default).free


def running_by_tenant(tx: Tx, group: Group) -> dict[str, int]:
    """By tenant. As many as the budget, so all of them are read."""
    of_turn = turns.c.id == runs.c.turn_id
    found = (
        select(turns.c.tenant, func.count().label("number"))
        .join(runs, of_turn)
        .where(runs.c.grp == group.value, RUNNING_IN_GROUP)
    )
    return {row.tenant: row.number for row in tx.execute(found.group_by(turns.c.tenant))}


def queued_by_tenant(tx: Tx, group: Group, now: datetime) -> Sequence[GroupRow]:
    """By tenant, among those that came first; and since when the oldest is due."""
    first = (
        select(turns.c.tenant, turns.c.due_at)
        .where(QUEUED_IN_GROUP, turns.c.grp == group.value)
        .order_by(turns.c.queued_at, turns.c.id)
        .limit(COUNTED)
        .subquery()
    )
    number = func.count().label("number")
    since = func.min(case((first.c.due_at <= now, first.c.due_at))).label("since")
    found = select(first.c.tenant, number, since).group_by(first.c.tenant)
    return tx.execute(found.order_by(number.desc(), first.c.tenant)).mappings().all()


def lock(tx: Tx, group: Group) -> None:
    """Before any other row, as whoever starts a turn does."""
    tx.execute(select(groups.c.name).where(groups.c.name == group.value).with_for_update())


def is_full(tx: Tx, group: Group, bound: int) -> bool:
    queued = select(turns.c.id).where(QUEUED_IN_GROUP, turns.c.grp == group.value).limit(bound).subquery()
    return int(tx.execute(select(func.count()).select_from(queued)).scalar_one()) >= bound


MAX_TRIES = 20


def oldest_queued(tx: Tx, group: Group) -> str | None:
    """Whose line nobody else is at work on. Its thread and the run that is open there are locked without a wait: who
    comes holds locks of its own line, and nobody may wait for each other. Sub-agents' turns stay: whoever asked waits.
    """
    found = (
        select(turns.c.id, turns.c.thread_id, turns.c.queued_at)
        .join(threads, threads.c.id == turns.c.thread_id)
        .where(QUEUED_IN_GROUP, turns.c.grp == group.value, turns.c.parent_call.is_(None))
        .order_by(turns.c.queued_at, turns.c.id)
        .limit(1)
        .with_for_update(of=threads, skip_locked=True)
    )
    after = found
    for _ in range(MAX_TRIES):
        row = tx.execute(after).first()
        if row is None or _holds_run(tx, row.thread_id):
            return row.id if row else None
        after = found.where(tuple_(turns.c.queued_at, turns.c.id) > (row.queued_at, row.id))
    return None


def _holds_run(tx: Tx, thread_id: str) -> bool:
    """Or there is none."""
    open_there = select(runs.c.id).where(runs.c.thread_id == thread_id, OPEN_RUNS)
    if tx.execute(open_there).first() is None:
        return True
    return tx.execute(open_there.with_for_update(skip_locked=True)).first() is not None


def newest_queued_on(tx: Tx, group: Group, thread_id: str) -> str | None:
    found = select(turns.c.id).where(
        in_line(turns), turns.c.thread_id == thread_id, turns.c.grp == group.value, turns.c.parent_call.is_(None)
    )
    turn_id: str | None = tx.execute(found.order_by(turns.c.arrival.desc()).limit(1)).scalar()
    return turn_id


log = structlog.get_logger()

_IS_GROUP = groups.c.name == bindparam("of_group")
_LOCK = PreparedStatement(select(groups.c.name).where(_IS_GROUP).with_for_update())
_READY = select(turns.c.id).where(
    has(turns.c.status, TurnStatus.QUEUED), has(turns.c.ready, 1), turns.c.grp == bindparam("of_group")
)
_SET = PreparedStatement(update(groups).where(_IS_GROUP, has(groups.c.hand_on, 0), _READY.exists()).values(hand_on=1))
_CLEAR = PreparedStatement(
    update(groups).where(_IS_GROUP, has(groups.c.hand_on, 1), ~_READY.exists()).values(hand_on=0)
)
PLACE_AWAITED = select(groups.c.hand_on).where(_IS_GROUP).scalar_subquery()  # what a run reads that frees a place
_PLACE_AWAITED = PreparedStatement(select(PLACE_AWAITED.label("hand_on")))


def is_place_awaited(tx: Tx, group: Group) -> bool:
    """Whether the place that a run of this group frees in this transaction is waited for. It has written its row."""
    return bool(_PLACE_AWAITED.scalar(tx, {"of_group": group.value}))


def await_place(store: Store, group: Group) -> bool:
    """A turn is ready and is left behind: each run that ends from now on sends a wake-up.

    True: this is the first to say so. Runs that were just ending did not know of it, but have ended by now: look again.
    """
    if not _mark(store, group, _SET):
        return False
    if store.is_postgres:
        try:
            _wait_for_writers(store, group)
        except Unavailable as error:  # a process that stands still with its transaction open
            log.warning("a run did not let go of its row in time", group=group.value, error=str(error))
    return True


def clear_awaited(store: Store, group: Group) -> None:
    """No turn of the group is ready, unless one comes just now; that one has a wake-up of its own."""
    _mark(store, group, _CLEAR)


def _mark(store: Store, group: Group, change: PreparedStatement) -> bool:
    """Under the lock of the group, so that none who sets the mark believes in one that is just being cleared."""
    binds = {"of_group": group.value}
    with store.one_trip() as tx:
        _LOCK.send(tx, binds)
        changed = change.send(tx, binds)
    return changed.changed() == 1


_RUNNING_RUNS = select(runs.c.id).where(runs.c.grp == bindparam("of_group"), RUNNING_IN_GROUP)
_WRITTEN_BY_NOBODY = _RUNNING_RUNS.with_for_update(read=True, skip_locked=True)
_WAIT = select(runs.c.id).where(runs.c.id == bindparam("run_id")).with_for_update(read=True)


def _wait_for_writers(store: Store, group: Group) -> None:
    """Each lock is let go with its statement: nobody waits for us while we wait."""
    binds = {"of_group": group.value}
    with store.read() as tx:
        running = set(tx.execute(_RUNNING_RUNS, binds).scalars())
        still = set(tx.execute(_WRITTEN_BY_NOBODY, binds).scalars())
        for run_id in sorted(running - still):
            tx.execute(_WAIT, {"run_id": run_id})
