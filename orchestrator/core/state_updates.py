"""How a plugin notes something, for its own use at a later moment."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from chordage.orchestrator.core.demands import must, must_be_json, one_of
from chordage.orchestrator.core.json_values import each_once, is_number
from chordage.orchestrator.core.phases import Scope


class Merge(StrEnum):
    """What becomes of a value that several calls of one round write."""

    EXCLUSIVE = "exclusive"  # one of them writes it; another that writes something else fails
    ADD = "add"  # numbers are summed
    UNION = "union"  # lists are joined, each member once


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
        match self.merge:
            case Merge.UNION:
                must(_is_many(self.value), f"{self.key}: only lists and sets can be joined; got {self.value!r}")
                must_be_json(list(self.value), self.key)
                object.__setattr__(self, "value", each_once(self.value))
            case Merge.ADD:
                must(is_number(self.value), f"{self.key}: only numbers can be added; got {self.value!r}")
        must_be_json(self.value, self.key)


def _is_many(value: object) -> bool:
    return isinstance(value, list | tuple | set | frozenset)
