"""channels.toml, from text to bindings. One that is malformed is a fault of its own and stops no other."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from chordage.orchestrator.core import bounds, message
from chordage.orchestrator.core.errors import RoomError
from chordage.orchestrator.gateways import text_files
from chordage.orchestrator.gateways.channels.env_keys import Environ
from chordage.orchestrator.gateways.room.files import KeyPath, Source, dotted, line_of
from chordage.orchestrator.gateways.room_table import SECONDS, TABLE, TEXT, Table

FILE = "channels.toml"
TABLES = "channels"
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}")
_SYNTAX_PLACE = re.compile(r"\s*\(at (?:line (?P<line>\d+), column (?P<column>\d+)|end of document)\)")


@dataclass(frozen=True, kw_only=True, slots=True)
class Binding:
    """One table of the file. `config` has the values of the environment in it, and is not shown to anybody."""

    name: str
    plugin: str
    agent: str | None
    every: float | None  # None: as its plugin usually has it
    config: Mapping[str, Any] = field(repr=False)
    secrets: frozenset[str] = field(repr=False)
    source: Source = field(repr=False)
    path: KeyPath

    def config_table(self) -> Table:
        """For a plugin that reads its options key by key; problems are collected apart from those of others."""
        return Table(Source(name=self.source.name, text=self.source.text), dict(self.config), (*self.path, "config"))

    def place(self, *keys: str) -> str:
        path = (*self.path, *keys)
        return f"{self.source.name}:{line_of(self.source.text, path)}: {dotted(path)}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Reading:
    bindings: Mapping[str, Binding] = field(default_factory=dict)
    broken: Mapping[str, RoomError] = field(default_factory=dict)  # bindings by name
    half: Mapping[str, Binding] = field(default_factory=dict)  # of those that are broken, what could be read
    faults: tuple[RoomError, ...] = ()  # of the file itself


def read(room: Path, environ: Mapping[str, str]) -> Reading:
    """Nothing where there is no such file."""
    path = room / FILE
    if not path.exists():
        return Reading()
    try:
        source = Source(name=FILE, text=text_files.read(path))
        values = bounds.loads_toml(source.text)
    except (OSError, UnicodeDecodeError) as error:
        return Reading(faults=(RoomError(f"{FILE}:1: cannot be read: {error}; make it a UTF-8 text file"),))
    except tomllib.TOMLDecodeError as error:
        return Reading(faults=(RoomError(_syntax_fault(source, error)),))
    return _read(source, values, environ)


def _read(source: Source, values: dict[str, Any], environ: Mapping[str, str]) -> Reading:
    bindings: dict[str, Binding] = {}
    broken: dict[str, RoomError] = {}
    half: dict[str, Binding] = {}
    faults: list[RoomError] = []
    for path, value in _tables(values):
        own = Source(name=source.name, text=source.text)
        binding = _binding(own, path, value, environ)
        if path[-1] in bindings or path[-1] in broken:
            own.complain(path, f"there are two bindings {path[-1]!r}; give one of them another name")
        if not own.faults and binding is not None:
            bindings[binding.name] = binding
            continue
        fault = RoomError("\n".join(own.faults))
        if isinstance(value, dict) and path[-1] not in bindings:
            broken[path[-1]] = fault
            half |= {binding.name: binding} if binding is not None else {}
        else:
            faults.append(fault)
    return Reading(bindings=bindings, broken=broken, half=half, faults=tuple(faults))


def _tables(values: dict[str, Any]) -> Iterator[tuple[tuple[str, ...], Any]]:
    """`[channels.<name>]`, and bare `[<name>]`."""
    for name, value in values.items():
        if name == TABLES and isinstance(value, dict):
            yield from (((TABLES, inner), table) for inner, table in value.items())
        else:
            yield (name,), value


def _binding(source: Source, path: tuple[str, ...], value: Any, environ: Mapping[str, str]) -> Binding | None:
    if not isinstance(value, dict):
        source.complain(path, f"is no table; a binding is written as [channels.{path[-1]}] with `plugin = ...`")
        return None
    if not _NAME.fullmatch(path[-1]):
        source.complain(path, f"a name has 1 to 64 letters, digits, _ . or -; got {path[-1]!r}")
    if path[-1] in message.TAKEN:
        source.complain(path, f"{path[-1]!r} is what other threads of ours begin with; give it another name")
    table = Table(source, value, path)
    looked_up = Environ(source=source, variables=environ)
    plugin: str = table.take("plugin", TEXT, "", required=True)
    agent: str | None = table.take("agent", TEXT, None)
    every: float | None = table.take("every", SECONDS, None)
    config: dict[str, Any] = table.take("config", TABLE, {})
    table.refuse_the_rest()
    return Binding(
        name=path[-1],
        plugin=plugin,
        agent=agent,
        every=every,
        config=looked_up.resolved(config, (*path, "config")),
        secrets=frozenset(looked_up.secrets),
        source=source,
        path=path,
    )


def _syntax_fault(source: Source, error: tomllib.TOMLDecodeError) -> str:
    place = _SYNTAX_PLACE.search(str(error))
    line = (place and place["line"]) or max(1, len(source.text.splitlines()))
    return f"{source.name}:{line}: this is not TOML: {_SYNTAX_PLACE.sub('', str(error))}; put it right there"
