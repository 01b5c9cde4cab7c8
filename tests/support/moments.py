"""To act at the very moment when something is told: a schedule in which one thing happens in the middle of another."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from support.fakes import RecordingEvents
from support.world import World


@dataclass(kw_only=True)
class ActingEvents(RecordingEvents):
    kind: str
    act: Callable[[], object]

    def emit(self, run_id: str, kind: str, **data: Any) -> None:
        super().emit(run_id, kind, **data)
        if kind == self.kind:
            self.act()


def when_told(world: World, kind: str, act: Callable[[], object]) -> None:
    """`act` is called whenever an event of this kind is emitted, before whoever emits it goes on."""
    world.events = ActingEvents(kind=kind, act=act)
    object.__setattr__(world.runtime, "events", world.events)
