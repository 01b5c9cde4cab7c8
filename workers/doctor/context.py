"""What the probes of `chordage doctor` work with."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta

from redis import Redis

from chordage.config.settings import Settings
from chordage.orchestrator.core.doctor import ProbeAnswer
from chordage.orchestrator.store.database import Store

SKEW = timedelta(seconds=2)  # between two clocks; the leases and the order of turns are made for less


@dataclass(frozen=True, kw_only=True, slots=True)
class RoomFault:
    """`place`: a file with its line, or what kind of thing it is."""

    place: str
    text: str


@dataclass(frozen=True, kw_only=True, slots=True)
class DoctorContext:
    """`redis`: without retries, so that it answers or fails soon; None: none is set. `room`: what is wrong with it."""

    settings: Settings
    store: Store
    redis: Redis | None
    now: Callable[[], datetime]
    room: Callable[[], list[RoomFault]]

    def ago(self, seconds: float) -> datetime:
        return self.now() - timedelta(seconds=seconds)


Look = Callable[[DoctorContext], ProbeAnswer]
