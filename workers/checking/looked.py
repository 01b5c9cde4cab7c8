"""What one checker has looked at, and what is wrong with it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

PLACE = re.compile(r"(?P<file>[^:\n]+):(?P<line>\d+): ")  # how an error of a file begins


@dataclass(frozen=True, kw_only=True, slots=True)
class Looked:
    kind: str
    what: str  # in a few words, for when all is well
    faults: Sequence[str] = ()
    remarks: Sequence[str] = ()  # wrong as well, and the room runs without it


def counted(number: int, word: str) -> str:
    return f"{number} {word}" if number == 1 else f"{number} {word}s"
