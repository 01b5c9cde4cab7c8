"""Rows that a newer version has written, with words that this one does not know: during a deploy both are at work.

Whoever reads many rows at once passes over those, so that they stop nothing else; they are left to the newer workers.
Whoever reads a single one fails, and only what was to be done with it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

import structlog

log = structlog.get_logger()

Raw = TypeVar("Raw")
Read = TypeVar("Read")


def readable(rows: Iterable[Raw], read: Callable[[Raw], Read]) -> list[Read]:
    found: list[Read] = []
    for row in rows:
        try:
            found.append(read(row))
        except ValueError as error:  # of an enum: the word is not one of its own
            log.warning("a row of a newer version is left to newer workers", error=str(error))
    return found
