"""One TOML table read key by key: each key at most once, with its type and rule, and every problem with its line.

All problems of a file are collected, so that they can be put right in one go.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from dataclasses import dataclass
from difflib import get_close_matches
from enum import StrEnum
from typing import Any, TypeVar

from chordage.orchestrator.gateways.room.files import KeyPath, Source

E = TypeVar("E", bound=StrEnum)
T = TypeVar("T")


@dataclass(frozen=True, kw_only=True, slots=True)
class Kind:
    """What a value has to be, in words and as a test."""

    words: str
    fits: Callable[[Any], bool]


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and bool(value.strip())


def _are_texts(value: Any) -> bool:
    return isinstance(value, list) and all(map(_is_text, value))


TEXT = Kind(words="a text that is not blank", fits=_is_text)
TEXTS = Kind(words='a list of texts, like ["one", "two"]', fits=_are_texts)
FLAG = Kind(words="true or false", fits=lambda value: isinstance(value, bool))
HEADERS = Kind(
    words="a table of texts", fits=lambda value: isinstance(value, dict) and all(map(_is_text, value.values()))
)
TABLE = Kind(words="a table", fits=lambda value: isinstance(value, dict))
COUNT = Kind(words="a whole number, 0 or more", fits=lambda value: _is_whole(value) and value >= 0)
SOME = Kind(words="a whole number, 1 or more", fits=lambda value: _is_whole(value) and value >= 1)
SECONDS = Kind(words="a number of seconds, more than 0", fits=lambda value: _is_number(value) and value > 0)


def above_tables(key: str) -> str:
    return f"write {key} above the first [table] of the file"


class Table:
    """`of_file`: keys that belong above the first [table]. TOML puts a key that is written below it into that table."""

    def __init__(
        self,
        source: Source,
        values: dict[str, Any],
        path: KeyPath = (),
        *,
        of_file: Collection[str] = (),
    ) -> None:
        self.source = source
        self.path = path
        self.values = values
        self.of_file = of_file
        self.known: list[str] = []

    def take(self, key: str, kind: Kind, default: T, *, required: bool = False) -> T:
        """The value, or the default where it is not there or wrong; what is wrong is noted."""
        self.known.append(key)
        if key not in self.values:
            if required:
                self.complain(key, f"is missing; write `{key} = ...`, {kind.words}")
            return default
        value = self.values[key]
        if kind.fits(value):
            found: T = value
            return found
        remedy = "" if required else ", or leave it out"
        self.complain(key, f"must be {kind.words}{remedy}; got {value!r}")
        return default

    def choose(self, key: str, kind: type[E], usual: T, *, required: bool = False) -> E | T:
        """One of a closed set."""
        given: str | None = self.take(key, TEXT, None)
        if given is None:
            return usual
        if given not in set(kind):
            remedy = "" if required else ", or leave it out"
            self.complain(key, f"must be one of {', '.join(kind)}{remedy}; got {given!r}")
            return usual
        return kind(given)

    def inner(self, key: str) -> Table:
        values: dict[str, Any] = self.take(key, TABLE, {})
        return Table(self.source, values, (*self.path, key), of_file=self.of_file)

    def complain(self, key: str, why: str) -> None:
        self.source.complain((*self.path, key), why)

    def refuse_the_rest(self) -> None:
        """Whatever was not taken is a typo, or a setting of another version."""
        for key in self.values:
            if key not in self.known:
                self.complain(key, f"there is no such key; {self._hint(key)}")

    def _hint(self, key: str) -> str:
        if self.path and key in self.of_file:
            return above_tables(key)
        close = get_close_matches(key, self.known, n=1)
        return f"did you mean {close[0]}?" if close else f"there are: {', '.join(sorted(self.known))}"
