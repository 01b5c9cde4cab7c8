"""What plugins and tools note for later phases, and what several calls of one round note under the same key.

Sums and unions come out the same in any order. A value that can be only one belongs to the first call of the round
that wrote it. A later call that writes another value is refused, and nothing that it noted is kept: a conflict costs
the call its result, and not the run.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import reduce
from typing import Any

from chordage.orchestrator.core import text
from chordage.orchestrator.core.phases import Scope
from chordage.orchestrator.core.text import canonical, each_once, is_number, must, must_be_json, one_of

STATE_CONFLICT = "state_conflict"  # the code of a refused call


class Merge(StrEnum):
    """How the values are combined that several calls of one round write."""

    EXCLUSIVE = "exclusive"  # the first one is kept; a call that writes another fails
    ADD = "add"  # numbers are summed
    UNION = "union"  # lists are joined, each member once


class StateRefused(Exception):
    """Why nothing is kept of what a call noted."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SetState:
    """Note a value. All plugins share the keys: begin yours with the plugin's id."""

    scope: Scope
    key: str
    value: Any
    merge: Merge = Merge.EXCLUSIVE

    def __post_init__(self) -> None:
        object.__setattr__(self, "scope", one_of(Scope, self.scope, "scope"))
        object.__setattr__(self, "merge", one_of(Merge, self.merge, "merge"))
        must(self.key.strip(), "what is noted needs a key that is not blank")
        is_storable = len(self.key) <= text.NAME_MAX and text.clean_text(self.key) == self.key
        must(is_storable, f"a key is text of at most {text.NAME_MAX} characters, without NUL; got {self.key[:50]!r}...")
        match self.merge:
            case Merge.UNION:
                is_many = isinstance(self.value, list | tuple | set | frozenset)
                must(is_many, f"{self.key}: only lists and sets can be joined; got {self.value!r}")
                must_be_json(list(self.value), self.key)
                object.__setattr__(self, "value", each_once(self.value))
            case Merge.ADD:
                must(is_number(self.value), f"{self.key}: only numbers can be added; got {self.value!r}")
        must_be_json(self.value, self.key)
        object.__setattr__(self, "value", text.clean_json(self.value))


@dataclass(frozen=True, order=True, slots=True)
class StatePlace:
    """The place of a value. `owner` is the id of the thread, the run or the call."""

    scope: Scope
    owner: str
    key: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Noter:
    """The writer: a call of a round, or the run itself, which never writes in parallel to its calls."""

    thread_id: str
    run_id: str
    step: int
    call_id: str = ""

    def owner(self, scope: Scope) -> str:
        return {Scope.THREAD: self.thread_id, Scope.RUN: self.run_id, Scope.CALL: self.call_id}[scope]


@dataclass(frozen=True, kw_only=True, slots=True)
class StateEntry:
    """The value of a place, its last writer, and how that wrote it."""

    value: Any = None
    run_id: str | None = None
    step: int | None = None
    writer: str | None = None  # "": the run itself; None: several calls of a round
    merge: Merge | None = None

    def is_of_round(self, noter: Noter) -> bool:
        return (self.run_id, self.step) == (noter.run_id, noter.step)

    def is_by(self, noter: Noter) -> bool:
        """Written by the noter alone in its round."""
        return self.is_of_round(noter) and self.writer == noter.call_id

    def is_beside(self, noter: Noter) -> bool:
        """Written by another call of the noter's round."""
        return self.is_of_round(noter) and noter.call_id != "" and self.writer not in {"", noter.call_id}


def by_place(noter: Noter, updates: Iterable[SetState]) -> dict[StatePlace, list[SetState]]:
    """Sorted, because all writers lock places in this order: so they cannot deadlock."""
    places: dict[StatePlace, list[SetState]] = {}
    for update in updates:
        places.setdefault(StatePlace(update.scope, noter.owner(update.scope), update.key), []).append(update)
    return dict(sorted(places.items()))


def noted(
    held: Mapping[StatePlace, StateEntry], noter: Noter, updates: Iterable[SetState]
) -> dict[StatePlace, StateEntry]:
    """All that has to be written. Raises StateRefused. `held`: the entries of these places."""
    mine = by_place(noter, updates)
    return {place: _after(place, held.get(place, StateEntry()), noter, mine[place]) for place in mine}


def _after(place: StatePlace, before: StateEntry, noter: Noter, updates: Sequence[SetState]) -> StateEntry:
    shared, way = before.is_beside(noter), _way(before, noter, updates)
    named, other = f"{place.key} of the {place.scope}", before.writer or "several calls"
    if shared and way is not before.merge:
        raise StateRefused(
            f"{named} was written by {other} in the same round as {before.merge}, and by {noter.call_id} as {way}"
        )
    value = reduce(combined, updates, before.value)
    if shared and way is Merge.EXCLUSIVE and not _is_same(value, before.value):
        raise StateRefused(
            f"{named} was set to something else by {other} in the same round; "
            "use merge add or union where several calls may write"
        )
    writer = None if shared else noter.call_id
    return StateEntry(value=value, run_id=noter.run_id, step=noter.step, writer=writer, merge=way)


def _way(before: StateEntry, noter: Noter, updates: Sequence[SetState]) -> Merge:
    """One writer that mixes two ways does not commute with others: its value is then exclusive."""
    ways = {update.merge for update in updates} | ({before.merge} if before.is_by(noter) else set())
    return updates[0].merge if len(ways) == 1 else Merge.EXCLUSIVE


def _is_same(left: Any, right: Any) -> bool:
    """Numbers are compared by value, because SQLite returns 1.0 as 1; True is not a number."""
    if {type(left), type(right)} <= {int, float}:
        return bool(left == right)
    return canonical(left) == canonical(right)


def combined(held: Any, update: SetState) -> Any:
    """The value after the update. Raises StateRefused when the one that is held is of the wrong kind."""
    named = f"{update.key} of the {update.scope}"
    match update.merge:
        case Merge.EXCLUSIVE:
            return update.value
        case Merge.ADD:
            if held is not None and not _has_sum(held, update.value):
                raise StateRefused(f"{named} holds {held!r}, to which {update.value!r} cannot be added")
            return (held or 0) + update.value
        case Merge.UNION:
            if not isinstance(held, list | None):
                raise StateRefused(f"{named} holds {held!r}, which is no list to join")
            return each_once([*(held or []), *update.value])


def _has_sum(held: Any, value: float) -> bool:
    """Whether the sum is a JSON number: infinity is not."""
    try:
        return is_number(held) and is_number(held + value)
    except OverflowError:  # an int may be larger than any float
        return False
