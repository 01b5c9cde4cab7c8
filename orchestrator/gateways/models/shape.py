"""Reading JSON that somebody else wrote: a field of the wrong shape is a MALFORMED answer that names the field."""

from __future__ import annotations

from typing import Any, TypeVar

from chordage.orchestrator.core.model import Fault
from chordage.orchestrator.core.text import loads_json
from chordage.orchestrator.gateways.models.attempt import AttemptFailed

T = TypeVar("T")


def malformed(why: str) -> AttemptFailed:
    return AttemptFailed(Fault.MALFORMED, why)


def parsed(text: str | bytes) -> dict[str, Any]:
    try:
        value = loads_json(text)
    except (ValueError, RecursionError) as error:
        raise malformed(f"the answer is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise malformed(f"the answer is {_kind(value)} where an object was expected")
    return value


def need(holder: dict[str, Any], key: str, kind: type[T]) -> T:
    value = holder.get(key)
    if not isinstance(value, kind):
        raise malformed(f"the answer has {_kind(value)} as {key!r} where {kind.__name__} was expected")
    return value


def maybe(holder: dict[str, Any], key: str, kind: type[T], default: T) -> T:
    """The field, or the default where it is missing or null."""
    return default if holder.get(key) is None else need(holder, key, kind)


def objects(holder: dict[str, Any], key: str) -> list[dict[str, Any]]:
    """A list of objects; missing and null count as empty."""
    found = maybe(holder, key, list, [])
    if not all(isinstance(item, dict) for item in found):
        raise malformed(f"the answer has something other than objects in {key!r}")
    return found


def count(holder: dict[str, Any], key: str) -> int:
    """A token count. A wrong one is no reason to throw an answer away."""
    value = holder.get(key)
    return value if isinstance(value, int) and value > 0 else 0


def arguments(raw: str) -> dict[str, Any] | None:
    """What a model sent as tool arguments, or None when it is no JSON object. Nothing at all means none are needed."""
    if not raw.strip():
        return {}
    try:
        value = loads_json(raw)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def clean(text: str) -> str:
    """Text that every database can hold: halves of an emoji that came in two chunks are joined, NUL is dropped."""
    if text.isascii():
        return text.replace("\0", "")
    return text.replace("\0", "").encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _kind(value: object) -> str:
    return "nothing" if value is None else type(value).__name__
