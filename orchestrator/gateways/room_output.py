"""`output` of an agent file: a pydantic model as module:Model, a file.json with a JSON Schema, or [output] schema.

A schema is checked when the file is read. The room's Python is imported only when it is first asked for, as tools are.
"""

from __future__ import annotations

import inspect
import json
import re
from pathlib import Path
from typing import Any

from chordage.orchestrator.core import text
from chordage.orchestrator.core.agent import OutputUse
from chordage.orchestrator.gateways import output_forms, room_text, room_tools
from chordage.orchestrator.gateways.output_forms import ModelForm, SchemaForm
from chordage.orchestrator.gateways.ports import OutputForm
from chordage.orchestrator.gateways.room_table import TABLE, Kind, Table
from chordage.orchestrator.gateways.room_trace import Traces, trace_of
from chordage.orchestrator.system import user_code

OUTPUT = Kind(
    words='a pydantic model as "module:Model", a JSON Schema as "file.json", or a table with a schema',
    fits=lambda value: isinstance(value, str | dict),
)
_MODEL = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*")


def read(table: Table, room: Path, reads: Traces) -> OutputUse | None:
    """What is wrong is noted in the table's source. `reads` is given the file with the schema."""
    given: str | dict[str, Any] | None = table.take("output", OUTPUT, None)
    match given:
        case None:
            return None
        case dict():
            return _from_table(table.inner("output"))
        case str() if given.endswith(".json"):
            return _from_file(table, room / given, reads)
        case str() if _MODEL.fullmatch(given):
            return OutputUse(model=given)
        case _:
            table.complain("output", f"must be {OUTPUT.words}, or leave it out; got {given!r}")
            return None


def _from_table(table: Table) -> OutputUse | None:
    schema: dict[str, Any] | None = table.take("schema", TABLE, None, required=True)
    table.refuse_the_rest()
    if schema is None:
        return None
    try:
        json.dumps(schema, allow_nan=False)
    except (TypeError, ValueError):
        table.complain("schema", "must hold only what JSON has: no date, no inf, no nan")
        return None
    return _checked(table, "schema", schema, "")


def _from_file(table: Table, path: Path, reads: Traces) -> OutputUse | None:
    reads[path] = trace_of(path)  # before it is read: what changes meanwhile is then seen
    try:
        schema = text.loads_json(room_text.read(path))
    except (OSError, UnicodeDecodeError) as error:
        table.complain("output", f"{path} cannot be read ({error}); a path is relative to the room")
        return None
    except (ValueError, RecursionError) as error:
        table.complain("output", f"{path} is not JSON: {error}")
        return None
    if not isinstance(schema, dict):
        table.complain("output", f"{path} must hold a JSON Schema, an object; got {json.dumps(schema)[:80]}")
        return None
    return _checked(table, "output", schema, f"{path}: ")


def _checked(table: Table, key: str, schema: dict[str, Any], where: str) -> OutputUse | None:
    if (why := output_forms.fault_of(schema)) is not None:
        table.complain(key, f"{where}this is no JSON Schema (draft 2020-12): {why}")
        return None
    return OutputUse(schema=schema)


def form_of(use: OutputUse, room: Path) -> OutputForm:
    """Raises NoTool where nothing usable is at the import path."""
    return SchemaForm(use.schema) if use.schema is not None else _model_form(use.model, room)


def _model_form(path: str, room: Path) -> OutputForm:
    name, _, attribute = path.partition(":")
    module = room_tools.imported(name, room)
    known = sorted(each for each, value in vars(module).items() if _is_model(value) and value.__module__ == name)
    if not hasattr(module, attribute):
        raise room_tools.NoTool(f"module {name} has no {attribute!r}; {room_tools.meant(attribute, known)}")
    model = getattr(module, attribute)
    if not _is_model(model):
        raise room_tools.NoTool(
            f"{attribute} is a {type(model).__name__} and no pydantic model; derive it from pydantic.BaseModel "
            f"(for a list, RootModel[list[Item]]). Of models, {room_tools.meant('', known)}"
        )
    try:
        return ModelForm(model)
    except user_code.failures() as error:  # a user's types and hooks may raise anything
        raise room_tools.NoTool(
            f"{attribute} cannot be described in JSON Schema: {type(error).__name__}: {error}"
        ) from error


def _is_model(value: Any) -> bool:
    from pydantic import BaseModel  # heavy: only who demands output pays for it

    return inspect.isclass(value) and issubclass(value, BaseModel) and value is not BaseModel
