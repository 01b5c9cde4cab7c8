"""A message for work that is queued already takes the place of the older one, which ends `merged`.

At most one turn of a key is queued: a partial unique index. Two admissions of one key come one after the other, by the
row of their thread or by that index; the loser undoes everything and looks again. A turn that starts at this moment is
not queued any more, and both stand. Of an agent's will one is queued or at work, and any other ends as it comes.

What is locked: both threads in the order of their ids, then their runs, then the turns. It is not promised that the
later message was sent later, only that the one stored last is the one that is kept.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from chordage.orchestrator import ending
from chordage.orchestrator.core import merging
from chordage.orchestrator.core.errors import LostRace, QueueFull
from chordage.orchestrator.core.groups import Group
from chordage.orchestrator.core.intents import Intent
from chordage.orchestrator.core.message import Origin, TurnRequest, group_of
from chordage.orchestrator.core.status import Disposition
from chordage.orchestrator.runtime import Runtime
from chordage.orchestrator.store import fairness, groups, outbox, runs, threads, turns
from chordage.orchestrator.store.database import Tx
from chordage.orchestrator.store.turns import QueuedWork

BEFORE_A_WILL = (Group.CHAT, Group.TASK)


@dataclass(frozen=True, kw_only=True, slots=True)
class Place:
    """Where a message comes to stand: its number on its thread, and the same work that is queued there or elsewhere."""

    arrival: int
    key: str | None = None
    older: QueuedWork | None = None
    will: str | None = None  # of this agent, that is queued or at work

    def due_at(self, own: datetime, now: datetime) -> datetime:
        return merging.due_at(own, now, self.older.due_at if self.older else None)

    def threads(self, own: str) -> set[str]:
        return {own, self.older.thread_id} if self.older else {own}


def defer_will(rt: Runtime, request: TurnRequest, agent: str) -> None:
    """A will is the least of all work: while people or tasks wait for budget, it is not even stored."""
    if request.message.origin is not Origin.WILL:
        return
    for group in BEFORE_A_WILL:
        budget = rt.budgets[group]
        with rt.store.read() as tx:
            free = groups.free_places(tx, group, default=budget)
            wait = fairness.count_ready(tx, group, rt.now(), free + 1) > free
        if wait:
            raise QueueFull(
                f"the will of agent {agent!r} is put off: turns of group {group.value!r} are queued beyond its budget, "
                "and come first; send it again at the next pulse"
            )


def line_up(tx: Tx, request: TurnRequest, agent: str, thread_id: str, now: datetime) -> Place:
    """The next arrival on its thread, which stays locked, as does that of the same work."""
    key = merging.key_of(request, thread_id)
    if key is None:
        return Place(arrival=threads.arrive(tx, thread_id, agent, now))
    if request.message.origin is Origin.WILL:
        arrival = threads.arrive(tx, thread_id, agent, now)
        return Place(arrival=arrival, key=key, will=turns.open_will(tx, agent))
    group = group_of(request)
    seen = turns.queued_work(tx, agent, group, key)
    elsewhere = seen.thread_id if seen and seen.thread_id != thread_id else None
    if elsewhere is not None and elsewhere < thread_id:
        threads.lock(tx, elsewhere)
    arrival = threads.arrive(tx, thread_id, agent, now)
    if elsewhere is not None and elsewhere > thread_id:
        threads.lock(tx, elsewhere)
    older = turns.queued_work(tx, agent, group, key)
    if older is not None and older.thread_id not in {thread_id, elsewhere}:
        raise LostRace  # it was merged meanwhile, into one on a thread that is not ours to lock any more
    if older is not None and elsewhere is not None:
        runs.lock_open_on_threads(tx, thread_id, elsewhere)
    return Place(arrival=arrival, key=key, older=older)


def replace_older(tx: Tx, rt: Runtime, place: Place, turn_id: str) -> tuple[Place, list[Intent]]:
    """The older one is merged into this turn; without it in the place, if it was just starting."""
    if place.older is None:
        return place, []
    told = f"merged into turn {turn_id}, the same work by key {place.key!r}"
    moved = ending.drop_queued(tx, rt, place.older.id, Disposition.MERGED, told, into=turn_id)
    return (replace(place, older=None), []) if moved is None else (place, moved)


def end_at_once(tx: Tx, fields: Mapping[str, Any], place: Place) -> None:
    """A will while another of its agent is queued or at work: it is on record, and it is over."""
    assert place.will is not None
    told = f"merged into turn {place.will}: the will of its agent is queued or at work"
    turns.record_merged(tx, fields, place.will, told)
    if fields["reply_target"] is not None:
        body = {"reason": Disposition.MERGED.value, "code": None, "detail": told, "text": None}
        target, now = fields["reply_target"], fields["queued_at"]
        outbox.add(tx, fields["thread_id"], fields["id"], target=target, body=body, now=now)
