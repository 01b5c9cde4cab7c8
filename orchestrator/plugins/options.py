"""Options of the shipped plugins, checked when the agent's file is read. Zero is refused everywhere: it might be meant
as "none" or as "never", and the two are opposites.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from chordage.orchestrator.plugins.base import OptionRefused


def amount(option: str, given: Any) -> float | None:
    """A number of more than 0, or None."""
    if given is None or (_is_number(given) and given > 0):
        found: float | None = given
        return found
    raise OptionRefused(option, f"must be a number of more than 0; for no limit leave it out; got {given!r}")


def count(option: str, given: Any, *, least: int = 1) -> int | None:
    if given is None or (_is_number(given) and isinstance(given, int) and given >= least):
        found: int | None = given
        return found
    raise OptionRefused(option, f"must be a whole number, {least} or more; for no limit leave it out; got {given!r}")


def texts(option: str, given: Any) -> tuple[str, ...]:
    """One or several; none for None."""
    many = [given] if isinstance(given, str) else given
    if many is None:
        return ()
    if isinstance(many, Sequence) and many and all(isinstance(one, str) and one.strip() for one in many):
        return tuple(many)
    raise OptionRefused(option, f"must be a text or a list of texts, none of them blank; got {given!r}")


def prices(option: str, given: Any) -> dict[str, float]:
    """What a million tokens cost, by kind."""
    known = ("input", "output", "cached", "cache_write")
    if given is None:
        return {}
    if not isinstance(given, dict) or not {"input", "output"} <= given.keys() <= set(known):
        told = f"must be a table with input and output, and cached and cache_write if you like; got {given!r}"
        raise OptionRefused(option, told)
    for kind, price in given.items():
        if not _is_number(price) or price < 0:
            raise OptionRefused(option, f"{kind} must be a price, 0 or more; got {price!r}")
    return {kind: float(price) for kind, price in given.items()}


def _is_number(given: Any) -> bool:
    return isinstance(given, int | float) and not isinstance(given, bool) and math.isfinite(given)
