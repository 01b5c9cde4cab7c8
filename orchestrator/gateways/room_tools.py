"""From `tools = ["my_tools:search"]` to the functions, with every way that can fail said apart.

A module is imported once per process and not again when it changes; an import that failed is tried anew each time.
"""

from __future__ import annotations

import importlib
import re
import sys
from difflib import get_close_matches
from pathlib import Path
from types import ModuleType
from typing import Any

from chordage.orchestrator.gateways.tools.declare import Tool, declared_on, is_wrapped
from chordage.orchestrator.system import user_code

BUILTIN = "chordage.orchestrator.gateways.tools.builtin"


_PATH = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*(:[^\W\d]\w*)?")


class NoTool(Exception):
    """Nothing usable at that import path; the text says why and what to do. The caller adds where it is asked for."""


def find(path: str, room: Path) -> list[Tool]:
    """The tools at "module:name", or all of "module". Raises NoTool."""
    if not _PATH.fullmatch(path):
        raise NoTool("this is no import path; write module:function, or module for all its tools")
    name, _, attribute = path.partition(":")
    module = imported(BUILTIN if name == "builtin" else name, room)
    if attribute:
        return [_the_tool(module, attribute)]
    found = list({id(tool): tool for tool in tools_in(module).values()}.values())
    if not found:
        raise NoTool(f"module {name} has no tools; put @tool above the functions that are to be some")
    return found


def tools_in(module: ModuleType) -> dict[str, Tool]:
    """By attribute. Also those it has imported: a package may collect its tools in its `__init__`."""
    found = {name: declared_on(value) for name, value in vars(module).items() if not name.startswith("_")}
    return {name: tool for name, tool in found.items() if tool is not None}


def make_importable(room: Path) -> None:
    """At the end of the path: a tasks.py or random.py in the room must never be taken for ours or Python's."""
    if str(room) not in sys.path:
        sys.path.append(str(room))


def _the_tool(module: ModuleType, attribute: str) -> Tool:
    known = sorted(tools_in(module))
    if not hasattr(module, attribute):
        raise NoTool(f"module {module.__name__} has no {attribute!r}; {meant(attribute, known)}")
    thing: Any = getattr(module, attribute)
    tool = declared_on(thing)
    if tool is not None:
        return tool
    if is_wrapped(thing):
        raise NoTool(f"{attribute} has another decorator above @tool, which would be left out; make @tool the topmost")
    raise NoTool(
        f"{attribute} is a {type(thing).__name__} and not a tool; put @tool above it. Of tools, {meant('', known)}"
    )


def imported(name: str, room: Path) -> ModuleType:
    importlib.invalidate_caches()  # the file may have been written a moment ago
    try:
        module = importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name and (name == error.name or name.startswith(f"{error.name}.")):
            raise NoTool(_not_found(name, room)) from error
        raise NoTool(_import_failed(name, error)) from error
    except user_code.failures() as error:  # a script without a main guard ends "the program"
        raise NoTool(_import_failed(name, error)) from error
    _check_not_shadowed(module, room)
    return module


def _check_not_shadowed(module: ModuleType, room: Path) -> None:
    """The room comes last on the path: a file of it whose name is taken is never imported."""
    top = module.__name__.partition(".")[0]
    ours = next((p for p in (room / f"{top}.py", room / top / "__init__.py") if p.is_file()), None)
    if ours is None or top == "chordage":
        return
    taken_by = getattr(sys.modules[top], "__file__", None)
    if taken_by is None or not _is_same(Path(taken_by), ours):
        where = taken_by or "built into Python"
        raise NoTool(f"{ours} cannot be imported, because there is another module {top} ({where}); rename yours")


def _is_same(one: Path, other: Path) -> bool:
    try:
        return one.samefile(other)
    except OSError:  # inside a zip file, or gone since
        return False


def _not_found(name: str, room: Path) -> str:
    known = sorted({p.stem for p in room.glob("*.py")} | {p.parent.name for p in room.glob("*/__init__.py")})
    return (
        f"there is no module {name}; {meant(name, known)}; put {name.partition('.')[0]}.py into {room}, or install it"
    )


def _import_failed(name: str, error: BaseException) -> str:
    return f"importing module {name} raised {type(error).__name__}: {error}{user_code.line_of(error)}"


def meant(wrong: str, known: list[str]) -> str:
    close = get_close_matches(wrong, known, n=1)
    if close:
        return f"did you mean {close[0]}?"
    return f"there are: {', '.join(known)}" if known else "there are none"
