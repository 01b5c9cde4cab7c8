"""What a plugin is: a class with eight hooks that do nothing until one is overridden.

One object serves all runs of its agent, in several threads and on several machines, so it keeps no state of its own.
What it has to remember it writes with `SetState` and reads from the context.
"""

from __future__ import annotations

from collections.abc import Iterable

from chordage.orchestrator.core import phases
from chordage.orchestrator.core.errors import ChordageError
from chordage.orchestrator.core.phases import Hook
from chordage.orchestrator.core.verdicts import Verdict

Verdicts = Iterable[Verdict] | None


class PluginFailed(ChordageError):
    """A plugin's hook raised, hung or returned something that is no verdict."""

    def __init__(self, message: str, *, plugin: str, hook: Hook) -> None:
        super().__init__(message)
        self.plugin = plugin
        self.hook = hook


class OptionRefused(ValueError):
    """Raised by a plugin's constructor: the message will name the line of that option in the agent's file."""

    def __init__(self, option: str, why: str) -> None:
        super().__init__(f"{option}: {why}")
        self.option = option
        self.why = why


class Plugin:
    """Hooks return verdicts, or None for no opinion. They are plain functions, and quick: each has a time limit."""

    id: str = ""  # unique among the plugins of an agent
    before: tuple[str, ...] = ()  # ids of plugins that come later, if the agent has them
    after: tuple[str, ...] = ()

    def run_start(self, context: phases.RunStart, /) -> Verdicts:
        """Once, before the first step."""

    def step_start(self, context: phases.StepStart, /) -> Verdicts:
        """Before each model call is prepared."""

    def before_inference(self, context: phases.BeforeInference, /) -> Verdicts:
        """Change what the model sees, or end the run instead."""

    def after_inference(self, context: phases.AfterInference, /) -> Verdicts:
        """Also when the model failed: then there is an error and no reply."""

    def step_end(self, context: phases.StepEnd, /) -> Verdicts:
        """Also when the model failed."""

    def before_tool_execute(self, context: phases.BeforeToolExecute, /) -> Verdicts:
        """Block, suspend, answer or amend a call. Called again when a suspended call resumes."""

    def after_tool_execute(self, context: phases.AfterToolExecute, /) -> Verdicts:
        """Also for calls that never ran."""

    def run_end(self, context: phases.RunEnd, /) -> Verdicts:
        """On every exit. What goes wrong here is logged and changes nothing."""
