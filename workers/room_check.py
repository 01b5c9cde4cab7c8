"""All that is wrong with a room and its settings, found at once. Connects to nothing, and starts nothing.

`chordage check` prints it; a worker and `chordage dev` print what they skip because it is broken. A worker itself stops
an agent at its first fault (`bootstrap.check_agent`); here the other tools, servers and models are checked as well.
"""

from __future__ import annotations

import logging
import re
import tomllib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from chordage.config import settings as config
from chordage.config.settings import FILE, SettingProblem, Settings
from chordage.orchestrator.core import bounds, subagents
from chordage.orchestrator.core.agent import AgentSpec
from chordage.orchestrator.core.errors import ConfigError, RoomError, UserError, alternatives
from chordage.orchestrator.core.text import counted
from chordage.orchestrator.gateways.channels import room_channels
from chordage.orchestrator.gateways.mcp.servers import McpServer
from chordage.orchestrator.gateways.mcp.tools import Probe
from chordage.orchestrator.gateways.room.agents import Room
from chordage.orchestrator.gateways.room.files import Source, syntax_fault
from chordage.orchestrator.gateways.room.reading import agent_files, known_agents, no_such_agent
from chordage.orchestrator.gateways.schedules import front_matter
from chordage.orchestrator.gateways.schedules.room_work import RoomWork
from chordage.orchestrator.gateways.webhooks import bindings as webhooks
from chordage.orchestrator.plugins.permission import PermissionRule, parsed_rule
from chordage.orchestrator.store.database import Store
from chordage.orchestrator.strategies.loading import names as strategies
from chordage.workers import team_app
from chordage.workers.bootstrap import check_server_time, check_time, cipher_of, models_of, redis_from, room_from

NO_AGENT = """{folder} holds no agent: there is no agent.toml. Any of these helps:
  chordage init         puts an example room here
  chordage dev --demo   runs that example without leaving files of it here
or write an agent.toml like this:
  name = "helper"
  model = "openai:gpt-4o-mini"    # and set OPENAI_API_KEY
  instructions = "You are helpful and brief.\""""

PLACE = re.compile(r"(?P<file>[^:\n]+):(?P<line>\d+): ")  # the beginning of a fault of a file

Checker = Callable[[Path, Mapping[str, str]], Sequence[RoomError]]
# The further files of a room, by the name of their section.
FURTHER: list[tuple[str, Checker]] = [
    ("hooks", webhooks.faults),
    ("channels", room_channels.faults),
    ("pulse", lambda room, _environ: pulse_faults(room)),
]


@dataclass(frozen=True, kw_only=True, slots=True)
class CheckSection:
    kind: str
    summary: str  # in a few words, for when all is well
    faults: Sequence[str] = ()
    remarks: Sequence[str] = ()  # wrong as well, but the room runs without it


@dataclass(frozen=True, kw_only=True, slots=True)
class CheckFault:
    kind: str
    text: str

    @property
    def file(self) -> str | None:
        return place["file"] if (place := PLACE.match(self.text)) else None

    @property
    def line(self) -> int | None:
        return int(place["line"]) if (place := PLACE.match(self.text)) else None


@dataclass(frozen=True, kw_only=True, slots=True)
class CheckReport:
    room: Path
    sections: tuple[CheckSection, ...]

    @property
    def faults(self) -> list[CheckFault]:
        """Each once: two agents may name the same tool, script or model."""
        texts = _once((section.kind, section.faults) for section in self.sections)
        return [CheckFault(kind=kind, text=text) for text, kind in texts.items()]

    @property
    def remarks(self) -> list[CheckFault]:
        """What the room runs without."""
        faults = {fault.text for fault in self.faults}
        texts = _once((section.kind, section.remarks) for section in self.sections)
        return [CheckFault(kind=kind, text=text) for text, kind in texts.items() if text not in faults]


def _once(kinds: Iterator[tuple[str, Sequence[str]]]) -> dict[str, str]:
    """Texts in their order, with the kind that has each first."""
    first: dict[str, str] = {}
    for kind, texts in kinds:
        for text in texts:
            first.setdefault(text, kind)
    return first


def check(*, live: bool = False) -> CheckReport:
    """`live`: MCP servers are connected to."""
    environ = config.environment()
    section, settings = _settings()
    room = settings.room_path
    section = replace(section, faults=[*section.faults, *_team_faults(settings)])
    agents = agent_sections(room, environ, time_limit=settings.tool_time_limit, live=live)
    further = (_further(kind, checker, room, environ) for kind, checker in FURTHER)
    return CheckReport(room=room, sections=(section, *agents, *further))


def faults_of_room(settings: Settings) -> list[str]:
    """What is skipped because it is broken, while everything else runs. Raises ConfigError where the room has no agent
    file, and where something that a setting names cannot be used: no agent could do without it.
    """
    environ, room = config.environment(), settings.room_path
    if not agent_files(room):
        raise ConfigError(NO_AGENT.format(folder=room))
    team_app.make_current(settings)
    room_from(settings).check_around()
    sections = agent_sections(room, environ, time_limit=settings.tool_time_limit)
    sections += [_further(kind, checker, room, environ) for kind, checker in FURTHER]
    return [*config.unknown_variables(), *_once((section.kind, section.faults) for section in sections)]


@contextmanager
def _collect(faults: list[str], place: str = "") -> Iterator[None]:
    """Add what is raised to `faults`. `place`: where it is, for errors that do not say so."""
    try:
        yield
    except UserError as error:
        faults.append(_placed(error, place) if place else str(error))


def _further(kind: str, checker: Checker, room: Path, environ: Mapping[str, str]) -> CheckSection:
    try:
        faults: Sequence[UserError] = checker(room, environ)
    except UserError as error:
        faults = [error]
    lines = [line for fault in faults for line in str(fault).splitlines()]
    return CheckSection(kind=kind, summary="no faults", faults=lines)


def _settings() -> tuple[CheckSection, Settings]:
    """With the settings for the other checks: where they are broken, the defaults, and the folder that is named."""
    file = Path(FILE)
    text = file.read_text(encoding="utf-8", errors="replace") if file.exists() else ""
    source = Source(name=FILE, text=text)
    try:
        bounds.loads_toml(text)
        faults = [_placed_problem(problem, source) for problem in config.problems()]
    except tomllib.TOMLDecodeError as error:
        faults = [syntax_fault(source, error)]
    if faults:
        settings = Settings.model_construct(room=Path(config.environment().get("CHORDAGE_ROOM") or "."))
    else:
        settings = config.load()
        faults = _address_faults(settings)
    faults += config.unknown_variables()
    variables = [name for name in config.environment() if name.startswith("CHORDAGE_")]
    read = FILE if file.exists() else f"no {FILE}"
    summary = f"{read}, {counted(len(variables), 'variable')} in the environment"
    return CheckSection(kind="settings", summary=summary, faults=faults), settings


def _placed_problem(problem: SettingProblem, source: Source) -> str:
    variable = config.variable_of(problem.key)
    if problem.key and variable in config.environment():
        return f"variable {variable}: {problem.text}"
    if not problem.key or not source.text:
        return problem.text
    return f"{FILE}:{source.line_of(problem.key)}: {problem.text}"


def _address_faults(settings: Settings) -> list[str]:
    """What is wrong with them, without connecting."""
    faults: list[str] = []
    try:
        with _collect(faults):
            _ = Store(settings.database, pool_size=1).engine
        with _collect(faults):
            if settings.redis is not None:
                redis_from(settings).close()
    except ValueError as error:
        faults.append(f"setting redis_url ({config.variable_of(('redis_url',))} or {FILE}): {error}")
    return faults


def _team_faults(settings: Settings) -> list[str]:
    """Of the team's own code that settings name, imported before any tool is, as a worker does it."""
    faults: list[str] = []
    with _collect(faults):
        team_app.make_current(settings)
    with _collect(faults):
        if settings.around_tools:
            room_from(settings).check_around()
    with _collect(faults):
        cipher_of(settings)
    return faults


def agent_sections(
    path: Path, environ: Mapping[str, str], *, time_limit: int, live: bool = False
) -> list[CheckSection]:
    """Agents, tools, MCP servers and models. `live`: MCP servers are connected to."""
    try:
        room = Room(path, environ=environ, strategies=strategies())
    except RoomError as error:
        return [CheckSection(kind="agents", summary="", faults=[str(error)])]
    try:
        return _AgentChecks(room, time_limit, live=live).sections()
    finally:
        room.close()


class _AgentChecks:
    def __init__(self, room: Room, time_limit: int, *, live: bool) -> None:
        self._room = room
        self._live = live
        self._time_limit = time_limit
        self._tools = self._servers = 0
        self._models: set[str] = set()
        self._of_agents: list[str] = []
        self._of_tools: list[str] = []
        self._of_servers: list[str] = []
        self._of_models: list[str] = []
        self._remarks: list[str] = []

    def sections(self) -> list[CheckSection]:
        room = self._room
        agents = [room.get(name) for name in room.names()]
        for agent in agents:
            self._check(agent)
        for draft in room.drafts:
            self._check_tools(draft)
        faults = [line for fault in room.faults for line in str(fault).splitlines()]
        of_tools = [fault for fault in self._of_tools if fault not in faults]  # a fault of a file is named once
        if not agents and not faults:
            faults = [f"{room.path}: there is no agent: write an agent.toml, or run `chordage init` for an example"]
        names = f": {', '.join(agent.name for agent in agents)}" if agents else ""
        summary, servers = f"{counted(len(agents), 'agent')}{names}", counted(self._servers, "server")
        models = ", ".join(sorted(self._models)) or "none"
        return [
            CheckSection(kind="agents", summary=summary, faults=[*faults, *self._of_agents]),
            CheckSection(kind="tools", summary=counted(self._tools, "tool"), faults=of_tools),
            CheckSection(kind="MCP", summary=servers, faults=self._of_servers, remarks=self._remarks),
            CheckSection(kind="models", summary=models, faults=self._of_models),
        ]

    def _check(self, agent: AgentSpec) -> None:
        before = len(self._of_tools)
        tools = self._check_tools(agent)
        has_all_tools = len(self._of_tools) == before
        servers = self._room.servers_of(agent)
        for server in servers:
            self._check_server(server)
        probes = self._probe(servers) if self._live else {}
        self._check_models(agent)
        if has_all_tools:
            offered = {offer.name: offer.schema for probe in probes.values() for offer in probe.offers}
            known = {**tools, **{name: spec.schema for name, spec in subagents.specs(agent).items()}, **offered}
            unlisted = [server.name for server in servers if server.name not in probes or probes[server.name].error]
            for rule, fault in permission_faults(agent, known, unlisted):
                place = self._room.place_of(agent, "permission", rule).rpartition(": ")[0]
                self._of_agents.append(f"{place}: {fault}")
        place = self._room.place_of(agent, "agents")
        self._of_agents += [f"{place}: {fault}" for fault in sub_agent_faults(agent, self._room.names(), tools)]
        with _collect(self._of_agents, self._room.place_of(agent, "output")):
            self._room.output_of(agent)

    def _check_tools(self, agent: AgentSpec) -> dict[str, dict[str, Any]]:
        """The schemas of the arguments of those that can be used. An import that fails hides no other."""
        schemas: dict[str, dict[str, Any]] = {}
        before = len(self._of_tools)
        for path in agent.tools:
            with _collect(self._of_tools):
                for tool in self._room.tools_at(path, agent):
                    schemas[tool.name] = tool.spec.schema
                    with _collect(self._of_tools, self._room.place_of(agent, "tools", path)):
                        check_time(agent.name, tool.spec, self._time_limit)
        self._tools += len(schemas)
        if len(self._of_tools) == before:
            self._check_names(agent)
        return schemas

    def _check_names(self, agent: AgentSpec) -> None:
        """Two tools of one name are noticed when all are put together."""
        try:
            self._room.check_tools(agent)
        except RoomError as error:
            self._of_tools += str(error).splitlines()  # of a whole file, where the file is broken
        except UserError:  # of its servers, which are checked one by one
            return

    def _check_server(self, server: McpServer) -> None:
        self._servers += 1
        faults = self._of_servers if server.required else self._remarks
        with _collect(faults):
            self._room.servers.check(server)
        with _collect(faults):
            check_server_time(server, self._time_limit)

    def _probe(self, servers: Sequence[McpServer]) -> dict[str, Probe]:
        """Connect to each, as `chordage mcp` does."""
        logging.getLogger("chordage.orchestrator.gateways.mcp").setLevel(logging.ERROR)  # the report names it all
        probes = {probe.server.name: probe for probe in self._room.servers.probe(servers)}
        for probe in probes.values():
            faults = self._of_servers if probe.server.required else self._remarks
            if probe.error and probe.error not in faults:
                faults.append(probe.error)
        return probes

    def _check_models(self, agent: AgentSpec) -> None:
        try:
            catalog = models_of(self._room)
        except RoomError as error:
            self._of_models += [str(error)] if str(error) not in self._of_models else []
            return
        for key, model in _models(agent):
            self._models.add(model)
            place = self._room.place_of(agent, key, model if key in {"fallbacks", "selectable_models"} else "")
            with _collect(self._of_models, place):
                catalog.check(AgentSpec(name=agent.name, model=model))


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


def sub_agent_faults(agent: AgentSpec, known: Sequence[str], tools: Collection[str]) -> Iterator[str]:
    """Agents that it names and that do not exist, and its own tools whose names they hide."""
    for sub in agent.agents:
        if sub.agent not in known:
            yield f"there is no agent {sub.agent!r}; there are: {', '.join(known)}"
    for name in subagents.specs(agent):
        if name in tools:
            yield f"its tool {name} would never be called; rename it with @tool(name=...)"


def pulse_faults(room: Path) -> list[RoomError]:
    """What is wrong with tasks, chores and the will, in the order of their paths. Nothing is written."""
    work = RoomWork(room).read()
    faults, known = dict(work.faults), known_agents(room) if work.items else []
    for item in work.items.values():
        if (why := no_such_agent(item.agent, known)) is not None and not item.closed:
            line = _line_of(room / item.path, "agent")
            faults.setdefault(item.path, front_matter.fault(item.path, line, f"agent: {why}"))
    return [error for _path, error in sorted(faults.items())]


def _line_of(file: Path, key: str) -> int:
    """1 where the file has changed since it was read."""
    try:
        return front_matter.parts_of(file.read_text(encoding="utf-8"), file.name).line(key)
    except (OSError, UnicodeDecodeError, RoomError):
        return 1


def permission_faults(
    agent: AgentSpec, tools: Mapping[str, Mapping[str, Any]], unlisted: Collection[str]
) -> Iterator[tuple[str, str]]:
    """Permission rules that match no tool of their agent: a misspelt `deny` allows what it was to keep.

    `tools`: the schema of the arguments of each. `unlisted`: servers whose tools are not known.
    """
    for options in (use.options for use in agent.plugins if use.use == "permission"):
        for name in ("allow", "ask", "deny"):
            rules = options.get(name)
            for text in rules if isinstance(rules, list | tuple) else ():
                if (why := _rule_fault(parsed_rule(text), tools, unlisted)) is not None:
                    yield text, f"permission.{name}: rule {text!r}: {why}"


def _rule_fault(rule: PermissionRule, tools: Mapping[str, Mapping[str, Any]], unlisted: Collection[str]) -> str | None:
    matches = [name for name in tools if rule.names(name)]
    if not matches:
        is_pattern = any(sign in rule.tool for sign in "*?[")
        if any(is_pattern or fnmatchcase(rule.tool, f"{server}_*") for server in unlisted):
            return None
        return f"the agent has no such tool; {alternatives(rule.tool, tools)}"
    for name, _glob in rule.conditions:
        known = sorted({argument for tool in matches for argument in tools[tool].get("properties", {})})
        if name not in known and not any(tools[tool].get("additionalProperties", False) for tool in matches):
            return f"{', '.join(matches)} takes no argument {name!r}; {alternatives(name, known)}"
    return None
