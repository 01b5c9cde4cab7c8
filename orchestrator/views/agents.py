"""Agents of the room, as their files say: models, tools, limits. No secrets, no parameters, no instructions."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass

from chordage.orchestrator.core.agent import (
    AgentSpec,
    Effect,
    Limits,
    Placement,
    ToolMode,
    ToolSpec,
    WhenBusy,
    WhileWaiting,
)
from chordage.orchestrator.core.errors import UnknownAgent, UserError, alternatives
from chordage.orchestrator.gateways.ports import Agents, Tools
from chordage.orchestrator.store import tool_outcomes as rows
from chordage.orchestrator.store.database import Store
from chordage.orchestrator.store.tool_outcomes import ToolOutcomes


@dataclass(frozen=True, kw_only=True, slots=True)
class ToolView:
    name: str
    description: str
    effect: Effect
    timeout: float  # seconds, for one attempt
    retries: int
    placement: Placement
    is_remote: bool  # another service carries it out


@dataclass(frozen=True, kw_only=True, slots=True)
class AgentView:
    name: str
    is_default: bool
    fault: str | None  # of its file. Without a last good version the rest is null or empty, and its work waits
    digest: str | None  # changes with its file
    model: str | None = None
    fallbacks: tuple[str, ...] = ()
    selectable_models: tuple[str, ...] = ()
    strategy: str | None = None
    limits: Limits | None = None
    tenant: str | None = None
    when_busy: WhenBusy | None = None
    while_waiting: WhileWaiting | None = None
    tool_mode: ToolMode | None = None
    tools: tuple[ToolView, ...] = ()
    agents: tuple[str, ...] = ()  # sub-agents that it may ask
    plugins: tuple[str, ...] = ()
    has_output_schema: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class AgentLine:
    """An agent in a list. Its tools are not loaded for that."""

    name: str
    is_default: bool
    fault: str | None
    digest: str | None
    model: str | None = None
    strategy: str | None = None
    tenant: str | None = None


def agents(known: Agents, broken: Mapping[str, str]) -> list[AgentLine]:
    """`broken`: what is wrong with an agent, by its name; its last good version may be in use all the same."""
    default = _default(known)
    names = sorted({*known.names(), *broken})
    return [_line(known, name, broken.get(name), is_default=name == default) for name in names]


def agent(known: Agents, tools: Tools, name: str, broken: Mapping[str, str]) -> AgentView:
    if name not in known.names() and name not in broken:
        raise UnknownAgent(f"there is no agent {name!r}; {alternatives(name, known.names())}")
    is_default = name == _default(known)
    try:
        spec = known.get(name)
        listed = tuple(_tool(spec, tool) for _, tool in sorted(tools.specs(spec).items()))
    except UserError as error:
        return AgentView(name=name, is_default=is_default, fault=broken.get(name, str(error)), digest=None)
    return AgentView(
        name=name, is_default=is_default, fault=broken.get(name), digest=digest_of(spec), model=spec.model,
        fallbacks=spec.fallbacks, selectable_models=spec.selectable_models, strategy=spec.strategy, limits=spec.limits,
        tenant=spec.tenant, when_busy=spec.when_busy, while_waiting=spec.while_waiting, tool_mode=spec.tool_mode,
        tools=listed, agents=tuple(sub.agent for sub in spec.agents), plugins=tuple(used.use for used in spec.plugins),
        has_output_schema=spec.output is not None,
    )  # fmt: skip


WINDOW = 2000  # calls


def tool_outcomes(store: Store) -> dict[tuple[str, str], ToolOutcomes]:
    """By agent and tool, among the newest calls of the whole fleet."""
    with store.read() as tx:
        return rows.of_newest(tx, WINDOW)


def _line(known: Agents, name: str, fault: str | None, *, is_default: bool) -> AgentLine:
    try:
        spec = known.get(name)
    except UserError as error:
        return AgentLine(name=name, is_default=is_default, fault=fault or str(error), digest=None)
    return AgentLine(
        name=name, is_default=is_default, fault=fault, digest=digest_of(spec), model=spec.model, strategy=spec.strategy,
        tenant=spec.tenant,
    )  # fmt: skip


def _default(known: Agents) -> str | None:
    try:
        return known.get(None).name
    except UserError:
        return None


def _tool(spec: AgentSpec, tool: ToolSpec) -> ToolView:
    return ToolView(
        name=tool.name, description=tool.description, effect=tool.effect, timeout=tool.timeout, retries=tool.retries,
        placement=spec.placements.get(tool.name, tool.placement), is_remote=tool.is_remote,
    )  # fmt: skip


def digest_of(spec: AgentSpec) -> str:
    """Of everything that the file of an agent says, also of what is not shown."""
    return hashlib.sha256(repr(spec).encode("utf-8", "surrogatepass")).hexdigest()[:32]
