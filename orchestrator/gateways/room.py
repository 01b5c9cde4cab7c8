"""The room: a folder with agent.toml, agents/*.toml and the Python files with their tools.

Definitions are read again when a file changes. One broken file is a fault of its own and stops no other agent; its own
agent is served with its last good version until it is repaired. The room's Python is imported, and its MCP servers are
connected to, when an agent's tools are first asked for. A process that carries out turns sets `require`: there a
version is good only if all that it names can be used.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

import structlog

from chordage.orchestrator.core import subagents
from chordage.orchestrator.core.agent import AgentSpec, ToolSpec
from chordage.orchestrator.core.errors import BrokenAgent, RoomError, UnknownAgent, UserError
from chordage.orchestrator.gateways import room_lines, room_output, room_tools
from chordage.orchestrator.gateways.mcp import McpServer, Servers
from chordage.orchestrator.gateways.ports import OutputForm
from chordage.orchestrator.gateways.room_copies import Copies
from chordage.orchestrator.gateways.room_file import AgentFile, Providers
from chordage.orchestrator.gateways.room_reading import RoomReading, read_room
from chordage.orchestrator.gateways.tools.around import NamedAround, nothing_around
from chordage.orchestrator.gateways.tools.declare import Tool
from chordage.orchestrator.gateways.tools.toolbox import ToolBox

log = structlog.get_logger()

LOOK_AGAIN = 1.0  # seconds between two looks at the files


@dataclass(frozen=True, kw_only=True, slots=True)
class _Unusable:
    """A version of a file of which something that it names could not be used."""

    file: AgentFile
    error: UserError
    tried_at: float


class Room:
    """Implements `ports.Agents`; `toolbox` implements `ports.Tools` for its agents. Safe to share between threads.

    `environ` is what keys that end in `_env` are looked up in; `around_tools` names what is to be around each tool.
    `copies`: of a process that lives long; it logs faults.
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
        self.servers = Servers(self.path, environ=environ or {})
        self._strategies = strategies
        self._look_again = look_again
        self._lock = threading.Lock()
        self._tools: dict[tuple[str, ...], Mapping[str, Tool]] = {}
        self._forms: dict[str, OutputForm] = {}  # of models: their code is not read again
        self._copies = copies
        self._require: Callable[[AgentSpec], None] | None = None
        self._usable: dict[str, AgentFile] = {}  # by file: the last version of which all could be used
        self._unusable: dict[str, _Unusable] = {}  # by file
        self._told: dict[str, str] = {}  # faults that have been logged, by file
        room_tools.make_importable(self.path)
        self._now = self._read(None)
        self._looked_at = time.monotonic()

    def require(self, check: Callable[[AgentSpec], None]) -> None:
        """From now on an agent is handed out only if `check` does not raise UserError for it. It is asked once for each
        version, and again after a while if it has raised.
        """
        self._require = check

    def get(self, name: str | None) -> AgentSpec:
        """Before it is refused the files are looked at once more: it may have been written or mended just now."""
        asked = time.monotonic()
        file = _named(name, self._present())
        if file is None or file.spec is None:
            room = self._present(since=asked)
            file = _named(name, room)
            if file is None:
                raise self._unknown(name, room)
        spec = self._in_use(file).spec
        if spec is None:
            raise BrokenAgent(str(file.fault) if file.fault else f"{file.source.name}: cannot be used")
        return spec

    def _in_use(self, file: AgentFile) -> AgentFile:
        """The version that serves: this one, or the last one before it of which all could be used."""
        name, spec, require = file.source.name, file.spec, self._require
        if spec is None or require is None:
            return file
        usable = self._usable.get(name)
        if usable is not None and (usable.spec is spec or (usable.spec, usable.servers) == (spec, file.servers)):
            return usable
        failed = self._unusable.get(name)
        if failed is None or failed.file is not file or time.monotonic() - failed.tried_at >= self._look_again:
            failed = self._tried(file, spec, require)
        if failed is None:
            return file
        if usable is None:
            raise BrokenAgent(str(failed.error)) from failed.error
        return usable

    def _tried(self, file: AgentFile, spec: AgentSpec, require: Callable[[AgentSpec], None]) -> _Unusable | None:
        name = file.source.name
        fault = _fault(require, spec)
        before = self._unusable.pop(name, None)
        if fault is None:
            self._usable[name] = file
            if before is not None:
                log.warning("agent can be used again", agent=spec.name)
            return None
        if before is None or str(before.error) != str(fault):
            meanwhile = _meanwhile(name in self._usable)
            log.error("agent cannot be used", agent=spec.name, fault=str(fault), meanwhile=meanwhile)
        unusable = self._unusable[name] = _Unusable(file=file, error=fault, tried_at=time.monotonic())
        return unusable

    def names(self) -> list[str]:
        """Of the agents that can be used; the default comes first."""
        return [file.name for file in self._present().files if file.spec]

    @property
    def faults(self) -> list[RoomError]:
        """One for each file that is broken."""
        return [file.fault for file in self._present().files if file.fault]

    @property
    def drafts(self) -> list[AgentSpec]:
        """Of files that are broken and could be read all the same: not to be used, but to find all that is wrong."""
        return [file.draft for file in self._present().files if file.spec is None and file.draft]

    def providers(self) -> Providers:
        """What the [models.<name>] tables say, by name: `wire`, `base_url` and so on, as far as given."""
        return {name: table for file in self._present().files for name, table in file.providers.items()}

    def check(self) -> list[UserError]:
        """All faults, those of the tools' Python among them. Imports everything, and connects to nothing."""
        found: list[UserError] = [*self.faults]
        for name in self.names():
            try:
                agent = self.get(name)
                found += self.faults_of_sub_agents(agent, {tool.name for tool in self.check_tools(agent)})
                self.output_of(self.get(name))
            except UserError as error:
                found.append(error)
        return found

    def faults_of_sub_agents(self, agent: AgentSpec, tools: Collection[str]) -> list[RoomError]:
        """Agents that are named and are not there, and tools of its own that nobody can call beside them."""
        known = self.names()
        wrong = [
            f"agent {agent.name}: agents: there is no agent {sub.agent!r}; there are: {', '.join(known)}"
            for sub in agent.agents if sub.agent not in known
        ]  # fmt: skip
        wrong += [
            f"agent {agent.name}: agents: its tool {name} would never be called; rename it with @tool(name=...)"
            for name in subagents.specs(agent) if name in tools
        ]  # fmt: skip
        return [RoomError(why) for why in wrong]

    def check_around(self) -> None:
        """Raises RoomError when what is to be around each tool cannot be had."""
        if self._around is not None:
            self._around.check()

    def check_tools(self, agent: AgentSpec) -> list[ToolSpec]:
        """The tools in Python. Raises RoomError for what is wrong with them, and ConfigError for an MCP server that
        cannot be used here; whether it answers is not tried.
        """
        own = [tool.spec for tool in self._own(agent).values()]
        for server in self.servers_of(agent):
            if server.required:
                self.servers.check(server)
        return own

    def servers_of(self, agent: AgentSpec) -> tuple[McpServer, ...]:
        file = self._present().named(agent.name)
        if file is None:
            return ()
        if file.spec is None and file.fault is not None:
            raise file.fault
        usable = self._usable.get(file.source.name)
        return usable.servers if usable is not None and usable.spec == agent else file.servers

    def output_of(self, agent: AgentSpec) -> OutputForm | None:
        """What its final answer has to be; None where any text will do."""
        use = agent.output
        if use is None:
            return None
        form = self._forms.get(use.model)
        if form is None:
            try:
                form = room_output.form_of(use, self.path)
            except room_tools.NoTool as error:
                raise RoomError(f"{self.place_of(agent, 'output')}: {use.model!r}: {error}") from error
            if use.model:
                self._forms[use.model] = form
        return form

    def close(self) -> None:
        """Ends the connections to MCP servers."""
        self.servers.close()

    def tools_of(self, agent: AgentSpec) -> Mapping[str, Tool]:
        return self.servers.offered(self._own(agent), self.servers_of(agent))

    def _own(self, agent: AgentSpec) -> Mapping[str, Tool]:
        if agent.tools not in self._tools:
            self._tools[agent.tools] = self._found(agent)
        return self._tools[agent.tools]

    def _found(self, agent: AgentSpec) -> dict[str, Tool]:
        found: dict[str, tuple[str, Tool]] = {}
        for path in agent.tools:
            for tool in self.tools_at(path, agent):
                if tool.name in found and found[tool.name][1] is not tool:
                    other = found[tool.name]
                    why = f"is called {tool.name} like {other[0]!r}; give one of them another name with @tool(name=...)"
                    raise RoomError(f"{self.place_of(agent, 'tools', path)}: {path!r} {why}")
                found[tool.name] = (path, tool)
        return {name: tool for name, (_path, tool) in found.items()}

    def tools_at(self, path: str, agent: AgentSpec) -> list[Tool]:
        """Those of one item of its list. Raises RoomError."""
        try:
            return room_tools.find(path, self.path)
        except room_tools.NoTool as error:
            raise RoomError(f"{self.place_of(agent, 'tools', path)}: {path!r}: {error}") from error

    def place_of(self, agent: AgentSpec, key: str, item: str = "") -> str:
        """Where in the agent's file the key stands, or one item of its list."""
        file = self._present().named(agent.name)
        if file is None:
            return f"agent {agent.name}: {key}"
        text = file.source.text
        line = room_lines.line_of_item(text, (key,), item) if item else room_lines.line_of(text, (key,))
        return f"{file.source.name}:{line}: {key}"

    def _present(self, *, since: float | None = None) -> RoomReading:
        """The definitions as the files have them, give or take a second. `since`: as they were at that moment or later;
        those who wait for a look share the next.
        """
        with self._lock:
            is_too_old = since is not None and self._looked_at <= since
            if is_too_old or time.monotonic() - self._looked_at >= self._look_again:
                self._looked_at = time.monotonic()
                if self._now.is_outdated(self.path):
                    self._now = self._read(self._now)
                    in_use = [*self._now.files, *self._usable.values()]
                    self.servers.keep({server for file in in_use for server in file.servers})
            return self._now

    def _read(self, before: RoomReading | None) -> RoomReading:
        found = read_room(self.path, self._strategies)
        read = found.with_last_good(before, self.path, self._strategies, self._copies)
        if self._copies is not None:
            texts = {file.source.name: file.source.text for file in found.files if file.spec}
            self._copies.keep(texts, {file.source.name for file in found.files})
            self._tell(read)
        return read

    def _tell(self, read: RoomReading) -> None:
        """Each fault once, and once that it is gone."""
        faults = {file.source.name: str(file.fault) for file in read.files if file.fault}
        for file in read.files:
            if file.fault and self._told.get(file.source.name) != str(file.fault):
                meanwhile = _meanwhile(file.spec is not None)
                log.error("agent file is broken", agent=file.name, fault=str(file.fault), meanwhile=meanwhile)
        for name in self._told.keys() - faults:
            log.warning("agent file is no longer broken", file=name)
        self._told = faults

    def _unknown(self, name: str | None, room: RoomReading) -> UserError:
        """While a file cannot be read at all, it may be the one that is meant."""
        said = self._who_is_there(name, room)
        unread = any(file.spec is None and file.draft is None for file in room.files)
        return BrokenAgent(said) if unread else UnknownAgent(said)

    def _who_is_there(self, name: str | None, room: RoomReading) -> str:
        known = ", ".join(file.name for file in room.files if file.spec) or "none"
        broken = "".join(f"\n{file.fault}" for file in room.files if file.fault)
        if name is None and not room.files:
            return f"{self.path}: there is no agent; write an agent.toml with at least `model = ...`"
        if name is None:
            return f"{self.path}: no agent is the default; name one of {known}, or write an agent.toml"
        return f"{self.path}: there is no agent {name!r}; there are: {known}{broken}"


def _fault(require: Callable[[AgentSpec], None], spec: AgentSpec) -> UserError | None:
    try:
        require(spec)
    except UserError as error:
        return error
    return None


def _meanwhile(serves: bool) -> str:
    return "its last good version serves" if serves else "work for it waits"


def _named(name: str | None, room: RoomReading) -> AgentFile | None:
    return room.default() if name is None else room.named(name)
