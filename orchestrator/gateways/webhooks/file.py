"""hooks.toml, from text to bindings. A binding that is broken is a fault of its own; the others go on."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from chordage.orchestrator.core import bounds
from chordage.orchestrator.core.errors import RoomError
from chordage.orchestrator.core.webhooks import Binding
from chordage.orchestrator.gateways import text_files
from chordage.orchestrator.gateways.room.files import Source, Stamps, stamp_of
from chordage.orchestrator.gateways.room.reading import known_agents, no_such_agent
from chordage.orchestrator.gateways.room_table import TABLE, Table
from chordage.orchestrator.gateways.webhooks.binding import read_binding

FILE = "hooks.toml"
_SYNTAX_PLACE = re.compile(r"\s*\(at (?:line (?P<line>\d+), column (?P<column>\d+)|end of document)\)")


@dataclass(frozen=True, kw_only=True, slots=True)
class Broken:
    """A binding that cannot be used; `path` as far as it could be read."""

    name: str
    path: str | None
    fault: RoomError


@dataclass(frozen=True, kw_only=True, slots=True)
class HooksFile:
    bindings: tuple[Binding, ...] = ()
    broken: tuple[Broken, ...] = ()
    fault: RoomError | None = None  # of the file itself
    unreadable: bool = False  # nobody knows which bindings there are
    traces: Stamps = field(default_factory=dict)

    @property
    def faults(self) -> list[RoomError]:
        return [*([self.fault] if self.fault else []), *(one.fault for one in self.broken)]


def read(room: Path, environ: Mapping[str, str]) -> HooksFile:
    path = room / FILE
    traces: Stamps = {path: stamp_of(path)}  # before it is read: what changes meanwhile is then seen
    if traces[path] is None:
        return HooksFile(traces=traces)
    try:
        text = text_files.read(path)
        values = bounds.loads_toml(text)
    except (OSError, UnicodeDecodeError) as error:
        return _unreadable(f"{FILE}: cannot be read: {error}", traces)
    except tomllib.TOMLDecodeError as error:
        return _unreadable(_syntax_fault(text, error), traces)
    return _read_tables(text, values, room, environ, traces)


def _unreadable(why: str, traces: Stamps) -> HooksFile:
    return HooksFile(fault=RoomError(why), unreadable=True, traces=traces)


def _syntax_fault(text: str, error: tomllib.TOMLDecodeError) -> str:
    place = _SYNTAX_PLACE.search(str(error))
    line = (place and place["line"]) or max(1, len(text.splitlines()))
    return f"{FILE}:{line}: this is not TOML: {_SYNTAX_PLACE.sub('', str(error))}"


def _read_tables(
    text: str, values: dict[str, Any], room: Path, environ: Mapping[str, str], traces: Stamps
) -> HooksFile:
    whole = Table(Source(name=FILE, text=text), values)
    tables = whole.inner("hooks")
    whole.refuse_the_rest()
    bindings: dict[tuple[str, str], Binding] = {}
    broken: list[Broken] = []
    for name in tables.values:
        table = Table(Source(name=FILE, text=text), tables.values[name], (*tables.path, name))
        traces |= _code_of(tables.values[name], room)
        binding = _binding(table, name, room, environ)
        if binding is not None and (other := bindings.get((binding.path, binding.method))):
            table.complain("path", f"{binding.method} {binding.path} is taken by [hooks.{other.name}]; change one")
        if binding is None or table.source.faults:
            broken.append(_broken(name, tables.values[name], table.source))
        else:
            bindings[binding.path, binding.method] = binding
    problems = whole.source.faults
    return HooksFile(
        bindings=tuple(bindings.values()),
        broken=tuple(broken),
        fault=RoomError("\n".join(problems)) if problems else None,
        traces=traces,
    )


def _code_of(values: Any, room: Path) -> Stamps:
    """A decoder of the room that could not be imported is tried again when its file has changed."""
    plugin = values.get("plugin") if isinstance(values, dict) else None
    module, colon, _ = plugin.partition(":") if isinstance(plugin, str) else ("", "", "")
    path = room / f"{module.replace('.', '/')}.py"
    return {path: stamp_of(path)} if colon and "\0" not in module else {}


def _binding(table: Table, name: str, room: Path, environ: Mapping[str, str]) -> Binding | None:
    if not TABLE.fits(table.values):
        table.source.complain(table.path, f"must be a table: [hooks.{name}]")
        return None
    return read_binding(table, name, room, environ)


def _broken(name: str, values: Any, source: Source) -> Broken:
    path = values.get("path") if isinstance(values, dict) else None
    fault = RoomError("\n".join(source.faults))
    return Broken(name=name, path=path if isinstance(path, str) else None, fault=fault)


def faults(room: Path, environ: Mapping[str, str]) -> list[RoomError]:
    """Everything that is wrong with the web hooks of a room, each with its file and line: for `chordage check`."""
    found = read(room, environ)
    return [*found.faults, *_unknown_agents(room, found)]


def _unknown_agents(room: Path, found: HooksFile) -> list[RoomError]:
    source = Source(name=FILE, text=(room / FILE).read_text(encoding="utf-8-sig") if found.bindings else "")
    known = known_agents(room) if found.bindings else []
    for binding in found.bindings:
        if (why := no_such_agent(binding.agent, known)) is not None:
            source.complain(("hooks", binding.name, "agent"), why)
    return [RoomError(problem) for problem in source.faults]
