"""OpenAI's chat completions: the demand for output that fits a schema, as response_format.

The provider holds the model to a schema (`strict`) only if it is written with a few words, and refuses the request if
others are in a strict one. Only what is certain is sent as strict; of the rest the model is told, as with providers
that take no schema at all. A schema whose root is no object is not taken at all.
"""

from __future__ import annotations

from typing import Any

Schema = dict[str, Any]

# What a strict schema may hold and what its readers understand; the names of properties and definitions are free.
_WORDS = {
    "type", "properties", "required", "additionalProperties", "items", "enum", "const", "anyOf", "$ref", "$defs",
    "title", "description",
}  # fmt: skip


def demanded(schema: Schema) -> dict[str, Any]:
    if schema.get("type") != "object":
        return {}
    strict = "anyOf" not in schema and "$ref" not in schema and _is_strict(schema)
    form = {"name": "output", "schema": schema, "strict": strict}
    return {"response_format": {"type": "json_schema", "json_schema": form}}


def _is_strict(schema: Any) -> bool:
    if not isinstance(schema, dict) or schema.keys() - _WORDS:
        return False
    if "$ref" in schema:
        return schema.keys() == {"$ref"}
    if not {"type", "enum", "const", "anyOf"} & schema.keys():
        return False
    return _is_closed(schema) and all(map(_is_strict, _inner(schema)))


def _is_closed(schema: Schema) -> bool:
    """An object names all it may hold, and all of it is required. A list says of what."""
    if schema.get("type") == "object":
        named = schema.get("properties", {})
        return schema.get("additionalProperties") is False and sorted(schema.get("required", [])) == sorted(named)
    return isinstance(schema.get("type", ""), str) and (schema.get("type") != "array" or "items" in schema)


def _inner(schema: Schema) -> list[Any]:
    tables = [*schema.get("properties", {}).values(), *schema.get("$defs", {}).values()]
    return [*tables, *schema.get("anyOf", []), *([schema["items"]] if "items" in schema else [])]
