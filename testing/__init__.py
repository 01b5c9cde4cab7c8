"""For tests of agents and tools: a scripted model, a fleet in one thread, schedules, and real workers to be killed.

What is imported from here is loaded when it is asked for: pytest imports this package in every session.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from chordage.testing.exploring import DoubledEffect, Exploration, ImpureTool, ScheduleFailed, explore
    from chordage.testing.model import ModelQuestion, NoReplyLeft, ScriptedModel, ScriptRefused
    from chordage.testing.replaying import Replay, ReplayDiffers, ReplayRefused, exported, replay
    from chordage.testing.schedules import FaultKind, FaultSchedule, ScheduleRefused
    from chordage.testing.world import RecordedEffect, World, WorldError

_HOMES = {
    "exploring": ("DoubledEffect", "Exploration", "ImpureTool", "ScheduleFailed", "explore"),
    "model": ("ModelQuestion", "NoReplyLeft", "ScriptRefused", "ScriptedModel"),
    "replaying": ("Replay", "ReplayDiffers", "ReplayRefused", "exported", "replay"),
    "schedules": ("FaultKind", "FaultSchedule", "ScheduleRefused"),
    "world": ("RecordedEffect", "World", "WorldError"),
}

__all__ = [
    "DoubledEffect",
    "Exploration",
    "FaultKind",
    "FaultSchedule",
    "ImpureTool",
    "ModelQuestion",
    "NoReplyLeft",
    "RecordedEffect",
    "Replay",
    "ReplayDiffers",
    "ReplayRefused",
    "ScheduleFailed",
    "ScheduleRefused",
    "ScriptRefused",
    "ScriptedModel",
    "World",
    "WorldError",
    "explore",
    "exported",
    "replay",
]

if not TYPE_CHECKING:  # a type checker would take it for permission to import anything

    def __getattr__(name: str) -> Any:
        from importlib import import_module

        for home, names in _HOMES.items():
            if name in names:
                return getattr(import_module(f"chordage.testing.{home}"), name)
        raise AttributeError(f"module 'chordage.testing' has no attribute {name!r}")
