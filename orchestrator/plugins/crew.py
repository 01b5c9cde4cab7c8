"""All plugins of one agent: whoever has something to say in a phase is asked, in their order, each within a time."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from typing import Any

import structlog

from chordage.orchestrator.core.phases import Hook, Moment
from chordage.orchestrator.core.verdicts import Given, MisplacedVerdict, Verdict, check_place, is_verdict
from chordage.orchestrator.plugins.base import Plugin, PluginFailed
from chordage.orchestrator.plugins.ordering import ordered
from chordage.orchestrator.system import user_code

log = structlog.get_logger()

HOOK_SECONDS = 5.0

Ask = Callable[[Any], Any]


class Crew:
    """Safe to share between threads. With no plugin that overrides a hook, asking costs one look into a dict."""

    def __init__(self, plugins: Iterable[Plugin] = (), *, hook_seconds: float = HOOK_SECONDS) -> None:
        self.plugins = ordered(plugins)
        self.ids = tuple(plugin.id for plugin in self.plugins)
        self._hook_seconds = hook_seconds
        self._listeners = {hook: _listeners(self.plugins, hook) for hook in Hook}

    def listens(self, hook: Hook) -> bool:
        """Whether it is worth putting a context together."""
        return bool(self._listeners[hook])

    def ask(self, hook: Hook, context: Moment) -> list[Given]:
        """Everybody's verdicts, with who gave them; all see the same context. Raises PluginFailed, but not at the end
        of a run: by then nothing may change its outcome.
        """
        given: list[Given] = []
        for plugin, method in self._listeners[hook]:
            try:
                given.extend((plugin, verdict) for verdict in self._verdicts(plugin, hook, method, context))
            except PluginFailed as failure:
                if hook is not Hook.RUN_END:
                    raise
                log.exception("plugin failed", plugin=plugin, hook=hook.value, run=context.run_id, error=str(failure))
        return given

    def _verdicts(self, plugin: str, hook: Hook, method: Ask, context: Moment) -> list[Verdict]:
        name = f"chordage-plugin-{plugin}"
        cause: BaseException | None = None
        try:
            answer = user_code.within(self._hook_seconds, lambda: _listed(method(context)), name)
            for verdict in answer:
                _check(hook, plugin, verdict)
        except user_code.TookTooLong:
            why = f"hung: no answer after {self._hook_seconds:g} s; a hook is for a quick decision, not for waiting"
        except user_code.JobRaised as raised:
            cause = raised.error
            why = str(cause) if isinstance(cause, _WrongAnswer) else f"raised {type(cause).__name__}: {cause}"
        except (_WrongAnswer, MisplacedVerdict) as error:
            why = str(error)
        else:
            return answer
        raise PluginFailed(f"plugin {plugin!r}, hook {hook}: {why}", plugin=plugin, hook=hook) from cause


class _WrongAnswer(Exception):
    pass


def _listeners(plugins: Iterable[Plugin], hook: Hook) -> tuple[tuple[str, Ask], ...]:
    return tuple(
        (plugin.id, getattr(plugin, hook))
        for plugin in plugins
        if getattr(type(plugin), hook) is not getattr(Plugin, hook)
    )


def _listed(answer: Any) -> list[Any]:
    """Here a hook that is a generator runs, so this is called within the time limit."""
    if answer is None:
        return []
    if inspect.iscoroutine(answer):
        answer.close()
        raise _WrongAnswer("is async, and nobody awaits it; write a plain function")
    if is_verdict(answer):
        raise _WrongAnswer(f"returned a single {type(answer).__name__}; return a list of verdicts")
    if not isinstance(answer, Iterable):
        raise _WrongAnswer(f"returned {answer!r}; return a list of verdicts, or None")
    return list(answer)


def _check(hook: Hook, plugin: str, verdict: Any) -> None:
    if not is_verdict(verdict):
        raise _WrongAnswer(f"returned a list with {verdict!r} in it, which is no verdict")
    check_place(hook, plugin, verdict)
