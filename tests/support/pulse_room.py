"""A room with work in it, and a world whose pulse reads it."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from chordage.orchestrator.core.pulse import WorkKind
from chordage.orchestrator.gateways.schedules.room_work import RoomWork
from chordage.orchestrator.loops import pulse
from support.world import World


@dataclass
class PulseRoom:
    """`also()` is a further process that ticks in the same room."""

    world: World
    room: Path

    def __post_init__(self) -> None:
        self.world.runtime = replace(self.world.runtime, work=RoomWork(self.room))

    @property
    def runtime(self):
        return self.world.runtime

    def also(self):
        return replace(self.world.runtime, work=RoomWork(self.room))

    def file(self, path: str, text: str) -> Path:
        """As an editor saves it: in place of what was there. The pulse tells it by its time."""
        place = self.room / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(text.encode())
        return place

    def tick(self, seconds: float = 0.0, *, by: Any = None) -> list[str]:
        """The slots that became turns."""
        self.world.revive()
        self.world.clock.pass_by(seconds)
        before = {row["id"] for row in self.world.rows("turns")}
        self.world.pending += pulse.tick(by or self.runtime)
        new = [row for row in self.world.rows("turns") if row["id"] not in before]
        return [row["dedupe_key"] for row in new]

    def tick_and_finish(self, seconds: float = 0.0) -> list[str]:
        slots = self.tick(seconds)
        self.world.run_dry()
        return slots

    def row(self, kind: WorkKind | str, key: str) -> dict[str, Any]:
        return self.world.row("pulse", kind=str(kind), key=key)

    def turns(self, **where: object) -> list[dict[str, Any]]:
        return self.world.rows("turns", source="pulse", **where)

    def faults(self) -> list[str]:
        return sorted(self.runtime.work.memory.logged.values())


def aged(file: Path, seconds: float = 60.0) -> None:
    """As if it had been saved a while ago: then its time and size are enough to know it by."""
    then = file.stat().st_mtime_ns - int(seconds * 1e9)
    os.utime(file, ns=(then, then))
