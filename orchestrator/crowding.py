"""A message comes to a group whose queue may be full: it is refused, or another gives way, in the same transaction.

Exact however many come at once: the row of the group is locked first, by whoever comes to a group that has a bound.
Who starts a turn takes the same lock, and only makes room. Without a bound nothing is asked and nothing locked.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from chordage.orchestrator import ending
from chordage.orchestrator.core.errors import QueueFull
from chordage.orchestrator.core.groups import Group
from chordage.orchestrator.core.intents import Intent
from chordage.orchestrator.core.queue_bounds import Overflow, QueueBound
from chordage.orchestrator.core.status import Disposition
from chordage.orchestrator.runtime import Runtime
from chordage.orchestrator.store import groups
from chordage.orchestrator.store.database import Tx


@dataclass(frozen=True, kw_only=True, slots=True)
class Room:
    """Who gave way, and what follows from it."""

    dropped: str | None = None
    intents: list[Intent] = field(default_factory=list)


ENOUGH = Room()


def lock(tx: Tx, rt: Runtime, group: Group) -> None:
    """Before anything else is locked."""
    if group in rt.queue_bounds:
        groups.lock(tx, group)


def make_room(tx: Tx, rt: Runtime, group: Group, turn_id: str, thread_id: str) -> Room:
    """Where the message takes a place of its own: one that replaces another of its key needs none. Raises QueueFull."""
    bound = rt.queue_bounds.get(group)
    if bound is None:
        return ENOUGH
    if not groups.is_full(tx, group, bound.max_queued):
        return ENOUGH
    while (dropped := _gives_way(tx, group, bound, thread_id)) is not None:
        told = f"turn {turn_id} came while {_full(group, bound)}"
        intents = ending.drop_queued(tx, rt, dropped, Disposition.SUPERSEDED, told)
        if intents is not None:
            return Room(dropped=dropped, intents=intents)
    raise QueueFull(f"{_full(group, bound)}: send it again later, or raise CHORDAGE_BOUNDS__{group.name}__MAX_QUEUED")


def _gives_way(tx: Tx, group: Group, bound: QueueBound, thread_id: str) -> str | None:
    match bound.overflow:
        case Overflow.REJECT:
            return None
        case Overflow.DROP_OLDEST:
            return groups.oldest_queued(tx, group)
        case Overflow.REPLACE_PENDING:
            return groups.newest_queued_on(tx, group, thread_id)


def _full(group: Group, bound: QueueBound) -> str:
    if bound.max_queued == 0:
        return f"group {group.value} takes no messages, its bound is 0"
    return f"the queue of group {group.value} is full, with {bound.max_queued} queued"
