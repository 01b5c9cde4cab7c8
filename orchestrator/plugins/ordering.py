"""In which order plugins are asked: as they declare it, and where they do not care, as the agent's file lists them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from chordage.orchestrator.core.errors import RoomError
from chordage.orchestrator.plugins.base import Plugin


def ordered(plugins: Iterable[Plugin]) -> tuple[Plugin, ...]:
    """Names in `before` and `after` that no plugin has are ignored: what they speak of may be left out. RoomError for
    an id that is missing, blank or used twice, and for a circle.
    """
    left = list(plugins)
    _check_ids(left)
    earlier = _earlier(left)
    placed: list[Plugin] = []
    while left:
        free = next((plugin for plugin in left if not earlier[plugin.id] & {other.id for other in left}), None)
        if free is None:
            raise RoomError(_circle(left, earlier))
        left.remove(free)
        placed.append(free)
    return tuple(placed)


def _earlier(plugins: Sequence[Plugin]) -> dict[str, set[str]]:
    """For each plugin the ids of those that come before it."""
    earlier = {plugin.id: set(plugin.after) for plugin in plugins}
    for plugin in plugins:
        for later in plugin.before:
            if later in earlier:
                earlier[later].add(plugin.id)
    return earlier


def _check_ids(plugins: Sequence[Plugin]) -> None:
    for plugin in plugins:
        kind = type(plugin).__qualname__
        if not isinstance(plugin.id, str) or not plugin.id.strip():
            raise RoomError(f'plugin {kind} has no id; give the class `id = "..."`, a text that is not blank')
        for name in ("before", "after"):
            if isinstance(getattr(plugin, name), str):
                raise RoomError(f"plugin {plugin.id!r}: `{name}` is a text; write a tuple of plugin ids")
    for plugin_id, times in Counter(plugin.id for plugin in plugins).items():
        if times > 1:
            kinds = ", ".join(type(plugin).__qualname__ for plugin in plugins if plugin.id == plugin_id)
            raise RoomError(f"plugin id {plugin_id!r} is used {times} times ({kinds}); keep one, or rename the others")


def _circle(left: Sequence[Plugin], earlier: dict[str, set[str]]) -> str:
    """Followed backwards from any plugin that cannot be placed until one comes up again."""
    stuck = {plugin.id for plugin in left}
    path = [left[0].id]
    while path[-1] not in path[:-1]:
        path.append(min(earlier[path[-1]] & stuck))
    circle = path[path.index(path[-1]) :]
    if len(circle) == 2:
        return f"plugin {circle[0]!r} is to come before itself; take its own id out of its `before` and `after`"
    shown = " before ".join(reversed(circle))
    return f"plugins are to come in a circle: {shown}; take one of these out of their `before` and `after`"
