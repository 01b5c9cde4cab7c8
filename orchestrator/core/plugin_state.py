"""The rule for what is noted in parallel: a conflict costs the later call of a round its result, not the run.

Sums and unions come out the same in any order. A value of which there can be only one belongs to the first call of
the round that wrote it: a later one that writes something else is refused, and nothing it noted is kept.
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

STATE_CONFLICT = "state_conflict"  # the code of a call that is refused


@dataclass(frozen=True, order=True, slots=True)
class StatePlace:
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
class StateEntry:
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


def by_place(noter: Noter, updates: Iterable[SetState]) -> dict[StatePlace, list[SetState]]:
    """In the order in which everybody locks, so that nobody waits in a ring."""
    found: dict[StatePlace, list[SetState]] = {}
    for one in updates:
        found.setdefault(StatePlace(one.scope, noter.owner(one.scope), one.key), []).append(one)
    return dict(sorted(found.items()))


def noted(
    held: Mapping[StatePlace, StateEntry], noter: Noter, updates: Iterable[SetState]
) -> dict[StatePlace, StateEntry]:
    """What has to be written: all of it, or `Refused`. `held` is what the places hold that are written here."""
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
    """Two ways of one writer to write a place do not commute with another's: the value is then its alone."""
    ways = {one.merge for one in updates} | ({before.merge} if before.is_by(noter) else set())
    return updates[0].merge if len(ways) == 1 else Merge.EXCLUSIVE


def _is_same(one: Any, other: Any) -> bool:
    """Numbers by what they are worth, as SQLite gives 1.0 back as 1; True is no number."""
    if {type(one), type(other)} <= {int, float}:
        return bool(one == other)
    return canonical(one) == canonical(other)


# How a plugin notes something, for its own use at a later moment, and what becomes of the value held until then.


class Merge(StrEnum):
    """What becomes of a value that several calls of one round write."""

    EXCLUSIVE = "exclusive"  # one of them writes it; another that writes something else fails
    ADD = "add"  # numbers are summed
    UNION = "union"  # lists are joined, each member once


class StateRefused(Exception):
    """Nothing is kept of what somebody noted, and why."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SetState:
    """Note something. Keys are shared by all plugins: begin yours with the plugin's id."""

    scope: Scope
    key: str
    value: Any
    merge: Merge = Merge.EXCLUSIVE

    def __post_init__(self) -> None:
        object.__setattr__(self, "scope", one_of(Scope, self.scope, "scope"))
        object.__setattr__(self, "merge", one_of(Merge, self.merge, "merge"))
        must(self.key.strip(), "what is noted needs a key that is not blank")
        fits = len(self.key) <= text.NAME_MAX and text.clean_text(self.key) == self.key
        must(fits, f"a key is text of at most {text.NAME_MAX} characters, without NUL; got {self.key[:50]!r}...")
        match self.merge:
            case Merge.UNION:
                must(_is_many(self.value), f"{self.key}: only lists and sets can be joined; got {self.value!r}")
                must_be_json(list(self.value), self.key)
                object.__setattr__(self, "value", each_once(self.value))
            case Merge.ADD:
                must(is_number(self.value), f"{self.key}: only numbers can be added; got {self.value!r}")
        must_be_json(self.value, self.key)
        object.__setattr__(self, "value", text.clean_json(self.value))


def _is_many(value: object) -> bool:
    return isinstance(value, list | tuple | set | frozenset)


def combined(held: Any, update: SetState) -> Any:
    """The value after the update. `Refused` when the one that is held is of the wrong kind for it."""
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
    """One that JSON has: infinity is not."""
    try:
        return is_number(held) and is_number(held + value)
    except OverflowError:  # whole numbers know no bounds, but those of a fraction
        return False
