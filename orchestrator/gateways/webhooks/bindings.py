"""The bindings of hooks.toml, read again when it changes. A broken binding is a fault of its own; the others work."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import structlog
from pydantic import Field

from chordage.orchestrator.core.errors import RoomError
from chordage.orchestrator.core.webhooks import WebhookBinding
from chordage.orchestrator.gateways.room.files import Stamps, load_toml, stamp_of
from chordage.orchestrator.gateways.room.imports import file_of
from chordage.orchestrator.gateways.room.reading import known_agents, no_such_agent
from chordage.orchestrator.gateways.room.tables import AnyTable, TomlTable, read_table
from chordage.orchestrator.gateways.webhooks.binding import read_binding

log = structlog.get_logger()

FILE = "hooks.toml"
REFRESH_SECONDS = 1.0  # between two looks at the file


class HooksTable(TomlTable):
    hooks: AnyTable = Field({}, description="Bindings by name, each under [hooks.NAME]")


@dataclass(frozen=True, kw_only=True, slots=True)
class BrokenBinding:
    """A binding that cannot be used; `path` as far as it could be read."""

    name: str
    path: str | None
    fault: RoomError


@dataclass(frozen=True, kw_only=True, slots=True)
class HooksFile:
    bindings: tuple[WebhookBinding, ...] = ()
    broken: tuple[BrokenBinding, ...] = ()
    fault: RoomError | None = None  # of the file itself
    unreadable: bool = False  # it may have any binding
    stamps: Stamps = field(default_factory=dict)

    @property
    def faults(self) -> list[RoomError]:
        return [*([self.fault] if self.fault else []), *(binding.fault for binding in self.broken)]


def read(room: Path, environ: Mapping[str, str]) -> HooksFile:
    path = room / FILE
    stamps: Stamps = {path: stamp_of(path)}  # before it is read, to notice later changes
    if stamps[path] is None:
        return HooksFile(stamps=stamps)
    try:
        source, values = load_toml(FILE, path)
    except RoomError as error:
        return HooksFile(fault=error, unreadable=True, stamps=stamps)
    tables = read_table(HooksTable, source, values).hooks
    bindings: dict[tuple[str, str], WebhookBinding] = {}
    broken: list[BrokenBinding] = []
    for name, table in tables.items():
        place, own = ("hooks", name), source.beside()
        if not isinstance(table, dict):
            own.complain(place, f"must be a table: [hooks.{name}]")
            broken.append(BrokenBinding(name=name, path=None, fault=RoomError("\n".join(own.faults))))
            continue
        stamps |= _code_of(table.get("plugin"), room)
        binding = read_binding(own, place, table, room, environ)
        key = (binding.path, binding.method)
        if key in bindings and not own.is_wrong((*place, "path")):
            taken = f"{binding.method} {binding.path} is taken by [hooks.{bindings[key].name}]"
            own.complain((*place, "path"), f"{taken}; change one")
        if own.error is None:
            bindings[key] = binding
        else:
            path_there = table.get("path")
            url_path = path_there if isinstance(path_there, str) else None
            broken.append(BrokenBinding(name=name, path=url_path, fault=own.error))
    return HooksFile(bindings=tuple(bindings.values()), broken=tuple(broken), fault=source.error, stamps=stamps)


def _code_of(plugin: Any, room: Path) -> Stamps:
    """A decoder of the room that could not be imported is tried again when its file has changed."""
    module, colon, _ = plugin.partition(":") if isinstance(plugin, str) else ("", "", "")
    path = file_of(module, room)
    return {path: stamp_of(path)} if colon else {}


def faults(room: Path, environ: Mapping[str, str]) -> list[RoomError]:
    """Everything that is wrong with the webhooks of a room, each with its file and line: for `chordage check`."""
    content = read(room, environ)
    if not content.bindings:
        return content.faults
    source, _values = load_toml(FILE, room / FILE)
    known = known_agents(room)
    for binding in content.bindings:
        if (why := no_such_agent(binding.agent, known)) is not None:
            source.complain(("hooks", binding.name, "agent"), why)
    return [*content.faults, *map(RoomError, source.faults)]


@dataclass(frozen=True, slots=True)
class WrongMethod:
    allowed: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Closed:
    """The path may have a binding, and it cannot be used."""


class WebhookBindings:
    """Safe to share between threads."""

    def __init__(self, room: Path, environ: Mapping[str, str], *, refresh_seconds: float = REFRESH_SECONDS) -> None:
        self._room = room
        self._environ = environ
        self._refresh_seconds = refresh_seconds
        self._lock = threading.Lock()
        self._refreshed_at = time.monotonic()
        self.current = self._read()

    @property
    def is_due(self) -> bool:
        return time.monotonic() - self._refreshed_at >= self._refresh_seconds

    def refresh(self) -> None:
        """Read the file again if it has changed; this imports the code that it names."""
        with self._lock:
            if not self.is_due:
                return
            if self.current.stamps != {path: stamp_of(path) for path in self.current.stamps}:
                self.current = self._read()
            self._refreshed_at = time.monotonic()

    def find(self, path: str, method: str) -> WebhookBinding | WrongMethod | Closed | None:
        current = self.current
        by_method = {binding.method: binding for binding in current.bindings if binding.path == path}
        if method in by_method:
            return by_method[method]
        if current.unreadable or any(broken.path == path for broken in current.broken):
            return Closed()
        return WrongMethod(tuple(by_method)) if by_method else None

    def _read(self) -> HooksFile:
        content = read(self._room, self._environ)
        for fault in content.faults:
            event = f"{fault}\nit answers 503 until that is repaired"
            log.error(event)
        return content
