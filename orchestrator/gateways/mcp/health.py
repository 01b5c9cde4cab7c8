"""How a server is, as far as this process knows."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum


class State(StrEnum):
    UNUSED = "unused"  # nobody has asked for it yet
    CONNECTED = "connected"
    CLOSED = "closed"  # in peace; the next call connects
    LOST = "lost"  # the connection broke; the next call connects
    UNREACHABLE = "unreachable"  # the last try to connect failed


@dataclass(frozen=True, kw_only=True, slots=True)
class Health:
    state: State = State.UNUSED
    since: datetime | None = None
    error: str | None = None  # the last one, also where it is over
    tools: int | None = None  # that the server lists; None while it has not said
    version: str | None = None  # what the server calls itself
    protocol: str | None = None
    connections: int = 0  # how often this process has connected

    @property
    def ok(self) -> bool:
        return self.state in {State.UNUSED, State.CONNECTED, State.CLOSED}
