"""The channels of a room: channels.toml, from its text to channels. Each is made when it is first asked for.

A binding that is malformed is a fault of its own and stops no other. A key of `config` that ends in `_env` names a
variable of the environment, at any depth: its value is put under the key without that ending. Plugins are found among
the shipped ones, then among entry points, then as import paths.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from importlib import import_module
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from pydantic import Field

from chordage.orchestrator.core.channels import Terms
from chordage.orchestrator.core.errors import NotFound, RoomError, alternatives
from chordage.orchestrator.core.message import TAKEN
from chordage.orchestrator.core.text import names_secret
from chordage.orchestrator.gateways.channels.guarding import GuardedChannel, masked
from chordage.orchestrator.gateways.ports import Channel
from chordage.orchestrator.gateways.room import imports
from chordage.orchestrator.gateways.room.files import Source, load_toml
from chordage.orchestrator.gateways.room.reading import known_agents, no_such_agent
from chordage.orchestrator.gateways.room.tables import NAME, AnyTable, Seconds, Text, TomlTable, read_table
from chordage.orchestrator.plugins.base import OptionRefused
from chordage.orchestrator.system import user_code

FILE = "channels.toml"
TABLES = "channels"
FROM_ENVIRONMENT = "_env"
ENTRY_POINTS = "chordage.channels"
USUALLY = 5.0  # seconds between two polls of a plugin that says nothing else
# Seconds between two polls that bring nothing. A long poll waits by itself. Each is a module here of the same name,
# imported with the first channel of its kind: mail and its like are dear to load, and most workers have none.
SHIPPED = {
    "telegram": 0.25,
    "imap": 30.0,
    "http_json": 10.0,
    "webhook": 3600.0,  # replies go out there, and nothing comes in
}


class BindingTable(TomlTable):
    plugin: Text = Field(examples=["telegram"], description="telegram, imap, http_json, webhook, or module:function")
    agent: Text | None = Field(None, description="Who answers; default the room's default agent")
    every: Seconds | None = Field(None, description="Seconds between two polls; the default depends on the plugin")
    config: AnyTable = Field({}, description="Options of the plugin; a name that ends in _env names a variable")


@dataclass(frozen=True, kw_only=True, slots=True)
class ChannelBinding:
    """One table of the file. `config` holds values of the environment, and is never shown. What is wrong with the
    binding is in its `source`.
    """

    name: str
    plugin: str
    agent: str | None
    every: float
    config: Mapping[str, Any] = field(repr=False)
    secrets: frozenset[str] = field(repr=False)
    source: Source = field(repr=False)
    path: tuple[str, ...]

    def place(self, *keys: str) -> str:
        return self.source.place((*self.path, *keys))


@dataclass(frozen=True, kw_only=True, slots=True)
class ChannelsFile:
    bindings: Mapping[str, ChannelBinding] = field(default_factory=dict)  # as far as they could be read
    faults: tuple[RoomError, ...] = ()  # of the file itself, and of tables that have no binding


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
        return sorted(self._file.bindings)

    def get(self, name: str) -> Channel:
        with self._lock:
            if name not in self._made:
                imports.make_importable(self._room)
                self._made[name] = channel_of(self._binding(name))
            return self._made[name]

    def terms(self, name: str) -> Terms:
        binding = self._binding(name)
        return Terms(plugin=binding.plugin, agent=binding.agent, every=binding.every)

    def faults(self) -> list[RoomError]:
        faults = [*self._file.faults]
        for name, binding in self._file.bindings.items():
            try:
                self.get(name)
            except RoomError as error:
                faults.append(_with_options(binding, error))
        return faults

    def unknown_agents(self) -> list[RoomError]:
        bindings = [binding for binding in self._file.bindings.values() if binding.source.error is None]
        known = known_agents(self._room) if bindings else []
        faults = ((binding, no_such_agent(binding.agent, known)) for binding in bindings)
        return [RoomError(f"{binding.place('agent')}: {why}") for binding, why in faults if why is not None]

    def close(self) -> None:
        """Interrupt long polls, as far as their plugins can do that."""
        with self._lock:
            made, self._made = self._made, {}
        for channel in made.values():
            channel.close()

    @cached_property
    def _file(self) -> ChannelsFile:
        with self._lock:
            return read(self._room, self._environ)

    def _binding(self, name: str) -> ChannelBinding:
        binding = self._file.bindings.get(name)
        if binding is None:
            known = ", ".join(self.names()) or "none"
            broken = "".join(f"\n{fault}" for fault in self._file.faults)
            raise NotFound(f"there is no channel {name!r} in {self._room / FILE}; there are: {known}{broken}")
        if binding.source.error is not None:
            raise binding.source.error
        return binding


# from the text of the file to bindings


def read(room: Path, environ: Mapping[str, str]) -> ChannelsFile:
    """Nothing where there is no such file."""
    path = room / FILE
    if not path.exists():
        return ChannelsFile()
    try:
        source, values = load_toml(FILE, path)
    except RoomError as error:
        return ChannelsFile(faults=(error,))
    bindings: dict[str, ChannelBinding] = {}
    faults: list[RoomError] = []
    for table, value in _tables(values):
        own = source.beside()
        binding = _binding(own, table, value, environ)
        if table[-1] in bindings:
            own.complain(table, f"there are two bindings {table[-1]!r}; give one of them another name")
        elif binding is not None:
            bindings[binding.name] = binding
            continue
        if own.error is not None:
            faults.append(own.error)
    return ChannelsFile(bindings=bindings, faults=tuple(faults))


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
        every=table.every or SHIPPED.get(table.plugin, USUALLY),
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
                if isinstance(value, str) and value and names_secret(key):
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


# from a binding to its channel


def channel_of(binding: ChannelBinding) -> Channel:
    """Connects to nothing. RoomError says what is wrong on which line."""
    if binding.plugin in SHIPPED:
        return GuardedChannel(binding.name, _shipped(binding), binding.secrets)
    try:
        return GuardedChannel(binding.name, _by_users(binding), binding.secrets)
    except user_code.NotLoaded as error:
        offered = {*SHIPPED, *(point.name for point in entry_points(group=ENTRY_POINTS))}
        raise RoomError(f"{binding.place('plugin')}: {error}; {alternatives(binding.plugin, offered)}") from error


def _with_options(binding: ChannelBinding, fault: RoomError) -> RoomError:
    """With the faults of its options, where the plugin did not come to see them: all is to be put right in one go."""
    if binding.plugin in SHIPPED and binding.source.error is not None:
        try:
            _shipped(binding)
        except RoomError as error:
            known = {_key(line).removesuffix(FROM_ENVIRONMENT) for line in str(fault).splitlines()}
            more = [line for line in str(error).splitlines() if _key(line) not in known]
            return RoomError("\n".join([str(fault), *more]))
    return fault


def _key(line: str) -> str:
    """`channels.phone.config.token` of `channels.toml:6: channels.phone.config.token: ...`."""
    return line.partition(": ")[2].partition(": ")[0]


def _shipped(binding: ChannelBinding) -> Channel:
    source, path = binding.source.beside(), (*binding.path, "config")
    plugin = import_module(f"{__package__}.{binding.plugin}")
    table = read_table(plugin.TABLE, source, binding.config, path)
    channel: Channel = plugin.make(binding.name, table, lambda key, why: source.complain((*path, *key.split(".")), why))
    if source.error is not None:
        raise RoomError(masked(str(source.error), binding.secrets))
    return channel


def _by_users(binding: ChannelBinding) -> Channel:
    make = user_code.load_function(binding.plugin, ENTRY_POINTS, what="channel plugin")
    try:
        made = make(binding.name, dict(binding.config))
    except OptionRefused as error:
        raise RoomError(masked(f"{binding.place('config', error.option)}: {error.why}", binding.secrets)) from None
    except user_code.failures() as error:
        why = f"{type(error).__name__}: {user_code.words_of(error)}"
        words = f"{binding.place('config')}: {binding.plugin} raised {why}"
        raise RoomError(masked(words, binding.secrets)) from None
    if missing := [name for name in ("poll", "deliver", "close") if not callable(getattr(made, name, None))]:
        raise RoomError(f"{binding.place('plugin')}: what {binding.plugin} makes has no {', '.join(missing)}")
    channel: Channel = made
    return channel
