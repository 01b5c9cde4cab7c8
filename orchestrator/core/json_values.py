"""Values that JSON has: how they are read, how two are compared, and how many become one list."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from typing import Any, NoReturn

from chordage.orchestrator.core import bounds


def loads(text: str | bytes, **how: Any) -> Any:
    """Raises ValueError, also for what lies too deep. Python reads more than JSON has, and PostgreSQL would refuse the
    row later on: NaN, infinity, and numbers that become infinite.
    """
    return bounds.loads_json(text, parse_constant=_refuse, parse_float=_finite, **how)


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is no JSON value")


def _finite(digits: str) -> float:
    number = float(digits)
    if not math.isfinite(number):
        raise ValueError(f"the number {digits[:40]} is too large")
    return number


def canonical(value: Any) -> str:
    """The same for the same JSON, however it is written down; 1 and true are not the same."""
    return json.dumps(value, sort_keys=True, default=repr)


def each_once(members: Iterable[Any]) -> list[Any]:
    """In an order of their own, so that it does not matter who came first."""
    found = {canonical(member): member for member in members}
    return [found[key] for key in sorted(found)]


def is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
