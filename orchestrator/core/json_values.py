"""Values that JSON has: how two are compared, and how many become one list."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from typing import Any


def canonical(value: Any) -> str:
    """The same for the same JSON, however it is written down; 1 and true are not the same."""
    return json.dumps(value, sort_keys=True, default=repr)


def each_once(members: Iterable[Any]) -> list[Any]:
    """In an order of their own, so that it does not matter who came first."""
    found = {canonical(member): member for member in members}
    return [found[key] for key in sorted(found)]


def is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
