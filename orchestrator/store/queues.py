"""The queue of a group as a whole: how full it is, and which of its turns gives way. Never more than its bound is read.

Whoever asks holds the lock of the group: the count stays as it was seen until the message is stored.
"""

from __future__ import annotations

from sqlalchemy import func, select, tuple_

from chordage.orchestrator.core.groups import Group
from chordage.orchestrator.store.predicates import OPEN_RUNS, QUEUED_IN_GROUP, in_line
from chordage.orchestrator.store.schema import groups, runs, threads, turns
from chordage.orchestrator.store.tx import Tx


def lock(tx: Tx, group: Group) -> None:
    """Before any other row, as whoever starts a turn does."""
    tx.execute(select(groups.c.name).where(groups.c.name == group.value).with_for_update())


def is_full(tx: Tx, group: Group, bound: int) -> bool:
    queued = select(turns.c.id).where(QUEUED_IN_GROUP, turns.c.grp == group.value).limit(bound).subquery()
    return int(tx.execute(select(func.count()).select_from(queued)).scalar_one()) >= bound


TRIES = 20


def oldest(tx: Tx, group: Group) -> str | None:
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
    for _ in range(TRIES):
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


def newest_of(tx: Tx, group: Group, thread_id: str) -> str | None:
    found = select(turns.c.id).where(
        in_line(turns), turns.c.thread_id == thread_id, turns.c.grp == group.value, turns.c.parent_call.is_(None)
    )
    turn_id: str | None = tx.execute(found.order_by(turns.c.arrival.desc()).limit(1)).scalar()
    return turn_id
