"""The agents of a room and their tools, kept up to date while its files change.

One broken file is a fault of its own and stops no other agent; its agent keeps its last good version until the file is
mended. The room's Python is imported, and its MCP servers are connected to, when an agent's tools are first needed. A
process that runs turns sets `require`: there a version is good only if all that it names can be used.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import structlog

from chordage.orchestrator.core import drill
from chordage.orchestrator.core.agent import AgentSpec, ToolSpec
from chordage.orchestrator.core.agent_versions import AgentVersion
from chordage.orchestrator.core.errors import BrokenAgent, RoomError, UnknownAgent, UserError
from chordage.orchestrator.core.prices import PriceList
from chordage.orchestrator.gateways.mcp.servers import McpServer, prefix
from chordage.orchestrator.gateways.mcp.tools import McpServers
from chordage.orchestrator.gateways.ports import OutputForm
from chordage.orchestrator.gateways.room import definitions, imports
from chordage.orchestrator.gateways.room.agent_file import AgentFile, Providers
from chordage.orchestrator.gateways.room.reading import Copies, RoomReading, read_room
from chordage.orchestrator.gateways.tools.attempt import NamedAround, nothing_around
from chordage.orchestrator.gateways.tools.declare import Tool
from chordage.orchestrator.gateways.tools.toolbox import ToolBox

log = structlog.get_logger()

LOOK_AGAIN = 1.0  # seconds after which changed files are noticed


@dataclass(frozen=True, kw_only=True, slots=True)
class _Unusable:
    """A version of a file of which something that it names could not be used."""

    file: AgentFile
    error: UserError
    tried_at: float


@dataclass(frozen=True, kw_only=True, slots=True)
class _Versioned:
    """An agent with its digest, as a reading of the room has it. Providers of other files belong to it."""

    reading: RoomReading
    read: AgentSpec
    spec: AgentSpec
    version: AgentVersion


class Room:
    """Implements `ports.Agents`; `toolbox` implements `ports.Tools` for its agents. Safe to share between threads.

    `environ`: the variables that keys ending in `_env` name. `around_tools`: the import path of what wraps each tool.
    `copies`: for a process that runs for long; it also logs faults.
    """

    def __init__(
        self,
        path: Path,
        *,
        environ: Mapping[str, str] | None = None,
        strategies: Collection[str] = ("direct", "react", "plan_execute"),
        look_again: float = LOOK_AGAIN,
        around_tools: str | None = None,
        copies: Copies | None = None,
    ) -> None:
        if not path.is_dir():
            raise RoomError(f"{path}: there is no such folder; a room is a folder with an agent.toml in it")
        self.path = path.resolve()  # model scripts and instruction files are relative to this
        self._around = NamedAround(around_tools) if around_tools else None
        self.toolbox = ToolBox(self.tools_of, around=self._around or nothing_around)
        self.servers = McpServers(self.path, environ=environ or {})
        self._strategies = strategies
        self._look_again = look_again
        self._lock = threading.Lock()
        self._tools: dict[tuple[str, ...], Mapping[str, Tool]] = {}
        self._pinned: dict[str, Mapping[str, Tool]] = {}  # of stored versions, by digest
        self._forms: dict[str, OutputForm] = {}  # of models: their code is not read again
        self._copies = copies
        self._require: Callable[[AgentSpec], None] | None = None
        self._usable: dict[str, AgentFile] = {}  # by file: the last version of which all could be used
        self._unusable: dict[str, _Unusable] = {}  # by file
        self._logged: dict[str, str] = {}  # faults, by file
        self._versioned: dict[str, _Versioned] = {}  # by agent
        self._has_versions = False
        self._digests: Mapping[str, str] = {}
        imports.make_importable(self.path)
        self._reading = self._read(None)
        self._read_at = time.monotonic()

    def require(self, check: Callable[[AgentSpec], None]) -> None:
        """From now on `get` returns only agents for which `check` raises no UserError. It is called once for each
        version, and again after a while if it raised.
        """
        self._require = check
        self.with_versions()

    def with_versions(self) -> None:
        """From now on `get` returns agents with their digests: their tools are loaded for that."""
        self._has_versions = True

    def get(self, name: str | None) -> AgentSpec:
        """Before it is refused the files are read once more: it may have been written or mended just now."""
        if name == drill.AGENT_NAME:  # of every room, and of no version
            return drill.CANARY_AGENT
        now = time.monotonic()
        file = self._current().named(name)
        if file is None or file.spec is None:
            room = self._current(since=now)
            file = room.named(name)
            if file is None:
                raise self._unknown(name, room)
        spec = self._in_use(file).spec
        if spec is None:
            raise BrokenAgent(str(file.fault) if file.fault else f"{file.source.name}: cannot be used", file.name)
        return self._with_version(spec).spec if self._has_versions else spec

    def version(self, agent: AgentSpec) -> AgentVersion:
        """Its tools are loaded for that. Raises UserError."""
        return self._with_version(agent).version

    def digests(self) -> Mapping[str, str]:
        """Of each agent as this process used it last, by name. No file is read for that."""
        return self._digests

    def _with_version(self, spec: AgentSpec) -> _Versioned:
        """Two threads may compute it at once, and come to the same."""
        reading, known = self._reading, self._versioned.get(spec.name)
        if known is not None and known.reading is reading and (known.read is spec or known.spec is spec):
            return known
        version = definitions.version(
            spec, tools=[tool.spec for tool in self._own(spec).values()], output=self.output_of(spec),
            servers=self.servers_of(spec), providers=self.providers(),
        )  # fmt: skip
        with_digest = replace(spec, digest=version.digest)
        known = _Versioned(reading=reading, read=spec, spec=with_digest, version=version)
        self._versioned[spec.name] = known
        if self._has_versions:
            present = {file.name for file in reading.files}
            others = {name: digest for name, digest in self._digests.items() if name in present}
            self._digests = {**others, spec.name: version.digest}
        return known

    def _in_use(self, file: AgentFile) -> AgentFile:
        """The version that serves: this one, or the last one before it of which all could be used."""
        name, spec, require = file.source.name, file.spec, self._require
        if spec is None or require is None:
            return file
        usable = self._usable.get(name)
        if usable is not None and (usable.spec is spec or (usable.spec, usable.servers) == (spec, file.servers)):
            return usable
        failure = self._unusable.get(name)
        if failure is None or failure.file is not file or time.monotonic() - failure.tried_at >= self._look_again:
            failure = self._failure(file, spec, require)
        if failure is None:
            return file
        if usable is None:
            raise BrokenAgent(str(failure.error), name) from failure.error
        return usable

    def _failure(self, file: AgentFile, spec: AgentSpec, require: Callable[[AgentSpec], None]) -> _Unusable | None:
        """None where all that the version names can be used."""
        name = file.source.name
        before = self._unusable.pop(name, None)
        try:
            require(spec)
        except UserError as error:
            failure = self._unusable[name] = _Unusable(file=file, error=error, tried_at=time.monotonic())
        else:
            self._usable[name] = file
            if before is not None:
                log.warning("agent can be used again", agent=spec.name)
            return None
        if before is None or str(before.error) != str(failure.error):
            meanwhile = _meanwhile(name in self._usable)
            log.error("agent cannot be used", agent=spec.name, fault=str(failure.error), meanwhile=meanwhile)
        return failure

    def names(self) -> list[str]:
        """Of the agents that can be used; the default comes first."""
        return [file.name for file in self._current().files if file.spec]

    @property
    def faults(self) -> list[RoomError]:
        """One for each file that is broken."""
        return [file.fault for file in self._current().files if file.fault]

    @property
    def broken(self) -> dict[str, str]:
        """What is wrong with each agent whose file is broken, also while its last good version is used."""
        return {file.name: str(file.fault) for file in self._current().files if file.fault}

    @property
    def drafts(self) -> list[AgentSpec]:
        """What could be read of broken files: not to be used, but to find further faults."""
        return [file.draft for file in self._current().files if file.spec is None and file.draft]

    def providers(self) -> Providers:
        """What the [models.<name>] tables say, by name: `wire`, `base_url` and so on, as far as given."""
        return {name: table for file in self._current().files for name, table in file.providers.items()}

    def prices(self) -> PriceList:
        """What the [prices] tables say, by model."""
        return self._current().prices()

    def check_around(self) -> None:
        """Raises RoomError when the wrapper of the tools cannot be imported."""
        if self._around is not None:
            self._around.check()

    def check_tools(self, agent: AgentSpec) -> list[ToolSpec]:
        """The tools in Python. Raises RoomError for what is wrong with them, and ConfigError for an MCP server that
        cannot be used here, without connecting to it.
        """
        own = [tool.spec for tool in self._own(agent).values()]
        servers = self.servers_of(agent)
        for server in servers:
            if server.required:
                self.servers.check(server)
        self._check_placements(agent, [spec.name for spec in own], tuple(prefix(server.name) for server in servers))
        return own

    def _check_placements(self, agent: AgentSpec, own: list[str], prefixes: tuple[str, ...]) -> None:
        """A tool that is misspelt would run where it should not. What a server has is not known without asking it."""
        for name in agent.placements:
            if name not in own and not name.startswith(prefixes):
                has = ", ".join(own) or "none"
                raise RoomError(f"{self.place_of(agent, 'placements')}: the agent has no tool {name!r}; it has: {has}")

    def servers_of(self, agent: AgentSpec) -> tuple[McpServer, ...]:
        file = self._current().named(agent.name)
        if file is None:
            return ()
        if file.spec is None and file.fault is not None:
            raise file.fault
        usable = self._usable.get(file.source.name)
        if usable is not None and (usable.spec is agent or usable.spec == agent):
            return usable.servers
        return file.servers

    def output_of(self, agent: AgentSpec) -> OutputForm | None:
        """The form of its final answer; None where any text will do."""
        use = agent.output
        if use is None:
            return None
        form = self._forms.get(use.model)
        if form is None:
            try:
                form = imports.output_form(use, self.path)
            except imports.NotImportable as error:
                raise RoomError(f"{self.place_of(agent, 'output')}: {use.model!r}: {error}") from error
            if use.model:
                self._forms[use.model] = form
        return form

    def close(self) -> None:
        """Ends the connections to MCP servers."""
        self.servers.close()

    def tools_of(self, agent: AgentSpec) -> Mapping[str, Tool]:
        return self.servers.with_own(self._own(agent), self.servers_of(agent))

    def _of_version(self, agent: AgentSpec, names: Collection[str]) -> Mapping[str, Tool]:
        """Those of a stored version that the code of today still has. The others are not offered to the model any more,
        and a call of one is answered with that.
        """
        if agent.digest in self._pinned:
            return self._pinned[agent.digest]
        tools: dict[str, Tool] = {}
        for path in agent.tools:
            try:
                tools |= {tool.name: tool for tool in self.tools_at(path, agent) if tool.name in names}
            except RoomError as error:
                log.warning("a tool of an older version is gone", version=agent.digest, fault=str(error))
        if tools.keys() >= set(names):  # else it may be put back
            self._pinned[agent.digest] = tools
        return tools

    def _own(self, agent: AgentSpec) -> Mapping[str, Tool]:
        if agent.pinned_tools is not None:
            return self._of_version(agent, agent.pinned_tools)
        if agent.tools not in self._tools:
            tools: dict[str, Tool] = {}
            paths: dict[str, str] = {}
            for path in agent.tools:
                for tool in self.tools_at(path, agent):
                    name = tool.name
                    if tools.setdefault(name, tool) is not tool:
                        why = (
                            f"is called {name} like {paths[name]!r}; give one of them another name with @tool(name=...)"
                        )
                        raise RoomError(f"{self.place_of(agent, 'tools', path)}: {path!r} {why}")
                    paths.setdefault(name, path)
            self._tools[agent.tools] = tools
        return self._tools[agent.tools]

    def tools_at(self, path: str, agent: AgentSpec) -> list[Tool]:
        """Those of one item of its list. Raises RoomError."""
        try:
            return imports.find_tools(path, self.path)
        except imports.NotImportable as error:
            raise RoomError(f"{self.place_of(agent, 'tools', path)}: {path!r}: {error}") from error

    def place_of(self, agent: AgentSpec, key: str, item: str = "") -> str:
        """Where in the agent's file the key is, or one item of its list."""
        file = self._current().named(agent.name)
        if file is None:
            return f"agent {agent.name}: {key}"
        line = file.source.line_of_item((key,), item) if item else file.source.line_of((key,))
        return f"{file.source.name}:{line}: {key}"

    def _current(self, *, since: float | None = None) -> RoomReading:
        """The definitions as the files have them, give or take a second. `since`: as they were at that moment or later;
        threads that wait for a reading share the next.
        """
        with self._lock:
            is_too_old = since is not None and self._read_at <= since
            if is_too_old or time.monotonic() - self._read_at >= self._look_again:
                self._read_at = time.monotonic()
                if self._reading.is_outdated(self.path):
                    self._reading = self._read(self._reading)
                    in_use = [*self._reading.files, *self._usable.values()]
                    self.servers.keep({server for file in in_use for server in file.servers})
            return self._reading

    def _read(self, before: RoomReading | None) -> RoomReading:
        fresh = read_room(self.path, self._strategies)
        reading = fresh.with_last_good(before, self.path, self._strategies, self._copies)
        if self._copies is not None:
            texts = {file.source.name: file.source.text for file in fresh.files if file.spec}
            self._copies.keep(texts, {file.source.name for file in fresh.files})
            self._log_faults(reading)
        return reading

    def _log_faults(self, reading: RoomReading) -> None:
        """Each once, and once more when it is gone."""
        faults = {file.source.name: str(file.fault) for file in reading.files if file.fault}
        for file in reading.files:
            if file.fault and self._logged.get(file.source.name) != str(file.fault):
                meanwhile = _meanwhile(file.spec is not None)
                log.error("agent file is broken", agent=file.name, fault=str(file.fault), meanwhile=meanwhile)
        for name in self._logged.keys() - faults:
            log.warning("agent file is no longer broken", file=name)
        self._logged = faults

    def _unknown(self, name: str | None, room: RoomReading) -> UserError:
        """While a file cannot be read at all, it may be the one that is meant."""
        known = ", ".join(file.name for file in room.files if file.spec) or "none"
        broken = "".join(f"\n{file.fault}" for file in room.files if file.fault)
        if name is not None:
            why = f"there is no agent {name!r}; there are: {known}"
        elif room.files:
            why = f"no agent is the default; name one of {known}, or write an agent.toml"
        else:
            why = "there is no agent; write an agent.toml with at least `model = ...`"
        unread = any(file.spec is None and file.draft is None for file in room.files)
        if unread:
            return BrokenAgent(f"{self.path}: {why}{broken}", name)
        return UnknownAgent(why, where=str(self.path), broken=broken)


def _meanwhile(serves: bool) -> str:
    return "its last good version serves" if serves else "work for it waits"
