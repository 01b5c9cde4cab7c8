"""From what an agent's file asks for to its plugins: shipped ones, then entry points, then import paths."""

from __future__ import annotations

import inspect
import re
import threading
from collections.abc import Sequence
from importlib.metadata import entry_points
from typing import Any, cast

from chordage.orchestrator.core.agent import AgentSpec, PluginUse
from chordage.orchestrator.core.errors import RoomError, alternatives
from chordage.orchestrator.core.text import canonical
from chordage.orchestrator.plugins.base import OptionRefused, Plugin
from chordage.orchestrator.plugins.permission import Permission
from chordage.orchestrator.plugins.plugin_set import HOOK_SECONDS, PluginSet
from chordage.orchestrator.plugins.stops import Stops
from chordage.orchestrator.plugins.tracing import Tracing
from chordage.orchestrator.system import user_code

ENTRY_POINTS = "chordage.plugins"
SHIPPED: dict[str, type[Plugin]] = {"permission": Permission, "stops": Stops, "tracing": Tracing}

_PATH = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*")


class PluginRefused(RoomError):
    """A plugin cannot be made as the agent's file asks for it. `option`: the one at fault, where it is an option."""

    def __init__(self, message: str, *, option: str | None = None) -> None:
        super().__init__(message)
        self.option = option


NO_PLUGINS = PluginSet()


def plugin_set_of(uses: Sequence[PluginUse], *, hook_seconds: float = HOOK_SECONDS) -> PluginSet:
    """RoomError says which plugin of the agent is wrong, and what to do."""
    plugins = [_numbered_plugin(number, use) for number, use in enumerate(uses, 1)]
    return PluginSet(plugins, hook_seconds=hook_seconds)


class PluginSets:
    """The plugins of each agent, made once for each definition of them."""

    def __init__(self) -> None:
        self._made: dict[str, PluginSet] = {}
        self._making = threading.Lock()

    def __call__(self, agent: AgentSpec) -> PluginSet:
        if not agent.plugins:
            return NO_PLUGINS
        key = canonical([[use.use, use.options] for use in agent.plugins])
        if key not in self._made:
            with self._making:  # a plugin may hold a resource: each agent has one in a process
                if key not in self._made:
                    self._made[key] = plugin_set_of(agent.plugins)
        return self._made[key]


def plugin_of(use: PluginUse) -> Plugin:
    """Raises PluginRefused."""
    try:
        kind = _kind(use.use)
    except user_code.NotLoaded as error:
        raise PluginRefused(str(error)) from error
    _check_options(kind, use.options)
    try:
        return kind(**use.options)
    except OptionRefused as error:
        raise PluginRefused(error.why, option=error.option) from error
    except user_code.failures() as error:
        why = f"{type(error).__name__}: {user_code.words_of(error)}"
        raise PluginRefused(f"{kind.__qualname__}(...) raised {why}") from error


def _numbered_plugin(number: int, use: PluginUse) -> Plugin:
    try:
        return plugin_of(use)
    except PluginRefused as error:
        option = f", option {error.option}" if error.option else ""
        raise PluginRefused(f"plugin {number} ({use.use!r}{option}): {error}", option=error.option) from error


def _kind(name: str) -> type[Plugin]:
    if name in SHIPPED:
        return SHIPPED[name]
    offered = {point.name: point for point in entry_points(group=ENTRY_POINTS)}
    if name in offered:
        return _checked(user_code.load(offered[name]), name)
    if _PATH.fullmatch(name):
        return _checked(_from_path(name), name)
    hint = alternatives(name, {*SHIPPED, *offered})
    end = "" if hint.endswith("?") else "."
    raise PluginRefused(f"there is no such plugin; {hint}{end} One of your own is written as module:Class")


def _from_path(path: str) -> Any:
    name, _, attribute = path.partition(":")
    module = user_code.load_module(name)
    if not hasattr(module, attribute):
        raise PluginRefused(f"module {name} has no {attribute!r}; {_classes_in(module)}")
    return getattr(module, attribute)


def _classes_in(module: Any) -> str:
    classes = sorted(name for name, value in vars(module).items() if _is_plugin_class(value))
    return f"there are: {', '.join(classes)}" if classes else "there is no plugin class in it"


def _is_plugin_class(value: Any) -> bool:
    return inspect.isclass(value) and issubclass(value, Plugin) and value is not Plugin


def _checked(kind: Any, name: str) -> type[Plugin]:
    if not _is_plugin_class(kind):
        raise PluginRefused(f"{name} is no plugin class; derive it from {Plugin.__module__}.{Plugin.__name__}")
    return cast("type[Plugin]", kind)


def _check_options(kind: type[Plugin], options: dict[str, Any]) -> None:
    parameters = inspect.signature(kind).parameters.values()
    names = {p.name for p in parameters if p.kind in {p.KEYWORD_ONLY, p.POSITIONAL_OR_KEYWORD}}
    if not any(p.kind is p.VAR_KEYWORD for p in parameters):
        for option in options:
            if option not in names:
                raise PluginRefused(f"there is no such option; {alternatives(option, names)}", option=option)
    for p in parameters:
        if p.default is p.empty and p.name in names and p.name not in options:
            raise PluginRefused(f"the option {p.name!r} is missing")
