"""The channels of a room: bindings read once per process, each made when it is first asked for."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path

from chordage.orchestrator.core.channels import Terms
from chordage.orchestrator.core.errors import NotFound, RoomError
from chordage.orchestrator.gateways.channels import loading, reading
from chordage.orchestrator.gateways.channels.reading import ChannelBinding, Reading
from chordage.orchestrator.gateways.ports import Channel
from chordage.orchestrator.gateways.room import imports
from chordage.orchestrator.gateways.room.reading import known_agents, no_such_agent


def faults(room: Path, environ: Mapping[str, str]) -> list[RoomError]:
    """All that is wrong with channels.toml. Imports plugins, and connects to nothing."""
    channels = RoomChannels(room, environ=environ)
    return [*channels.faults(), *channels.unknown_agents()]


class RoomChannels:
    """Implements `ports.Channels`. Safe to share between threads."""

    def __init__(self, room: Path, *, environ: Mapping[str, str]) -> None:
        self._room = room
        self._environ = environ
        self._lock = threading.RLock()
        self._made: dict[str, Channel] = {}

    def names(self) -> list[str]:
        """Of all bindings, those that are broken among them."""
        return sorted({*self._reading.bindings, *self._reading.broken})

    def get(self, name: str) -> Channel:
        with self._lock:
            if name not in self._made:
                imports.make_importable(self._room)
                self._made[name] = loading.channel_of(self._binding(name))
            return self._made[name]

    def terms(self, name: str) -> Terms:
        binding = self._binding(name)
        return Terms(plugin=binding.plugin, agent=binding.agent, every=loading.every_of(binding))

    def faults(self) -> list[RoomError]:
        drafts = self._reading.drafts
        found = [*self._reading.faults]
        for name, fault in self._reading.broken.items():
            found.append(loading.further_faults(drafts[name], fault) if name in drafts else fault)
        for name in self._reading.bindings:
            try:
                self.get(name)
            except RoomError as error:
                found.append(error)
        return found

    def unknown_agents(self) -> list[RoomError]:
        known = known_agents(self._room) if self._reading.bindings else []
        found = ((one, no_such_agent(one.agent, known)) for one in self._reading.bindings.values())
        return [RoomError(f"{binding.place('agent')}: {why}") for binding, why in found if why is not None]

    def close(self) -> None:
        """Whoever waits in a long poll is woken, as far as its plugin can do that."""
        with self._lock:
            made, self._made = self._made, {}
        for channel in made.values():
            channel.close()

    @cached_property
    def _reading(self) -> Reading:
        with self._lock:
            return reading.read(self._room, self._environ)

    def _binding(self, name: str) -> ChannelBinding:
        if name in self._reading.broken:
            raise self._reading.broken[name]
        if name not in self._reading.bindings:
            known = ", ".join(self.names()) or "none"
            broken = "".join(f"\n{fault}" for fault in self._reading.faults)
            raise NotFound(f"there is no channel {name!r} in {self._room / reading.FILE}; there are: {known}{broken}")
        return self._reading.bindings[name]
