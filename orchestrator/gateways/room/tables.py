"""TOML tables as pydantic models: each fault in one line with file, line, key and remedy, and a schema for editors.

A model says what a table looks like; what the values mean (files, imports, keys that exclude each other) is checked by
the reader of the file. For that a table with faults is read once more without them, so that one run finds them all.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import dataclass
from datetime import date
from typing import Annotated, Any, ClassVar, TypeVar, get_args, get_origin

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    Strict,
    StrictBool,
    StrictFloat,
    StrictInt,
    ValidationError,
)
from pydantic.fields import FieldInfo
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import ErrorDetails, core_schema

from chordage.orchestrator.core.errors import alternatives
from chordage.orchestrator.core.prices import MOST
from chordage.orchestrator.gateways.room.files import MOST_FAULTS, KeyPath, Source

M = TypeVar("M", bound="TomlTable")
Complain = Callable[[str, str], None]  # of a key of one table, why
PLAIN, TABLE = "(plain)", "(table)"  # tags of a key that takes a text or list, or a table


@dataclass(frozen=True, slots=True)
class Words:
    """One message for whatever is wrong with a value. `remedy`: that the key may also be left out."""

    words: str
    must: str = "must be"
    remedy: bool = True

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> core_schema.CoreSchema:
        kind = "wrong" if self.remedy else "wrong_form"
        message = f"{self.must} {self.words}"
        return core_schema.custom_error_schema(handler(source), custom_error_type=kind, custom_error_message=message)


class OneOf:
    """Behind an enum: its values, in words."""

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> core_schema.CoreSchema:
        return Words(f"one of {', '.join(source)}").__get_pydantic_core_schema__(source, handler)


Text = Annotated[str, Field(pattern=r"\S"), Words("a text that is not blank")]
Texts = Annotated[tuple[Text, ...], Words('a list of texts, like ["one", "two"]')]
PairsTable = Annotated[dict[str, Text], Words("a table of texts")]
AnyTable = Annotated[dict[str, Any], Words("a table")]
NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}")
Name = Annotated[str, Field(pattern=f"^{NAME.pattern}$"), Words("1 to 64 letters, digits, _ . or -", remedy=False)]
Url = Annotated[str, Field(pattern="^https?://"), Words("http:// or https://", must="must start with", remedy=False)]
Flag = Annotated[StrictBool, Words("true or false")]
Count = Annotated[StrictInt, Field(ge=0), Words("a whole number, 0 or more")]
PositiveCount = Annotated[StrictInt, Field(ge=1), Words("a whole number, 1 or more")]
Money = Annotated[
    StrictFloat,
    Field(ge=0, le=MOST, allow_inf_nan=False),
    Words(f"dollars for a million tokens, 0 to {MOST}"),
]
Day = Annotated[date, Strict(), Words("a day, like 2026-01-31 without quotes")]
Seconds = Annotated[StrictFloat, Field(gt=0, allow_inf_nan=False), Words("a number of seconds, more than 0")]


class TomlTable(BaseModel):
    """A required key has an example that is valid. `usual`: what the table becomes, with its defaults for editors."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    usual: ClassVar[object] = None

    def given(self) -> dict[str, Any]:
        """The keys that are in the file, by the names of the fields."""
        values = self.__dict__
        return {name: values[name] for name in self.model_fields_set}

    @classmethod
    def __get_pydantic_json_schema__(
        cls, schema: core_schema.CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        made = handler(schema)
        for key, described in handler.resolve_ref_schema(made).get("properties", {}).items():
            default = getattr(cls.usual, key, None)
            if isinstance(default, int | float | str) and default != "":
                described["default"] = default
        return made


def read_table(kind: type[M], source: Source, values: Mapping[str, Any], path: KeyPath = ()) -> M:
    """What is wrong is added to the faults of the source. The result is then without these keys; a required one has the
    value of its example.
    """
    try:
        return kind.model_validate(values)
    except ValidationError as error:
        faults = error.errors(include_url=False)
    sound: Any = deepcopy(values)
    for number, fault in enumerate(faults):
        place = tuple(part for part in fault["loc"] if part not in {PLAIN, TABLE})
        around = _table_at(kind, place[:-1])
        key = fault["loc"][-1]
        there = keys_of(around).get(str(key)) if around else None
        if number <= MOST_FAULTS:
            source.complain((*path, *place), _message(fault, str(key), there, around, above=kind if not path else None))
        _mend(sound, place, there)
    return kind.model_validate(sound)


def keys_of(kind: type[TomlTable]) -> dict[str, FieldInfo]:
    return {there.alias or name: there for name, there in kind.model_fields.items()}


def above_tables(key: str) -> str:
    """TOML puts a key that is written below a [table] into that table."""
    return f"write {key} above the first [table] of the file"


def _message(
    fault: ErrorDetails,
    key: str,
    there: FieldInfo | None,
    around: type[TomlTable] | None,
    *,
    above: type[TomlTable] | None,
) -> str:
    is_needed = (there is not None and there.is_required()) or fault["type"] == "wrong_form"
    remedy = "" if is_needed else ", or leave it out"
    match fault["type"]:
        case "extra_forbidden":
            assert around is not None
            if above is not None and above is not around and key in keys_of(above):
                return f"there is no such key; {above_tables(key)}"
            return f"there is no such key; {alternatives(key, keys_of(around))}"
        case "missing":
            assert there is not None
            words = next((each.words for each in there.metadata if isinstance(each, Words)), "a table")
            return f"is missing; write `{key} = ...`, {words}"
        case "value_error":
            return str(fault["ctx"]["error"])
        case "model_type" | "dict_type":
            return f"must be a table{remedy}; got {fault['input']!r}"
        case _:
            return f"{fault['msg']}{remedy}; got {fault['input']!r}"


def _mend(values: Any, place: KeyPath, there: FieldInfo | None) -> None:
    *above, key = place
    for part in above:
        values = values[part]
    values.pop(key, None)
    if there is not None and there.is_required():
        assert there.examples
        values[key] = there.examples[0]


def _table_at(annotation: Any, place: KeyPath) -> type[TomlTable] | None:
    """The model of the table at that place of a file."""
    if inspect.isclass(annotation) and issubclass(annotation, TomlTable):
        if not place:
            return annotation
        there = keys_of(annotation).get(str(place[0]))
        return _table_at(there.annotation, place[1:]) if there else None
    if get_origin(annotation) in {dict, list, tuple}:
        return _table_at(get_args(annotation)[-1], place[1:]) if place else None
    return next((table for inner in get_args(annotation) if (table := _table_at(inner, place))), None)


class EditorSchema(GenerateJsonSchema):
    """TOML has no null, and an editor shows descriptions rather than titles."""

    def field_title_should_be_set(self, _schema: Any) -> bool:
        return False

    def nullable_schema(self, schema: core_schema.NullableSchema) -> JsonSchemaValue:
        return self.generate_inner(schema["schema"])

    def default_schema(self, schema: core_schema.WithDefaultSchema) -> JsonSchemaValue:
        if schema.get("default", ...) is None:
            return self.generate_inner(schema["schema"])
        return super().default_schema(schema)
