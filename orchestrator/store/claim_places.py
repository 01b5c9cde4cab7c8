"""A place of a group's budget that becomes free is handed on to a ready turn.

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

import structlog
from sqlalchemy import bindparam, select, update

from chordage.orchestrator.core.errors import Unavailable
from chordage.orchestrator.core.groups import Group
from chordage.orchestrator.core.status import TurnStatus
from chordage.orchestrator.store.hot import Hot
from chordage.orchestrator.store.predicates import RUNNING_IN_GROUP, has
from chordage.orchestrator.store.schema import groups, runs, turns
from chordage.orchestrator.store.tx import Store, Tx

log = structlog.get_logger()

_IS_GROUP = groups.c.name == bindparam("of_group")
_LOCK = Hot(select(groups.c.name).where(_IS_GROUP).with_for_update())
_READY = select(turns.c.id).where(
    has(turns.c.status, TurnStatus.QUEUED), has(turns.c.ready, 1), turns.c.grp == bindparam("of_group")
)
_SET = Hot(update(groups).where(_IS_GROUP, has(groups.c.hand_on, 0), _READY.exists()).values(hand_on=1))
_CLEAR = Hot(update(groups).where(_IS_GROUP, has(groups.c.hand_on, 1), ~_READY.exists()).values(hand_on=0))
IS_HANDED_ON = select(groups.c.hand_on).where(_IS_GROUP).scalar_subquery()  # what a run reads that frees a place
_IS_HANDED_ON = Hot(select(IS_HANDED_ON.label("hand_on")))


def is_handed_on(tx: Tx, group: Group) -> bool:
    """Whether the place that a run of this group frees in this transaction is waited for. It has written its row."""
    return bool(_IS_HANDED_ON.scalar(tx, {"of_group": group.value}))


def wait_for_place(store: Store, group: Group) -> bool:
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


def nobody_waits_for_place(store: Store, group: Group) -> None:
    """No turn of the group is ready, unless one comes just now; that one has a wake-up of its own."""
    _mark(store, group, _CLEAR)


def _mark(store: Store, group: Group, change: Hot) -> bool:
    """Under the lock of the group, so that none who sets the mark believes in one that is just being cleared."""
    binds = {"of_group": group.value}
    with store.one_trip() as tx:
        _LOCK.send(tx, binds)
        changed = change.send(tx, binds)
    return changed.changed() == 1


_RUNNING = select(runs.c.id).where(runs.c.grp == bindparam("of_group"), RUNNING_IN_GROUP)
_WRITTEN_BY_NOBODY = _RUNNING.with_for_update(read=True, skip_locked=True)
_WAIT = select(runs.c.id).where(runs.c.id == bindparam("run_id")).with_for_update(read=True)


def _wait_for_writers(store: Store, group: Group) -> None:
    """Each lock is let go with its statement: nobody waits for us while we wait."""
    binds = {"of_group": group.value}
    with store.read() as tx:
        running = set(tx.execute(_RUNNING, binds).scalars())
        still = set(tx.execute(_WRITTEN_BY_NOBODY, binds).scalars())
        for run_id in sorted(running - still):
            tx.execute(_WAIT, {"run_id": run_id})
