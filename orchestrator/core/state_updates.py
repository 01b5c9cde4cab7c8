"""How a plugin notes something, for its own use at a later moment, and what becomes of the value held until then."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from chordage.orchestrator.core import storable
from chordage.orchestrator.core.demands import must, must_be_json, one_of
from chordage.orchestrator.core.json_values import each_once, is_number
from chordage.orchestrator.core.phases import Scope


class Merge(StrEnum):
    """What becomes of a value that several calls of one round write."""

    EXCLUSIVE = "exclusive"  # one of them writes it; another that writes something else fails
    ADD = "add"  # numbers are summed
    UNION = "union"  # lists are joined, each member once


class Refused(Exception):
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
        fits = len(self.key) <= storable.NAME_MAX and storable.text(self.key) == self.key
        must(fits, f"a key is text of at most {storable.NAME_MAX} characters, without NUL; got {self.key[:50]!r}...")
        match self.merge:
            case Merge.UNION:
                must(_is_many(self.value), f"{self.key}: only lists and sets can be joined; got {self.value!r}")
                must_be_json(list(self.value), self.key)
                object.__setattr__(self, "value", each_once(self.value))
            case Merge.ADD:
                must(is_number(self.value), f"{self.key}: only numbers can be added; got {self.value!r}")
        must_be_json(self.value, self.key)
        object.__setattr__(self, "value", storable.json(self.value))


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
                raise Refused(f"{named} holds {held!r}, to which {update.value!r} cannot be added")
            return (held or 0) + update.value
        case Merge.UNION:
            if not isinstance(held, list | None):
                raise Refused(f"{named} holds {held!r}, which is no list to join")
            return each_once([*(held or []), *update.value])


def _has_sum(held: Any, value: float) -> bool:
    """One that JSON has: infinity is not."""
    try:
        return is_number(held) and is_number(held + value)
    except OverflowError:  # whole numbers know no bounds, but those of a fraction
        return False
