"""The room's Python by import path: tools (`my_tools:search`) and output models, with a message for each failure.

A module is imported once per process and not again when it changes; an import that failed is tried again each time.
"""

from __future__ import annotations

import importlib
import inspect
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from pydantic import BaseModel

from chordage.orchestrator.core.agent import OutputUse
from chordage.orchestrator.core.errors import alternatives
from chordage.orchestrator.gateways.output_forms import ModelForm, SchemaForm
from chordage.orchestrator.gateways.ports import OutputForm
from chordage.orchestrator.gateways.tools.declare import Tool, declared_on, is_wrapped
from chordage.orchestrator.system import user_code

BUILTIN = "chordage.orchestrator.gateways.tools.builtin"
_PATH = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*(:[^\W\d]\w*)?")


class NotImportable(Exception):
    """Nothing usable at that import path: the text says why and what to do. The caller adds the place in the file."""


def make_importable(room: Path) -> None:
    """At the end of the path: a tasks.py or random.py in the room must never replace ours or Python's."""
    if str(room) not in sys.path:
        sys.path.append(str(room))


def file_of(module: str, room: Path) -> Path:
    """Where the room may hold that module: a failed import is tried again when this file changes."""
    return room / f"{module.replace('.', '/')}.py"


def find_tools(path: str, room: Path) -> list[Tool]:
    """The tools at "module:name", or all of "module". Raises NotImportable."""
    if not _PATH.fullmatch(path):
        raise NotImportable("this is no import path; write module:function, or module for all its tools")
    name, _, attribute = path.partition(":")
    module = import_module(BUILTIN if name == "builtin" else name, room)
    if attribute:
        return [_tool_at(module, attribute)]
    tools = list({id(tool): tool for tool in _tools_in(module).values()}.values())
    if not tools:
        raise NotImportable(f"module {name} has no tools; put @tool above the functions that are to be some")
    return tools


def output_form(use: OutputUse, room: Path) -> OutputForm:
    """Raises NotImportable."""
    if use.schema is not None:
        return SchemaForm(use.schema)
    name, _, attribute = use.model.partition(":")
    module = import_module(name, room)
    known = sorted(each for each, value in vars(module).items() if _is_model(value) and value.__module__ == name)
    if not hasattr(module, attribute):
        raise NotImportable(f"module {name} has no {attribute!r}; {alternatives(attribute, known)}")
    model = getattr(module, attribute)
    if not _is_model(model):
        raise NotImportable(
            f"{attribute} is a {type(model).__name__} and no pydantic model; derive it from pydantic.BaseModel "
            f"(for a list, RootModel[list[Item]]). Of models, {alternatives('', known)}"
        )
    try:
        return ModelForm(model)
    except user_code.failures() as error:  # a user's types and hooks may raise anything
        why = f"{attribute} cannot be described in JSON Schema: {type(error).__name__}: {error}"
        raise NotImportable(why) from error


def import_module(name: str, room: Path) -> ModuleType:
    """Raises NotImportable."""
    importlib.invalidate_caches()  # the file may have been written a moment ago
    try:
        module = importlib.import_module(name)
    except ModuleNotFoundError as error:
        if not error.name or not f"{name}.".startswith(f"{error.name}."):
            raise NotImportable(_import_failed(name, error)) from error
        known = sorted({p.stem for p in room.glob("*.py")} | {p.parent.name for p in room.glob("*/__init__.py")})
        file = f"{name.partition('.')[0]}.py"
        why = f"there is no module {name}; {alternatives(name, known)}; put {file} into {room}, or install it"
        raise NotImportable(why) from error
    except user_code.failures() as error:  # a script without a main guard ends "the program"
        raise NotImportable(_import_failed(name, error)) from error
    _check_not_shadowed(module, room)
    return module


def _tools_in(module: ModuleType) -> dict[str, Tool]:
    """By attribute. Also those it has imported: a package may collect its tools in its `__init__`."""
    declared = {name: declared_on(value) for name, value in vars(module).items() if not name.startswith("_")}
    return {name: tool for name, tool in declared.items() if tool is not None}


def _tool_at(module: ModuleType, attribute: str) -> Tool:
    known = sorted(_tools_in(module))
    if not hasattr(module, attribute):
        raise NotImportable(f"module {module.__name__} has no {attribute!r}; {alternatives(attribute, known)}")
    value: Any = getattr(module, attribute)
    tool = declared_on(value)
    if tool is not None:
        return tool
    if is_wrapped(value):
        why = f"{attribute} has another decorator above @tool, which would be left out; make @tool the topmost"
        raise NotImportable(why)
    kind = type(value).__name__
    raise NotImportable(
        f"{attribute} is a {kind} and not a tool; put @tool above it. Of tools, {alternatives('', known)}"
    )


def _check_not_shadowed(module: ModuleType, room: Path) -> None:
    """The room comes last on the path: a file of it whose name is taken is never imported."""
    top = module.__name__.partition(".")[0]
    ours = next((path for path in (room / f"{top}.py", room / top / "__init__.py") if path.is_file()), None)
    if ours is None or top == "chordage":
        return
    taken_by = getattr(sys.modules[top], "__file__", None)
    try:
        is_ours = taken_by is not None and Path(taken_by).samefile(ours)
    except OSError:  # inside a zip file, or deleted since
        is_ours = False
    if not is_ours:
        where = taken_by or "built into Python"
        raise NotImportable(f"{ours} cannot be imported, because there is another module {top} ({where}); rename yours")


def _import_failed(name: str, error: BaseException) -> str:
    return f"importing module {name} raised {type(error).__name__}: {error}{user_code.line_of(error)}"


def _is_model(value: Any) -> bool:
    return inspect.isclass(value) and issubclass(value, BaseModel) and value is not BaseModel
