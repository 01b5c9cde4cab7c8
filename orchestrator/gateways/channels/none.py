"""No channels: what a room without channels.toml has."""

from __future__ import annotations

from chordage.orchestrator.core.errors import NotFound
from chordage.orchestrator.gateways.ports import Channel


class NoChannels:
    def names(self) -> list[str]:
        return []

    def get(self, name: str) -> Channel:
        raise NotFound(f"there is no channel {name!r} in channels.toml; it has none")
