"""The rule for what is noted in parallel: a conflict costs the later call of a round its result, not the run.

Sums and unions come out the same in any order. A value of which there can be only one belongs to the first call of
the round that wrote it: a later one that writes something else is refused, and nothing it noted is kept.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

from chordage.orchestrator.core.json_values import canonical
from chordage.orchestrator.core.phases import Scope
from chordage.orchestrator.core.state_updates import Merge, Refused, SetState, combined

STATE_CONFLICT = "state_conflict"  # the code of a call that is refused


@dataclass(frozen=True, order=True, slots=True)
class Place:
    """Where a value is kept. `owner` is the thread, the run or the call."""

    scope: Scope
    owner: str
    key: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Noter:
    """Who notes something: a call of a round, or the run itself, which is never in parallel to its calls."""

    thread_id: str
    run_id: str
    step: int
    call_id: str = ""

    def owner(self, scope: Scope) -> str:
        return {Scope.THREAD: self.thread_id, Scope.RUN: self.run_id, Scope.CALL: self.call_id}[scope]


@dataclass(frozen=True, kw_only=True, slots=True)
class Entry:
    """What a place holds, and who wrote it in the last round in which it was written, and how."""

    value: Any = None
    run_id: str | None = None
    step: int | None = None
    writer: str | None = None  # blank: the run itself; None: more than one call
    merge: Merge | None = None

    def is_of_round(self, noter: Noter) -> bool:
        return (self.run_id, self.step) == (noter.run_id, noter.step)

    def is_by(self, noter: Noter) -> bool:
        """And by nobody else in its round."""
        return self.is_of_round(noter) and self.writer == noter.call_id

    def is_beside(self, noter: Noter) -> bool:
        """Another call of its round wrote this too."""
        return self.is_of_round(noter) and noter.call_id != "" and self.writer not in {"", noter.call_id}


def by_place(noter: Noter, updates: Iterable[SetState]) -> dict[Place, list[SetState]]:
    """In the order in which everybody locks, so that nobody waits in a ring."""
    found: dict[Place, list[SetState]] = {}
    for one in updates:
        found.setdefault(Place(one.scope, noter.owner(one.scope), one.key), []).append(one)
    return dict(sorted(found.items()))


def noted(held: Mapping[Place, Entry], noter: Noter, updates: Iterable[SetState]) -> dict[Place, Entry]:
    """What has to be written: all of it, or `Refused`. `held` is what the places hold that are written here."""
    mine = by_place(noter, updates)
    return {place: _after(place, held.get(place, Entry()), noter, mine[place]) for place in mine}


def _after(place: Place, before: Entry, noter: Noter, updates: Sequence[SetState]) -> Entry:
    shared, way = before.is_beside(noter), _way(before, noter, updates)
    named, other = f"{place.key} of the {place.scope}", before.writer or "several calls"
    if shared and way is not before.merge:
        raise Refused(
            f"{named} was written by {other} in the same round as {before.merge}, and by {noter.call_id} as {way}"
        )
    value = reduce(combined, updates, before.value)
    if shared and way is Merge.EXCLUSIVE and not _is_same(value, before.value):
        raise Refused(
            f"{named} was set to something else by {other} in the same round; "
            "use merge add or union where several calls may write"
        )
    writer = None if shared else noter.call_id
    return Entry(value=value, run_id=noter.run_id, step=noter.step, writer=writer, merge=way)


def _way(before: Entry, noter: Noter, updates: Sequence[SetState]) -> Merge:
    """Two ways of one writer to write a place do not commute with another's: the value is then its alone."""
    ways = {one.merge for one in updates} | ({before.merge} if before.is_by(noter) else set())
    return updates[0].merge if len(ways) == 1 else Merge.EXCLUSIVE


def _is_same(one: Any, other: Any) -> bool:
    """Numbers by what they are worth, as SQLite gives 1.0 back as 1; True is no number."""
    if {type(one), type(other)} <= {int, float}:
        return bool(one == other)
    return canonical(one) == canonical(other)
