"""The room: a folder with agent.toml, agents/*.toml and the Python files with their tools.

Definitions are read again when a file changes; one broken file is a fault of its own and stops no other agent. The
room's Python is imported, and its MCP servers are connected to, when an agent's tools are first asked for.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Collection, Mapping
from pathlib import Path

from chordage.orchestrator.core import sub_agents
from chordage.orchestrator.core.agent import AgentSpec, ToolSpec
from chordage.orchestrator.core.errors import RoomError, UnknownAgent, UserError
from chordage.orchestrator.gateways import room_lines, room_output, room_tools
from chordage.orchestrator.gateways.mcp import McpServer, Servers
from chordage.orchestrator.gateways.ports import OutputForm
from chordage.orchestrator.gateways.room_file import AgentFile, Providers
from chordage.orchestrator.gateways.room_reading import RoomReading, read_room
from chordage.orchestrator.gateways.tools.around import NamedAround, nothing_around
from chordage.orchestrator.gateways.tools.declare import Tool
from chordage.orchestrator.gateways.tools.toolbox import ToolBox

LOOK_AGAIN = 1.0  # seconds between two looks at the files
BEFORE_A_REFUSAL = 0.05  # ... also for those who ask for what is not there, however many they are


class Room:
    """Implements `ports.Agents`; `toolbox` implements `ports.Tools` for its agents. Safe to share between threads.

    `environ` is what keys that end in `_env` are looked up in; `around_tools` names what is to be around each tool.
    """

    def __init__(
        self,
        path: Path,
        *,
        environ: Mapping[str, str] | None = None,
        strategies: Collection[str] = ("direct", "react", "plan_execute"),
        look_again: float = LOOK_AGAIN,
        around_tools: str | None = None,
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
        self._now = read_room(self.path, strategies)
        self._looked_at = time.monotonic()
        room_tools.make_importable(self.path)

    def get(self, name: str | None) -> AgentSpec:
        """Before it is refused the files are looked at once more: it may have been written or mended just now."""
        file = _named(name, self._present())
        if file is not None and file.spec is not None:
            return file.spec
        room = self._present(at_once=True)
        file = _named(name, room)
        if file is None:
            raise UnknownAgent(self._unknown(name, room))
        if file.spec is None:
            raise file.fault or RoomError(f"{file.source.name}: cannot be used")
        return file.spec

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
            for name in sub_agents.specs(agent) if name in tools
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
        if file is not None and file.fault is not None:
            raise file.fault
        return file.servers if file is not None else ()

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

    def _present(self, *, at_once: bool = False) -> RoomReading:
        """The definitions as the files have them, give or take a second."""
        with self._lock:
            pause = min(BEFORE_A_REFUSAL, self._look_again) if at_once else self._look_again
            if time.monotonic() - self._looked_at >= pause:
                self._looked_at = time.monotonic()
                if self._now.is_outdated(self.path):
                    self._now = read_room(self.path, self._strategies)
                    self.servers.keep({server for file in self._now.files for server in file.servers})
            return self._now

    def _unknown(self, name: str | None, room: RoomReading) -> str:
        known = ", ".join(file.name for file in room.files if file.spec) or "none"
        broken = "".join(f"\n{file.fault}" for file in room.files if file.fault)
        if name is None and not room.files:
            return f"{self.path}: there is no agent; write an agent.toml with at least `model = ...`"
        if name is None:
            return f"{self.path}: no agent is the default; name one of {known}, or write an agent.toml"
        return f"{self.path}: there is no agent {name!r}; there are: {known}{broken}"


def _named(name: str | None, room: RoomReading) -> AgentFile | None:
    return room.default() if name is None else room.named(name)
