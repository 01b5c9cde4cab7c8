"""The JSON object a planner wrote, wherever it stands in its reply: bare, in a fence, or between sentences.

Nothing is completed or guessed. An object that was cut off is none at all, and what stands inside it is not looked at:
half a plan would run half of what was meant, and a command's own arguments would pass for a plan. The rules by which
an object begins and ends are those of `short_circuit`, so that a reply means the same streamed and whole.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from chordage.orchestrator.core import json_values, storable

LISTS = ("execution_commands", "tool_commands")
PLAN_KEYS = frozenset({"next_action", "use_tool", "tool_command", *LISTS})
JSON_SPACE = " \t\n\r"
# After these the bracket is JSON; before anything else it is prose, as in {name} or [see below].
FOLLOWS = {"{": '"}', "[": '{["]-0123456789tfn'}
DEPTH_MAX = 100

_BEGIN = re.compile(r'\{(?=[ \t\n\r]*["}])|\[(?=[ \t\n\r]*[{\["\]\-0-9tfn])')
_TOKEN = re.compile(r'"(?:[^"\\]++|\\.)*+"?|[{}\[\]]', re.DOTALL)
_STEP = {"{": 1, "[": 1, "}": -1, "]": -1}


def plan_in(text: str) -> dict[str, Any] | None:
    """The first object that has a key of a plan, else the first object of all; none when there is none that is
    complete.
    """
    first: dict[str, Any] | None = None
    for source in _outermost(text):
        value = _parsed(source)
        if isinstance(value, dict):
            if value.keys() & PLAN_KEYS:
                return value
            first = value if first is None else first
    return first


def storable_object(value: dict[Any, Any]) -> dict[str, Any] | None:
    """The object as a database can keep it; None when it is not JSON, or is nested beyond reason."""
    try:
        written = json.dumps(value, allow_nan=False)
    except (TypeError, ValueError, RecursionError):
        return None
    return dict(storable.json(value)) if _end(written, 0)[1] <= DEPTH_MAX else None


def load(source: str) -> Any:
    """A JSON value that can be stored and written again. Raises ValueError.

    Line breaks inside strings are let through: models write them, and nobody can take them for anything else.
    """
    if _end(source, 0)[1] > DEPTH_MAX:
        raise ValueError(f"it is nested more than {DEPTH_MAX} deep")
    value = json_values.loads(source, strict=False, object_pairs_hook=_first_wins)
    return storable.json(value)


def _outermost(text: str) -> Iterator[str]:
    """Every object and list that stands in no other. The last may lack its end."""
    at = 0
    while begin := _BEGIN.search(text, at):
        at, _ = _end(text, begin.start())
        yield text[begin.start() : at]


def _end(text: str, start: int) -> tuple[int, int]:
    """Where it ends, and how deep it goes."""
    depth = deepest = 0
    for token in _TOKEN.finditer(text, start):
        depth += _STEP.get(token[0], 0)
        deepest = max(deepest, depth)
        if depth == 0:
            return token.end(), deepest
    return len(text), deepest


def _parsed(source: str) -> Any:
    try:
        return load(source)
    except ValueError:
        return None


def _first_wins(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Of a key that is there twice: what was acted upon in the stream must hold in the whole."""
    found: dict[str, Any] = {}
    for key, value in pairs:
        found.setdefault(key, value)
    return found
