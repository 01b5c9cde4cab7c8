"""Agents of the room, as their files say: models, tools, limits. No secrets, no parameters, no instructions.

And the versions of each: which the processes of the fleet use, how many open runs began with which, and how two differ.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

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
from chordage.orchestrator.core.agent_versions import LENGTH, SHOWN, DiffLine, difference
from chordage.orchestrator.core.errors import NotFound, UnknownAgent, UserError, alternatives
from chordage.orchestrator.gateways.ports import Agents, Tools
from chordage.orchestrator.store import agent_versions as version_rows
from chordage.orchestrator.store import tool_outcomes as rows
from chordage.orchestrator.store.agent_versions import OpenRuns, VersionRow
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
class AgentVersionView:
    """A version of an agent. `is_old`: processes are at work, and none of them uses it any more."""

    digest: str
    first_seen_at: datetime | None  # when a process first used it; null: its definition is not on record
    first_seen_by: str | None  # the version of Chordage of that process
    is_old: bool
    processes: tuple[str, ...]  # that use it now
    open_runs: int  # that began with it
    oldest_run: str | None  # of these
    oldest_run_at: datetime | None


@dataclass(frozen=True, kw_only=True, slots=True)
class AgentView:
    name: str
    is_default: bool
    fault: str | None  # of its file. Without a last good version the rest is null or empty, and its work waits
    digest: (
        str | None
    )  # of its version, as this process reads the files; null: something that it names cannot be loaded
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
    versions: tuple[AgentVersionView, ...] | None = None  # the newest first; null: not shown to this caller
    open_runs: int | None = None
    open_runs_on_old: int | None = None  # with versions that no process uses any more
    open_runs_on_unknown: int | None = None  # started before versions were recorded


@dataclass(frozen=True, kw_only=True, slots=True)
class AgentLine:
    """An agent in a list."""

    name: str
    is_default: bool
    fault: str | None
    digest: (
        str | None
    )  # of its version, as this process reads the files; null: something that it names cannot be loaded
    model: str | None = None
    strategy: str | None = None
    tenant: str | None = None
    in_use: tuple[str, ...] | None = None  # the digests that processes of the fleet use; null: not shown to this caller
    changed_at: datetime | None = None  # when its newest version was first used
    open_runs: int | None = None
    open_runs_on_old: int | None = None  # with versions that no process uses any more
    oldest_on_old: str | None = None  # the oldest run of these


@dataclass(frozen=True, kw_only=True, slots=True)
class AgentDiff:
    """As `diff -u` prints it: first the instructions, then the rest of the definition."""

    agent: str
    old: str
    new: str
    lines: tuple[DiffLine, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class FleetVersions:
    """What the database says of the versions of all agents, read at one moment."""

    newest: Mapping[str, VersionRow]
    in_use: Mapping[str, Mapping[str, Sequence[str]]]  # by agent and digest: the processes
    open_runs: Sequence[OpenRuns]

    def line(self, name: str) -> dict[str, Any]:
        """The fields of an AgentLine."""
        newest = self.newest.get(name)
        old = [runs for runs in self.runs_of(name) if self.is_old(name, runs.digest)]
        first = min(old, key=lambda runs: runs.oldest_at, default=None)
        return {
            "in_use": tuple(sorted(self.in_use.get(name, ()))),
            "changed_at": newest.first_seen_at if newest else None,
            "open_runs": sum(runs.number for runs in self.runs_of(name)),
            "open_runs_on_old": sum(runs.number for runs in old),
            "oldest_on_old": first.oldest if first else None,
        }

    def runs_of(self, name: str) -> list[OpenRuns]:
        return [runs for runs in self.open_runs if runs.agent == name]

    def is_old(self, name: str, digest: str | None) -> bool:
        """While no process is at work, the newest version is the one that the next will most likely use."""
        current = set(self.in_use.get(name, ())) or {row.digest for row in [self.newest.get(name)] if row}
        return digest is not None and bool(current) and digest not in current


def fleet_versions(store: Store) -> FleetVersions:
    with store.read() as tx:
        newest, processes, open_runs = version_rows.newest(tx), version_rows.in_use(tx), version_rows.open_runs(tx)
    in_use: dict[str, dict[str, list[str]]] = {}
    for process, digests in sorted(processes.items()):
        for name, digest in digests.items():
            in_use.setdefault(name, {}).setdefault(digest, []).append(process)
    return FleetVersions(newest=newest, in_use=in_use, open_runs=open_runs)


def agent_versions(store: Store, name: str, fleet: FleetVersions) -> tuple[AgentVersionView, ...]:
    """Those on record, the newest first, then what is in use or began an open run and is not on record."""
    with store.read() as tx:
        recorded = {row.digest: row for row in version_rows.of_agent(tx, name)}
    runs = {each.digest: each for each in fleet.runs_of(name) if each.digest is not None}
    used = fleet.in_use.get(name, {})
    digests = [*recorded, *sorted({*runs, *used} - recorded.keys())]
    return tuple(_version(fleet, name, digest, recorded.get(digest), runs.get(digest)) for digest in digests)


def _version(
    fleet: FleetVersions, name: str, digest: str, row: VersionRow | None, runs: OpenRuns | None
) -> AgentVersionView:
    return AgentVersionView(
        digest=digest,
        first_seen_at=row.first_seen_at if row else None,
        first_seen_by=row.first_seen_by if row else None,
        is_old=fleet.is_old(name, digest),
        processes=tuple(fleet.in_use.get(name, {}).get(digest, ())),
        open_runs=runs.number if runs else 0,
        oldest_run=runs.oldest if runs else None,
        oldest_run_at=runs.oldest_at if runs else None,
    )


def agent_diff(store: Store, name: str, old: str, new: str) -> AgentDiff:
    """Of two versions on record, each by its digest or the first characters of it. Raises NotFound."""
    with store.read() as tx:
        digests = [row.digest for row in version_rows.of_agent(tx, name)]
        pair = [version_rows.load(tx, name, _full(name, given, digests)) for given in (old, new)]
    first, second = pair
    if first is None or second is None:
        raise NotFound(f"agent {name!r} has no version {(new if second is None else old)!r} on record")
    return AgentDiff(agent=name, old=first.digest, new=second.digest, lines=difference(first, second))


def _full(name: str, given: str, digests: Sequence[str]) -> str:
    """One that is not among the newest has to be given whole."""
    if len(given) == LENGTH:
        return given
    fitting = [digest for digest in digests if digest.startswith(given)]
    if len(fitting) == 1:
        return fitting[0]
    if fitting:
        raise NotFound(f"{given!r} fits {len(fitting)} versions of agent {name!r}: give more characters of the digest")
    known = ", ".join(digest[:SHOWN] for digest in digests) or "none"
    raise NotFound(f"agent {name!r} has no version {given!r} on record; there are: {known}")


def agents(known: Agents, broken: Mapping[str, str], fleet: FleetVersions | None = None) -> list[AgentLine]:
    """`broken`: what is wrong with an agent, by its name; its last good version may be in use all the same. `fleet`:
    None where the caller may not see it.
    """
    default = _default(known)
    names = sorted({*known.names(), *broken})
    return [_line(known, name, broken.get(name), fleet, is_default=name == default) for name in names]


def agent(
    known: Agents, tools: Tools, name: str, broken: Mapping[str, str], *, store: Store | None = None
) -> AgentView:
    """`store`: of the versions; None where the caller may not see them."""
    view = _agent(known, tools, name, broken)
    if store is None:
        return view
    fleet = fleet_versions(store)
    runs = fleet.runs_of(name)
    return replace(
        view, versions=agent_versions(store, name, fleet), open_runs=sum(each.number for each in runs),
        open_runs_on_old=sum(each.number for each in runs if fleet.is_old(name, each.digest)),
        open_runs_on_unknown=sum(each.number for each in runs if each.digest is None),
    )  # fmt: skip


def _agent(known: Agents, tools: Tools, name: str, broken: Mapping[str, str]) -> AgentView:
    if name not in known.names() and name not in broken:
        raise UnknownAgent(f"there is no agent {name!r}; {alternatives(name, known.names())}")
    is_default = name == _default(known)
    try:
        spec = known.get(name)
        listed = tuple(_tool(spec, tool) for _, tool in sorted(tools.specs(spec).items()))
    except UserError as error:
        return AgentView(name=name, is_default=is_default, fault=broken.get(name, str(error)), digest=None)
    return AgentView(
        name=name, is_default=is_default, fault=broken.get(name), digest=digest_of(known, spec), model=spec.model,
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


def _line(known: Agents, name: str, fault: str | None, fleet: FleetVersions | None, *, is_default: bool) -> AgentLine:
    of_fleet: dict[str, Any] = {} if fleet is None else fleet.line(name)
    try:
        spec = known.get(name)
    except UserError as error:
        return AgentLine(name=name, is_default=is_default, fault=fault or str(error), digest=None, **of_fleet)
    return AgentLine(
        name=name, is_default=is_default, fault=fault, digest=digest_of(known, spec), model=spec.model,
        strategy=spec.strategy, tenant=spec.tenant, **of_fleet,
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


def digest_of(known: Agents, spec: AgentSpec) -> str | None:
    """None where its tools, or the model of its output, cannot be loaded in this process."""
    try:
        return known.version(spec).digest
    except UserError:
        return None
