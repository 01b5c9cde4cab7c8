"""A function of somebody else's by name: an entry point of a package, or an import path `module:function`."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from importlib.metadata import entry_points
from typing import Any

from chordage.orchestrator.core.errors import RoomError


def function(name: str, group: str | None = None, *, what: str) -> Callable[..., Any]:
    """Raises RoomError, which says what to do."""
    offered = {point.name: point for point in entry_points(group=group)} if group else {}
    try:
        found = offered[name].load() if name in offered else _from_path(name, sorted(offered), what)
    except RoomError:
        raise
    except (Exception, SystemExit) as error:
        raise RoomError(f"{what} {name!r} cannot be imported: {type(error).__name__}: {error}") from error
    if not callable(found):
        raise RoomError(f"{what} {name!r} is no function but {found!r}")
    return found  # type: ignore[no-any-return]


def _from_path(name: str, offered: list[str], what: str) -> Any:
    module, colon, attribute = name.partition(":")
    if not colon:
        known = f", or one of {', '.join(offered)}" if offered else ""
        raise RoomError(f"there is no {what} {name!r}; give an import path, module:function{known}")
    return getattr(importlib.import_module(module), attribute)
