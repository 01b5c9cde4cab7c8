"""No channels, for a runtime without a room."""

from __future__ import annotations

from chordage.orchestrator.core.channels import Terms
from chordage.orchestrator.core.errors import NotFound, RoomError
from chordage.orchestrator.gateways.ports import Channel


class NoChannels:
    def names(self) -> list[str]:
        return []

    def get(self, name: str) -> Channel:
        raise NotFound(f"there is no channel {name!r}: write a binding into channels.toml")

    def terms(self, name: str) -> Terms:
        raise NotFound(f"there is no channel {name!r}: write a binding into channels.toml")

    def faults(self) -> list[RoomError]:
        return []

    def close(self) -> None:
        """Nothing is open."""
