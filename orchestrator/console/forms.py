"""Forms: read from a request, and made of the JSON Schema of an answer.

A schema becomes fields where it is made of objects, texts, numbers, booleans, enumerations and lists of those; any
other part becomes a field for JSON. What is sent is checked against the schema when the decision is stored, so a field
only has to carry the value.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any
from urllib.parse import parse_qsl

from fastapi import Request

from chordage.orchestrator.api.sessions import check_csrf
from chordage.orchestrator.core.errors import InvalidDecision
from chordage.orchestrator.core.inert import inert, inert_json
from chordage.orchestrator.core.text import loads_json

FIELDS_MAX = 5000
DEEPEST = 4  # objects in each other; what is below is written as JSON
ROOT = "answer"
ABSENT = object()


class FieldKind(StrEnum):
    TEXT = "text"
    LONG = "long"
    NUMBER = "number"
    CHOICE = "choice"
    LIST = "list"  # one value a line
    JSON = "json"


@dataclass(frozen=True, kw_only=True, slots=True)
class FormField:
    """`name`: of the form's control. `path`: of the value in the answer, empty for the answer itself."""

    name: str
    path: tuple[str, ...]
    kind: FieldKind
    label: str
    help: str = ""
    required: bool = True
    choices: tuple[str, ...] = ()  # as JSON
    numeric: bool = False  # of the items of a list
    value: str = ""


@dataclass(frozen=True, slots=True)
class SentForm:
    """The fields of a form as they came, in order."""

    pairs: tuple[tuple[str, str], ...] = field(default=())

    def first(self, name: str) -> str:
        return next((value for key, value in self.pairs if key == name), "")

    def every(self, name: str) -> list[str]:
        return [value for key, value in self.pairs if key == name]


async def sent_form(request: Request) -> SentForm:
    """Raises Forbidden for a form that no page of ours has made."""
    body = (await request.body()).decode("utf-8", "replace")
    try:
        pairs = parse_qsl(body, keep_blank_values=True, max_num_fields=FIELDS_MAX)
    except ValueError as error:
        raise InvalidDecision(f"the form has more than {FIELDS_MAX} fields", field="form") from error
    if broken := next((name for name, value in pairs if "\x00" in name + value), None):
        raise InvalidDecision(f"{broken[:80]!r} holds a NUL character: remove it", field="form")
    form = SentForm(tuple((name, value.replace("\r\n", "\n")) for name, value in pairs))
    check_csrf(request, form.first("csrf"))
    return form


def fields_of(schema: Any, sent: SentForm | None = None) -> list[FormField]:
    """The fields for an answer. `sent`: what was filled in before."""
    made = list(_fields(schema, (), "", required=True))
    if sent is None:
        return made
    return [_filled(one, sent) for one in made]


def _filled(one: FormField, sent: SentForm) -> FormField:
    return replace(one, value=sent.first(one.name))


def _fields(schema: Any, path: tuple[str, ...], label: str, *, required: bool) -> Iterator[FormField]:
    """An object that is optional, or has keys of its own choosing, is written as JSON."""
    properties = schema.get("properties") if isinstance(schema, Mapping) else None
    is_object = isinstance(properties, Mapping) and schema.get("type", "object") == "object"
    if is_object and properties and len(path) < DEEPEST and required and _is_plain(schema):
        needed = schema.get("required") or ()
        for name, inner in properties.items():
            yield from _fields(inner, (*path, str(name)), str(name), required=name in needed)
        return
    yield _field(schema, path, label, required=required)


def _is_plain(schema: Mapping[str, Any]) -> bool:
    """No other keyword says which objects fit."""
    return not any(word in schema for word in ("anyOf", "oneOf", "allOf", "not", "$ref", "if", "enum", "const"))


def _field(schema: Any, path: tuple[str, ...], label: str, *, required: bool) -> FormField:
    known = schema if isinstance(schema, Mapping) else {}
    kind, choices, numeric = _kind(known)
    default = known.get("default", ABSENT)
    value = "" if default is ABSENT else _written(default, kind)
    return FormField(
        name=inert(".".join((ROOT, *path))), path=path, kind=kind, label=str(known.get("title") or label or "Answer"),
        help=str(known.get("description") or ""), required=required, choices=choices, numeric=numeric, value=value,
    )  # fmt: skip


def _kind(schema: Mapping[str, Any]) -> tuple[FieldKind, tuple[str, ...], bool]:
    values = [schema["const"]] if "const" in schema else schema.get("enum")
    if isinstance(values, list):
        return FieldKind.CHOICE, tuple(_as_json(value) for value in values), False
    match schema.get("type"):
        case "boolean":
            return FieldKind.CHOICE, ("true", "false"), False
        case "string":
            is_long = (schema.get("maxLength") or 0) > 200 or schema.get("format") == "textarea"
            return (FieldKind.LONG if is_long else FieldKind.TEXT), (), False
        case "integer" | "number":
            return FieldKind.NUMBER, (), False
        case "array" if isinstance(schema.get("items"), Mapping):
            inner = schema["items"].get("type")
            if inner in {"string", "integer", "number"} and "enum" not in schema["items"]:
                return FieldKind.LIST, (), inner != "string"
    return FieldKind.JSON, (), False


def _written(value: Any, kind: FieldKind) -> str:
    if kind is FieldKind.LIST and isinstance(value, list):
        return "\n".join(one if isinstance(one, str) else _as_json(one) for one in value)
    return value if isinstance(value, str) and kind in {FieldKind.TEXT, FieldKind.LONG} else _as_json(value)


def _as_json(value: Any) -> str:
    """As it is shown, so that what a browser sends back reads as the same value."""
    return inert_json(json.dumps(value, ensure_ascii=False))


def answer_from(fields: Sequence[FormField], sent: SentForm) -> Any:
    """The answer that was filled in. An optional field that is empty is left out."""
    answer: Any = {} if any(one.path for one in fields) else None
    for one in fields:
        value = _value(one, sent.first(one.name))
        if value is ABSENT:
            continue
        if not one.path:
            return value
        target = answer
        for name in one.path[:-1]:
            target = target.setdefault(name, {})
        target[one.path[-1]] = value
    return answer


def _value(one: FormField, text: str) -> Any:
    if not text.strip() and (not one.required or one.kind not in {FieldKind.TEXT, FieldKind.LONG, FieldKind.LIST}):
        return ABSENT
    match one.kind:
        case FieldKind.TEXT | FieldKind.LONG:
            return text
        case FieldKind.LIST:
            lines = [line for line in text.splitlines() if line.strip()]
            return [json_of(line, one.label) for line in lines] if one.numeric else lines
        case _:
            return json_of(text, one.label)


def json_of(text: str, label: str) -> Any:
    try:
        return loads_json(text)
    except (ValueError, RecursionError) as error:
        raise InvalidDecision(f"{label}: give JSON: {error}", field=label) from error
