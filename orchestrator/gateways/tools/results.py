"""What a tool returned, as text: a string as it is, anything else as JSON; and a preview where it is too long."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from chordage.orchestrator.gateways.ports import ToolOutcome

NOTE = "[These are the first"
READER = "read_result"  # the tool that reads the rest
KEPT = "The whole result is kept as call:"


class NotJson(Exception):
    """The tool returned something that cannot be shown to a model."""


def as_text(value: Any) -> str:
    """None is `null`, as in JSON: "done" would claim more than the tool said. Raises NotJson."""
    if isinstance(value, str):
        return storable(str.__str__(value))
    if isinstance(value, bytes | bytearray | memoryview):
        raise NotJson("it returned bytes; decode them, or encode them as base64 text")
    if isinstance(value, Iterator):  # it may have no end, and would be read inside compiled code
        raise NotJson(f"it returned a {type(value).__name__}; return a list of what is in it")
    try:
        return storable(_json(value))
    except Exception as error:  # a user's serializer may raise anything
        raise NotJson(f"it returned a {type(value).__name__} that is not JSON: {error}") from error


def _json(value: Any) -> str:
    from pydantic_core import to_json

    return to_json(value, inf_nan_mode="strings").decode()


def storable(text: str) -> str:
    """Without the two things that are fine in a Python string and that no database takes: NUL and half surrogates."""
    if text.isascii():
        return text.replace("\0", "\ufffd") if "\0" in text else text
    return text.encode("utf-8", "replace").decode().replace("\0", "\ufffd")


def outcome(text: str, *, limit: int, call_id: str, tries: int) -> ToolOutcome:
    if len(text) <= limit:
        return ToolOutcome(content=text, tries=tries)
    note = f"{NOTE} {limit} of {len(text)} characters. {KEPT}{call_id}; {READER} reads it in parts]"
    return ToolOutcome(content=f"{text[:limit]}\n{note}", full=text, tries=tries)


def is_preview(content: str | None) -> bool:
    return content is not None and content.endswith("]") and KEPT in content[-300:]
