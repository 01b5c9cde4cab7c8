"""Views without their payloads, for callers that may see states, times, names and counts, but no texts.

A field is hidden by its name, wherever it is in a view, before the view reaches a template. So no template can show
what its reader may not see.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass, replace
from typing import Any, TypeVar, cast

from chordage.orchestrator.core.callers import Caller, KeyScope

V = TypeVar("V")

HIDDEN = "(hidden: your key has no scope payloads)"
TEXTS = frozenset(
    {"answer", "content", "detail", "error", "excerpt", "messages", "output", "progress", "prompt", "query", "reason",
     "reasoning", "refused", "said", "summary", "text", "texts", "title", "why_not"}
)  # fmt: skip
VALUES = frozenset(
    {"arguments", "decision", "default", "edited_args", "extra", "filter", "meta", "payload", "schema", "target"}
)


def shown_to(caller: Caller, view: V) -> V:
    return view if KeyScope.PAYLOADS in caller.scopes else cast("V", without_payloads(view))


def without_payloads(view: Any) -> Any:
    match view:
        case list() | tuple():
            return type(view)(without_payloads(part) for part in view)
        case Mapping():
            return {key: without_payloads(part) for key, part in view.items()}
    if not is_dataclass(view) or isinstance(view, type):
        return view
    return replace(view, **{field.name: _shown(field.name, getattr(view, field.name)) for field in fields(view)})


def _shown(name: str, value: Any) -> Any:
    """Enums keep their words: a `reason` of the end of a run is one, that of a denial is a text."""
    if name in TEXTS and type(value) is str:
        return HIDDEN
    if (name in TEXTS and isinstance(value, list | tuple)) or name in VALUES:
        return _emptied(value)
    if name == "output" and value is not None:
        return HIDDEN
    return without_payloads(value)


def _emptied(value: Any) -> Any:
    match value:
        case None:
            return None
        case dict():
            return {}
        case list() | tuple():
            return type(value)()
        case _:
            return without_payloads(value) if is_dataclass(value) else HIDDEN
