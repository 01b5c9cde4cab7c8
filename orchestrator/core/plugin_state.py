"""What the calls of one round have noted, put together. A conflict costs the later call its result, not the run.

Sums and unions come out the same in any order. A value of which there can be only one belongs to the first call of
the round that wrote it: a later one that writes something else is refused, and nothing it noted is kept.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from chordage.orchestrator.core.json_values import canonical, each_once, is_number
from chordage.orchestrator.core.phases import Scope
from chordage.orchestrator.core.state_updates import Merge, SetState

STATE_CONFLICT = "state_conflict"  # the code of a call that is refused


@dataclass(frozen=True, slots=True)
class Place:
    """Where a value is kept. `owner` is the call in scope call, and blank in the others."""

    scope: Scope
    key: str
    owner: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Writes:
    """All that one writer has noted, in its order: a call of the round, or whatever else is refused as a whole."""

    writer: str
    updates: tuple[SetState, ...]
    call_id: str = ""

    def place(self, update: SetState) -> Place:
        return Place(update.scope, update.key, self.call_id if update.scope is Scope.CALL else "")


@dataclass(frozen=True, kw_only=True, slots=True)
class Merged:
    values: dict[Place, Any]  # what has to be written; no other place has changed
    refused: dict[str, str]  # by writer: why nothing it noted is kept


@dataclass(frozen=True, kw_only=True, slots=True)
class _Mark:
    """Who has written a place in this round, how, and for exclusive ones what."""

    writer: str
    merge: Merge
    value: Any


class _Refused(Exception):
    pass


def merged(held: Mapping[Place, Any], writes: Iterable[Writes]) -> Merged:
    """`held` is the state before the round, as far as it is written here; `writes` come in the order of the calls."""
    values: dict[Place, Any] = {}
    marks: dict[Place, _Mark] = {}
    refused: dict[str, str] = {}
    for one in writes:
        try:
            new, own = _of_one({**held, **values}, marks, one)
        except _Refused as why:
            refused[one.writer] = str(why)
        else:
            values |= new
            marks = own | marks
    return Merged(values=values, refused=refused)


def _of_one(
    held: Mapping[Place, Any], marks: Mapping[Place, _Mark], one: Writes
) -> tuple[dict[Place, Any], dict[Place, _Mark]]:
    values: dict[Place, Any] = {}
    own: dict[Place, _Mark] = {}
    for update in one.updates:
        place = one.place(update)
        before = values.get(place, held.get(place))
        values[place] = _combined(place, before, update)
        own[place] = _Mark(writer=one.writer, merge=_strictest(own.get(place), update), value=values[place])
    for place, mark in own.items():
        _check(place, marks.get(place), mark)
    return values, own


def _strictest(mine: _Mark | None, update: SetState) -> Merge:
    """Two ways of one writer to write a place do not commute with another's: the value is then its alone."""
    return update.merge if mine is None or mine.merge is update.merge else Merge.EXCLUSIVE


def _check(place: Place, first: _Mark | None, mine: _Mark) -> None:
    if first is None:
        return
    if first.merge is not mine.merge:
        raise _Refused(
            f"{place.key} of the {place.scope} was written by {first.writer} in the same round as {first.merge}, "
            f"and by {mine.writer} as {mine.merge}"
        )
    if mine.merge is Merge.EXCLUSIVE and canonical(first.value) != canonical(mine.value):
        raise _Refused(
            f"{place.key} of the {place.scope} was set to something else by {first.writer} in the same round; "
            "use merge add or union where several calls may write"
        )


def _combined(place: Place, before: Any, update: SetState) -> Any:
    match update.merge:
        case Merge.EXCLUSIVE:
            return update.value
        case Merge.ADD:
            if before is not None and not is_number(before):
                raise _Refused(f"{place.key} of the {place.scope} holds {before!r}, to which nothing can be added")
            return (before or 0) + update.value
        case Merge.UNION:
            if before is not None and not isinstance(before, list):
                raise _Refused(f"{place.key} of the {place.scope} holds {before!r}, which is no list to join")
            return each_once([*(before or []), *update.value])
