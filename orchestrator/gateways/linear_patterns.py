"""Regular expressions whose time grows with the text and no faster: of schemas that others have written.

Python's `re` tries again from every place it could have gone another way, so one expression of ten characters can take
longer than the machine lasts, and it holds the interpreter meanwhile. The engine here is the one that pydantic brings
along. It knows neither lookarounds nor back references. A counted repetition is a copy for each time, and each copy may
cost a step for each character: `copies_in` says how many there are.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any

_COUNTED = re.compile(r"\{(\d*)(,?)(\d*)\}")
_NAMED = re.compile(r"\\(?:[pP]\{[^}]*\}|[xuU]\{[^}]*\}|.)", re.DOTALL)
_GROUP = re.compile(r"\((?:\?(?::|i\)|P?<[A-Za-z_]\w*>))?")
UNKNOWN = 10**9


@lru_cache(maxsize=1024)
def compiled(pattern: str) -> Any | None:
    """None: the engine does not know what is in it, or it would be too large."""
    from pydantic_core import SchemaError, SchemaValidator, core_schema

    try:
        return SchemaValidator(core_schema.str_schema(pattern=pattern, regex_engine="rust-regex"))
    except (SchemaError, UnicodeError):
        return None


def is_in(pattern: str, text: str) -> bool:
    """Whether it matches anywhere in the text. The pattern is one that can be compiled."""
    from pydantic_core import ValidationError

    found = compiled(pattern)
    assert found is not None
    try:
        found.validate_python(text)
    except ValidationError:
        return False
    return True


@lru_cache(maxsize=1024)
def copies_in(pattern: str) -> int:
    """Of single characters, each counted as often as it is repeated; at least so many."""
    outer: list[tuple[int, int]] = []
    total = last = place = 0
    while place < len(pattern):
        match pattern[place]:
            case "(":
                opened = _GROUP.match(pattern, place)
                if opened is None or pattern[opened.end() : opened.end() + 1] == "?":
                    return UNKNOWN  # flags: with some of them white space counts no more
                place = opened.end()
                if not opened[0].endswith(")"):
                    outer.append((total, last))
                    total = last = 0
            case ")":
                if not outer:
                    return UNKNOWN
                inner = total
                total, _ = outer.pop()
                total, last = total + inner, inner
                place += 1
            case "{" if counted := _COUNTED.match(pattern, place):
                times = int(counted[3] or counted[1] or 0)
                total += last * max(times - 1, 0)
                last *= max(times, 1)
                place = counted.end()
            case "[":
                total, last = total + 1, 1
                place = _end_of_class(pattern, place)
            case "\\":
                escaped = _NAMED.match(pattern, place)
                total, last = total + 1, 1
                place = escaped.end() if escaped else len(pattern)
            case "*" | "+" | "?" | "|" | "^" | "$":
                place += 1
            case _:
                total, last = total + 1, 1
                place += 1
    return total


def _end_of_class(pattern: str, place: int) -> int:
    depth, first = 0, -1
    while place < len(pattern):
        match pattern[place]:
            case "\\":
                place += 1
            case "[":
                depth, first = depth + 1, place
            case "]" if place > first + (2 if pattern[first + 1 : first + 2] == "^" else 1):
                depth -= 1
                if not depth:
                    return place + 1
        place += 1
    return place
