"""Plugins of a single hook, for tests of what the engine makes of their verdicts."""

from __future__ import annotations

from chordage.orchestrator.core.phases import Hook
from chordage.orchestrator.plugins.base import Plugin
from chordage.orchestrator.plugins.plugin_set import PluginSet
from support.world import World


def plugin_for(hook: Hook, answer, name: str = "tested", **declared) -> Plugin:
    """A plugin with one hook; `answer` is called with the context, or is its constant verdict."""
    say = answer if callable(answer) else lambda context: [answer]
    return type("Tested", (Plugin,), {"id": name, hook.value: lambda self, context: say(context), **declared})()


def before_tool(answer, name: str = "gate") -> Plugin:
    return plugin_for(Hook.BEFORE_TOOL_EXECUTE, answer, name)


def after_model(answer) -> Plugin:
    return plugin_for(Hook.AFTER_INFERENCE, answer)


def after_tool(answer) -> Plugin:
    return plugin_for(Hook.AFTER_TOOL_EXECUTE, answer)


def install(world: World, *plugins: Plugin) -> None:
    """From now on these are the plugins of every agent."""
    plugins = PluginSet(plugins)
    object.__setattr__(world.runtime, "plugin_sets", lambda agent: plugins)
