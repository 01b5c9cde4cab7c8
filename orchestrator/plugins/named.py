"""Somebody else's code by name: an entry point of a package, or an import path `module:attribute`."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from importlib.metadata import EntryPoint, entry_points
from types import ModuleType
from typing import Any

from chordage.orchestrator.core.errors import RoomError
from chordage.orchestrator.plugins import users_code


class NotLoaded(RoomError):
    """What stands behind a name cannot be had. Says what to do."""


def function(name: str, group: str | None = None, *, what: str) -> Callable[..., Any]:
    """Raises NotLoaded."""
    offered = {point.name: point for point in entry_points(group=group)} if group else {}
    found = loaded(offered[name]) if name in offered else _from_path(name, sorted(offered), what)
    if not callable(found):
        raise NotLoaded(f"{what} {name!r} is no function but {found!r}")
    return found  # type: ignore[no-any-return]


def loaded(point: EntryPoint) -> Any:
    try:
        return point.load()
    except users_code.failures() as error:
        why = f"{type(error).__name__}: {error}{users_code.line_of(error)}"
        raise NotLoaded(
            f"its entry point {point.value} cannot be loaded ({why}); repair or remove the package that offers it"
        ) from error


def module(name: str) -> ModuleType:
    importlib.invalidate_caches()  # the file may have been written a moment ago
    try:
        return importlib.import_module(name)
    except users_code.failures() as error:  # a script without a main guard ends "the program"
        raise NotLoaded(_not_imported(name, error)) from error


def _not_imported(name: str, error: BaseException) -> str:
    if isinstance(error, ModuleNotFoundError) and error.name and f"{name}.".startswith(f"{error.name}."):
        return f"there is no module {error.name}; put {error.name.partition('.')[0]}.py into the room, or install it"
    return f"importing module {name} raised {type(error).__name__}: {error}{users_code.line_of(error)}"


def _from_path(name: str, offered: list[str], what: str) -> Any:
    path, colon, attribute = name.partition(":")
    if not colon:
        known = f", or one of {', '.join(offered)}" if offered else ""
        raise NotLoaded(f"there is no {what} {name!r}; give an import path, module:function{known}")
    found = module(path)
    if not hasattr(found, attribute):
        functions = sorted(one for one, value in vars(found).items() if callable(value) and not one.startswith("_"))
        raise NotLoaded(f"module {path} has no {attribute!r}; there are: {', '.join(functions) or 'no functions'}")
    return getattr(found, attribute)
