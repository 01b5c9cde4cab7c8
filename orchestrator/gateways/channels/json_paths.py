"""Where something stands in JSON: names and numbers with dots between them, `data.items` or `choices.0.text`."""

from __future__ import annotations

from typing import Any

WHOLE = "."


def found(value: Any, path: str) -> Any:
    """None where there is nothing. A single dot is the whole."""
    if path == WHOLE:
        return value
    for step in path.split("."):
        match value:
            case dict():
                value = value.get(step)
            case list() if step.isdecimal() and int(step) < len(value):
                value = value[int(step)]
            case _:
                return None
    return value


def text(value: Any, path: str) -> str | None:
    """A text or a number, as text."""
    there = found(value, path)
    if isinstance(there, bool):
        return None
    return str(there) if isinstance(there, str | int | float) else None
