"""The body of a delivery as JSON, and which of its fields become text, thread and meta. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from chordage.orchestrator.core import json_values
from chordage.orchestrator.core.errors import InvalidMessage
from chordage.orchestrator.core.seals import Headers

_FIELD = re.compile(r"\{\{|\}\}|\{([^{}]+)\}")
_NOTHING = object()


@dataclass(frozen=True, kw_only=True, slots=True)
class Shape:
    """Where in the payload what stands. A path is dotted: `pull_request.title`, `commits.0.id`."""

    text_field: str = "text"
    text: str | None = None  # a template instead: "{sender.login} pushed to {ref}"
    thread_field: str | None = None
    meta_fields: tuple[str, ...] = ()
    meta_headers: tuple[str, ...] = ()


def read(body: bytes) -> dict[str, Any]:
    """Raises InvalidMessage."""
    try:
        payload = json_values.loads(body.decode("utf-8"))
    except (ValueError, RecursionError) as error:  # UnicodeDecodeError is a ValueError
        raise InvalidMessage(f"the body is not JSON in UTF-8: {error}", field="body") from error
    if not isinstance(payload, dict):
        raise InvalidMessage("the body must be a JSON object", field="body")
    return payload


def text_of(shape: Shape, payload: Mapping[str, Any]) -> str:
    if shape.text is not None:
        return _FIELD.sub(lambda found: _filled(found, payload), shape.text)
    text = at(payload, shape.text_field)
    if not isinstance(text, str) or not text.strip():
        raise InvalidMessage(f"{shape.text_field} must be a text that is not blank", field=shape.text_field)
    return text


def thread_of(shape: Shape, payload: Mapping[str, Any]) -> str | None:
    if shape.thread_field is None:
        return None
    thread = at(payload, shape.thread_field)
    if isinstance(thread, int) and not isinstance(thread, bool):
        return str(thread)
    if not isinstance(thread, str) or not thread.strip():
        raise InvalidMessage(f"{shape.thread_field} must be a text or a whole number", field=shape.thread_field)
    return thread


def meta_of(shape: Shape, payload: Mapping[str, Any], headers: Headers) -> dict[str, Any]:
    """What is not there is left out."""
    fields = {path: found for path in shape.meta_fields if (found := _find(payload, path)) is not _NOTHING}
    return fields | {name: headers[name] for name in shape.meta_headers if name in headers}


def at(payload: Mapping[str, Any], path: str) -> Any:
    found = _find(payload, path)
    if found is _NOTHING:
        raise InvalidMessage(f"{path} is missing", field=path)
    return found


def fields_of(template: str) -> list[str]:
    """The paths that a template asks for. Raises ValueError for a brace that stands alone."""
    if re.search(r"[{}]", _FIELD.sub("", template)):
        raise ValueError("a brace stands alone; a field is written {like.this}, and a brace itself {{ or }}")
    return [found[1] for found in _FIELD.finditer(template) if found[1]]


def laid_out(paths: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    """A payload that has these values at these paths."""
    payload: dict[str, Any] = {}
    for path, value in paths:
        *outer, last = path.split(".")
        inner = payload
        for name in outer:
            if not isinstance(inner.get(name), dict):
                inner[name] = {}
            inner = inner[name]
        inner[last] = value
    return payload


def _filled(found: re.Match[str], payload: Mapping[str, Any]) -> str:
    if found[1] is None:
        return found[0][0]  # a brace written twice
    value = at(payload, found[1])
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _find(payload: Any, path: str) -> Any:
    """Keys of objects and places in lists, and nothing else of a value."""
    for name in path.split("."):
        if isinstance(payload, dict) and name in payload:
            payload = payload[name]
        elif isinstance(payload, list) and re.fullmatch("[0-9]{1,6}", name) and int(name) < len(payload):
            payload = payload[int(name)]
        else:
            return _NOTHING
    return payload
