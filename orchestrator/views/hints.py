"""A JSON Schema in one line for people: which answers there are to a question."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

ANYTHING = "anything"
DEPTH = 4  # levels that are spelled out
_WORDS = {"string": "text", "boolean": "true | false"}


def answers(schema: Mapping[str, Any] | bool | None, depth: int = DEPTH) -> str:
    """Such as `{"answer": "retry" | "failed", "reason"?: text}`; a key that may be left out has a question mark."""
    if not isinstance(schema, Mapping) or not schema or depth == 0:
        return ANYTHING
    if "const" in schema:
        return _json(schema["const"])
    if isinstance(schema.get("enum"), list):
        return " | ".join(_json(value) for value in schema["enum"])
    for choice in ("anyOf", "oneOf"):
        if isinstance(schema.get(choice), list):
            return " | ".join(answers(one, depth - 1) for one in schema[choice])
    kinds = schema.get("type")
    listed = kinds if isinstance(kinds, list) else [kinds]
    return " | ".join(_of_kind(kind, schema, depth) for kind in listed)


def _of_kind(kind: object, schema: Mapping[str, Any], depth: int) -> str:
    if kind in {None, "object"} and (schema.get("properties") or (kind and schema.get("required"))):
        return _members(schema, depth)
    if kind == "array":
        return f"[{answers(schema.get('items'), depth - 1)}, …]"
    return ANYTHING if kind is None else _WORDS.get(str(kind), str(kind))


def _members(schema: Mapping[str, Any], depth: int) -> str:
    """A key that is required and described nowhere is shown too: without it no answer fits."""
    needed = schema.get("required") or ()
    described = {**schema.get("properties", {})}
    members = (
        f"{_json(name)}{'' if name in needed else '?'}: {answers(described.get(name), depth - 1)}"
        for name in dict.fromkeys((*described, *needed))
    )
    return f"{{{', '.join(members)}}}"


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)
