"""All plugins of one agent, in their order: each that overrides a hook is called for it, within a time limit."""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import structlog

from chordage.orchestrator.core.errors import RoomError
from chordage.orchestrator.core.phases import Hook, Moment
from chordage.orchestrator.core.verdicts import Given, MisplacedVerdict, Verdict, check_place, is_verdict
from chordage.orchestrator.plugins.base import Plugin, PluginFailed
from chordage.orchestrator.system import user_code

log = structlog.get_logger()

HOOK_SECONDS = 5.0


class PluginSet:
    """Safe to share between threads. A hook that no plugin overrides costs one look into a dict."""

    def __init__(self, plugins: Iterable[Plugin] = (), *, hook_seconds: float = HOOK_SECONDS) -> None:
        self.plugins = ordered(plugins)
        self.ids = tuple(plugin.id for plugin in self.plugins)
        self._hook_seconds = hook_seconds
        self._methods: dict[Hook, list[tuple[str, Callable[[Any], Any]]]] = {
            hook: [
                (plugin.id, getattr(plugin, hook))
                for plugin in self.plugins
                if getattr(type(plugin), hook) is not getattr(Plugin, hook)
            ]
            for hook in Hook
        }

    def listens(self, hook: Hook) -> bool:
        """Whether a plugin overrides it, so that it is worth putting a context together."""
        return bool(self._methods[hook])

    def ask(self, hook: Hook, context: Moment) -> list[Given]:
        """All verdicts, each with the plugin that gave it; all plugins see the same context.

        Raises PluginFailed, but not at the end of a run: by then nothing may change its outcome.
        """
        verdicts: list[Given] = []
        for plugin, method in self._methods[hook]:
            try:
                verdicts.extend((plugin, verdict) for verdict in self._verdicts(plugin, hook, method, context))
            except PluginFailed as failure:
                if hook is not Hook.RUN_END:
                    raise
                log.exception("plugin failed", plugin=plugin, hook=hook.value, run=context.run_id, error=str(failure))
        return verdicts

    def _verdicts(self, plugin: str, hook: Hook, method: Callable[[Any], Any], context: Moment) -> list[Verdict]:
        name = f"chordage-plugin-{plugin}"
        cause: BaseException | None = None
        try:
            verdicts = user_code.within(self._hook_seconds, lambda: _listed(method(context)), name)
            for verdict in verdicts:
                check_place(hook, plugin, verdict)
        except user_code.TookTooLong:
            why = f"hung: no answer after {self._hook_seconds:g} s; a hook is for a quick decision, not for waiting"
        except user_code.JobRaised as raised:
            cause = raised.error
            why = str(cause) if isinstance(cause, _WrongAnswer) else f"raised {raised}"
        except (_WrongAnswer, MisplacedVerdict) as error:
            why = str(error)
        else:
            return verdicts
        raise PluginFailed(f"plugin {plugin!r}, hook {hook}: {why}", plugin=plugin, hook=hook) from cause


class _WrongAnswer(Exception):
    pass


def _listed(answer: Any) -> list[Any]:
    """A hook may be a generator, which runs here: so this is called within the time limit."""
    if answer is None:
        return []
    if inspect.iscoroutine(answer):
        answer.close()
        raise _WrongAnswer("is async, and hooks are not awaited; write a plain function")
    if is_verdict(answer):
        raise _WrongAnswer(f"returned a single {type(answer).__name__}; return a list of verdicts")
    if not isinstance(answer, Iterable):
        raise _WrongAnswer(f"returned {answer!r}; return a list of verdicts, or None")
    verdicts = list(answer)
    for verdict in verdicts:
        if not is_verdict(verdict):
            raise _WrongAnswer(f"returned a list with {verdict!r} in it, which is no verdict")
    return verdicts


def ordered(plugins: Iterable[Plugin]) -> tuple[Plugin, ...]:
    """As `before` and `after` declare it, and otherwise as the agent's file lists them.

    Names in `before` and `after` that no plugin has are ignored: a plugin may be left out. Raises RoomError for an id
    that is missing, blank or used twice, and for a circle.
    """
    left = list(plugins)
    _check_ids(left)
    earlier = {plugin.id: set(plugin.after) for plugin in left}
    for plugin in left:
        for later in plugin.before:
            if later in earlier:
                earlier[later].add(plugin.id)
    placed: list[Plugin] = []
    while left:
        free = next((plugin for plugin in left if not earlier[plugin.id] & {other.id for other in left}), None)
        if free is None:
            raise RoomError(_circle(left, earlier))
        left.remove(free)
        placed.append(free)
    return tuple(placed)


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
    """Followed backwards from any plugin that cannot be placed, until one comes up again."""
    stuck = {plugin.id for plugin in left}
    path = [left[0].id]
    while path[-1] not in path[:-1]:
        path.append(min(earlier[path[-1]] & stuck))
    circle = path[path.index(path[-1]) :]
    if len(circle) == 2:
        return f"plugin {circle[0]!r} is to come before itself; take its own id out of its `before` and `after`"
    shown = " before ".join(reversed(circle))
    return f"plugins are to come in a circle: {shown}; take one of these out of their `before` and `after`"
