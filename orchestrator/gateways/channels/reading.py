"""channels.toml, from text to bindings. One that is malformed is a fault of its own and stops no other.

A key of `config` that ends in `_env` names a variable of the environment, at any depth: its value is put under the key
without that ending.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import Field

from chordage.orchestrator.core.errors import RoomError
from chordage.orchestrator.core.message import TAKEN
from chordage.orchestrator.gateways.room.files import Source, load_toml
from chordage.orchestrator.gateways.room.tables import NAME, AnyTable, Seconds, Text, TomlTable, read_table

FILE = "channels.toml"
TABLES = "channels"
FROM_ENVIRONMENT = "_env"
_SECRET = re.compile(r"token|secret|password|passwd|api_?key|authorization", re.IGNORECASE)


class BindingTable(TomlTable):
    plugin: Text = Field(examples=["telegram"], description="telegram, imap, http_json, webhook, or module:function")
    agent: Text | None = Field(None, description="Who answers; default the room's default agent")
    every: Seconds | None = Field(None, description="Seconds between two polls; the default depends on the plugin")
    config: AnyTable = Field({}, description="Options of the plugin; a name that ends in _env names a variable")


@dataclass(frozen=True, kw_only=True, slots=True)
class ChannelBinding:
    """One table of the file. `config` holds values of the environment, and is never shown."""

    name: str
    plugin: str
    agent: str | None
    every: float | None  # None: the default of its plugin
    config: Mapping[str, Any] = field(repr=False)
    secrets: frozenset[str] = field(repr=False)
    source: Source = field(repr=False)
    path: tuple[str, ...]

    def place(self, *keys: str) -> str:
        return self.source.place((*self.path, *keys))


@dataclass(frozen=True, kw_only=True, slots=True)
class Reading:
    bindings: Mapping[str, ChannelBinding] = field(default_factory=dict)
    broken: Mapping[str, RoomError] = field(default_factory=dict)  # bindings by name
    drafts: Mapping[str, ChannelBinding] = field(default_factory=dict)  # what could be read of broken ones
    faults: tuple[RoomError, ...] = ()  # of the file itself


def read(room: Path, environ: Mapping[str, str]) -> Reading:
    """Nothing where there is no such file."""
    path = room / FILE
    if not path.exists():
        return Reading()
    try:
        source, values = load_toml(FILE, path)
    except RoomError as error:
        return Reading(faults=(error,))
    bindings: dict[str, ChannelBinding] = {}
    broken: dict[str, RoomError] = {}
    drafts: dict[str, ChannelBinding] = {}
    faults: list[RoomError] = []
    for table, value in _tables(values):
        name, own = table[-1], source.beside()
        binding = _binding(own, table, value, environ)
        if name in bindings or name in broken:
            own.complain(table, f"there are two bindings {name!r}; give one of them another name")
        if own.error is None and binding is not None:
            bindings[name] = binding
        elif binding is not None and own.error is not None and name not in bindings:
            broken[name] = own.error
            drafts[name] = binding
        elif own.error is not None:
            faults.append(own.error)
    return Reading(bindings=bindings, broken=broken, drafts=drafts, faults=tuple(faults))


def _tables(values: dict[str, Any]) -> Iterator[tuple[tuple[str, ...], Any]]:
    """`[channels.<name>]`, and bare `[<name>]`."""
    for name, value in values.items():
        if name == TABLES and isinstance(value, dict):
            yield from (((TABLES, inner), table) for inner, table in value.items())
        else:
            yield (name,), value


def _binding(source: Source, path: tuple[str, ...], value: Any, environ: Mapping[str, str]) -> ChannelBinding | None:
    name = path[-1]
    if not isinstance(value, dict):
        source.complain(path, f"is no table; a binding is written as [channels.{name}] with `plugin = ...`")
        return None
    if not NAME.fullmatch(name):
        source.complain(path, f"a name has 1 to 64 letters, digits, _ . or -; got {name!r}")
    if name in TAKEN:
        source.complain(path, f"{name!r} is the beginning of other threads; give it another name")
    table = read_table(BindingTable, source, value, path)
    environment = _Environment(source, environ)
    config = environment.resolve(table.config, (*path, "config"))
    return ChannelBinding(
        name=name,
        plugin="" if source.is_wrong((*path, "plugin")) else table.plugin,
        agent=table.agent,
        every=table.every,
        config=config,
        secrets=frozenset(environment.secrets),
        source=source,
        path=path,
    )


class _Environment:
    """`secrets`: every value that was looked up, or has the name of a secret. None may be shown."""

    def __init__(self, source: Source, variables: Mapping[str, str]) -> None:
        self._source = source
        self._variables = variables
        self.secrets: set[str] = set()

    def resolve(self, values: Mapping[str, Any], path: tuple[str, ...]) -> dict[str, Any]:
        resolved: dict[str, Any] = {}
        for key, value in values.items():
            if key.endswith(FROM_ENVIRONMENT) and key != FROM_ENVIRONMENT:
                short = key.removesuffix(FROM_ENVIRONMENT)
                if (looked_up := self._look_up((*path, key), value, beside=short in values)) is not None:
                    resolved[short] = looked_up
            else:
                resolved[key] = self._inner(value, (*path, key))
                if isinstance(value, str) and value and _SECRET.search(key):
                    self.secrets.add(value)
        return resolved

    def _inner(self, value: Any, path: tuple[str, ...]) -> Any:
        match value:
            case dict():
                return self.resolve(value, path)
            case list():
                return [self._inner(member, path) for member in value]
            case _:
                return value

    def _look_up(self, path: tuple[str, ...], variable: Any, *, beside: bool) -> str | None:
        value = None
        if not isinstance(variable, str) or not variable.strip():
            self._source.complain(path, f"must be the name of an environment variable; got {variable!r}")
        elif beside:
            self._source.complain(path, f"there is {path[-1].removesuffix(FROM_ENVIRONMENT)} too; keep one of the two")
        elif not (value := self._variables.get(variable)):
            self._source.complain(path, f"the environment variable {variable} is not set; set it, and start again")
        else:
            self.secrets.add(value)
        return value or None
