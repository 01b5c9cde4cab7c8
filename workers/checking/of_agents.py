"""The agents of a room, their tools, MCP servers and models: every fault of each, where a worker stops at the first."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from chordage.orchestrator.core import subagents
from chordage.orchestrator.core.agent import AgentSpec
from chordage.orchestrator.core.errors import RoomError, UserError
from chordage.orchestrator.gateways.mcp.servers import McpServer
from chordage.orchestrator.gateways.mcp.tools import Probe
from chordage.orchestrator.gateways.models import ModelCatalog
from chordage.orchestrator.gateways.room.agents import Room
from chordage.orchestrator.strategies.loading import names as strategies
from chordage.workers.bootstrap import check_server_time, check_time, models_of
from chordage.workers.checking import of_permissions
from chordage.workers.checking.looked import PLACE, Looked, counted


def look(path: Path, environ: Mapping[str, str], *, time_limit: int, live: bool = False) -> list[Looked]:
    """`live`: MCP servers are connected to."""
    try:
        room = Room(path, environ=environ, strategies=strategies())
    except RoomError as error:
        return [Looked(kind="agents", what="", faults=[str(error)])]
    try:
        return list(_look(room, time_limit, live=live))
    finally:
        room.close()


def _look(room: Room, time_limit: int, *, live: bool) -> Iterator[Looked]:
    agents = [room.get(name) for name in room.names()]
    found = _Found(room, time_limit, live=live)
    for agent in agents:
        found.look_at(agent)
    for draft in room.drafts:
        found.look_at_tools(draft)
    faults = [line for fault in room.faults for line in str(fault).splitlines()]
    found.of_tools = [told for told in found.of_tools if told not in faults]  # a fault of a file is told once
    if not agents and not faults:
        faults = [f"{room.path}: there is no agent: write an agent.toml, or run `chordage init` for an example"]
    named = f": {', '.join(agent.name for agent in agents)}" if agents else ""
    yield Looked(kind="agents", what=f"{counted(len(agents), 'agent')}{named}", faults=[*faults, *found.of_agents])
    yield Looked(kind="tools", what=counted(found.tools, "tool"), faults=found.of_tools)
    yield Looked(kind="MCP", what=counted(found.servers, "server"), faults=found.of_servers, remarks=found.remarks)
    yield Looked(kind="models", what=", ".join(sorted(found.models)) or "none", faults=found.of_models)


class _Found:
    def __init__(self, room: Room, time_limit: int, *, live: bool) -> None:
        self._room = room
        self._live = live
        self._time_limit = time_limit
        self.tools = self.servers = 0
        self.models: set[str] = set()
        self.of_agents: list[str] = []
        self.of_tools: list[str] = []
        self.of_servers: list[str] = []
        self.of_models: list[str] = []
        self.remarks: list[str] = []

    def look_at(self, agent: AgentSpec) -> None:
        before = len(self.of_tools)
        tools = self.look_at_tools(agent)
        all_known = len(self.of_tools) == before
        servers = self._room.servers_of(agent)
        for server in servers:
            self._look_at_server(server)
        asked = self._asked(servers) if self._live else {}
        self._look_at_models(agent)
        if all_known:
            offered = {offer.name: offer.schema for probe in asked.values() for offer in probe.offers}
            known = {**tools, **{name: spec.schema for name, spec in subagents.specs(agent).items()}, **offered}
            unlisted = [one.name for one in servers if one.name not in asked or asked[one.name].error]
            for rule, told in of_permissions.faults(agent, known, unlisted):
                self.of_agents.append(f"{self._room.place_of(agent, 'permission', rule).rpartition(': ')[0]}: {told}")
        for error in self._room.faults_of_sub_agents(agent, tools):
            self.of_agents.append(_placed(error, self._room.place_of(agent, "agents")))
        try:
            self._room.output_of(agent)
        except UserError as error:
            self.of_agents.append(_placed(error, self._room.place_of(agent, "output")))

    def look_at_tools(self, agent: AgentSpec) -> dict[str, dict[str, Any]]:
        """Those that can be had, with the schemas of their arguments. One import that fails hides no other."""
        names: dict[str, dict[str, Any]] = {}
        before = len(self.of_tools)
        for path in agent.tools:
            try:
                found = self._room.tools_at(path, agent)
            except UserError as error:
                self.of_tools += [str(error)]
                continue
            for tool in found:
                names[tool.name] = tool.spec.schema
                try:
                    check_time(agent.name, tool.spec, self._time_limit)
                except UserError as error:
                    self.of_tools.append(_placed(error, self._room.place_of(agent, "tools", path)))
        self.tools += len(names)
        if len(self.of_tools) == before:
            self._look_for_doubles(agent)
        return names

    def _look_for_doubles(self, agent: AgentSpec) -> None:
        """Two tools of one name: seen when they are put together."""
        try:
            self._room.check_tools(agent)
        except RoomError as error:
            self.of_tools += str(error).splitlines()  # of a whole file, where the file is broken
        except UserError:  # of its servers, which are looked at one by one
            return

    def _look_at_server(self, server: McpServer) -> None:
        self.servers += 1
        told = self.of_servers if server.required else self.remarks
        for look in (self._room.servers.check, lambda one: check_server_time(one, self._time_limit)):
            try:
                look(server)
            except UserError as error:
                told.append(str(error))

    def _asked(self, servers: Sequence[McpServer]) -> dict[str, Probe]:
        """Each is connected to, as `chordage mcp` does."""
        logging.getLogger("chordage.orchestrator.gateways.mcp").setLevel(logging.ERROR)  # it is all told here
        found = {probe.server.name: probe for probe in self._room.servers.probe(servers)}
        for probe in found.values():
            told = self.of_servers if probe.server.required else self.remarks
            if probe.error and probe.error not in told:
                told.append(probe.error)
        return found

    def _look_at_models(self, agent: AgentSpec) -> None:
        try:
            catalog = models_of(self._room)
        except RoomError as error:
            self.of_models += [str(error)] if str(error) not in self.of_models else []
            return
        for key, model in _models(agent):
            self.models.add(model)
            self._look_at_model(catalog, agent, key, model)

    def _look_at_model(self, catalog: ModelCatalog, agent: AgentSpec, key: str, model: str) -> None:
        alone = AgentSpec(name=agent.name, model=model)
        try:
            catalog.check(alone)
        except UserError as error:
            place = self._room.place_of(agent, key, model if key in {"fallbacks", "selectable_models"} else "")
            self.of_models.append(_placed(error, place))


def _models(agent: AgentSpec) -> Iterator[tuple[str, str]]:
    """Each with the key of the agent's file that names it."""
    yield "model", agent.model
    yield from (("fallbacks", model) for model in agent.fallbacks)
    if agent.compaction.model:
        yield "compaction", agent.compaction.model
    if agent.plan.model:
        yield "plan", agent.plan.model
    yield from (("selectable_models", model) for model in agent.selectable_models)


def _placed(error: UserError, place: str) -> str:
    return str(error) if PLACE.match(str(error)) else f"{place}: {error}"
