"""Agents: what each is made of, its tools with their effects, its versions and how they differ, and what is broken."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated

from fastapi import Query, Request
from fastapi.responses import Response

from chordage.orchestrator import views
from chordage.orchestrator.api.agents import AgentName
from chordage.orchestrator.api.problems import words_for
from chordage.orchestrator.api.services import Services, services_of
from chordage.orchestrator.console.pages import context_of, page_router, render
from chordage.orchestrator.console.usage import usage_of
from chordage.orchestrator.core.agent import AgentSpec, ToolSpec
from chordage.orchestrator.core.callers import Caller, KeyScope
from chordage.orchestrator.core.errors import Forbidden, NotFound, UnknownAgent, UserError
from chordage.orchestrator.core.prices import UsageKey
from chordage.orchestrator.views.agents import AgentVersionView
from chordage.orchestrator.views.usage import UsageLine

DAYS_SHOWN = 7  # of what each has used

router = page_router()


@dataclass(frozen=True, kw_only=True, slots=True)
class AgentSight:
    """`tools` None: they could not be read, and `fault` says why."""

    spec: AgentSpec
    tools: Mapping[str, ToolSpec] | None
    digest: str | None
    versions: tuple[AgentVersionView, ...] | None = None  # None: not shown to this caller
    used: UsageLine | None = None
    fault: str = ""


def _agents(services: Services, caller: Caller, used: Mapping[str, UsageLine]) -> list[AgentSight]:
    listed: list[AgentSight] = []
    store = services.rt.store
    fleet = views.fleet_versions(store) if caller.sees_room else None
    for name in services.rt.agents.names():
        if caller.agents is not None and name not in caller.agents:
            continue
        try:
            spec = services.rt.agents.get(name)
        except UserError:
            continue  # it is listed among the faults
        sight = AgentSight(
            spec=spec, digest=views.digest_of(services.rt.agents, spec), tools=None, used=used.get(name),
            versions=None if fleet is None else views.agent_versions(store, name, fleet),
        )  # fmt: skip
        try:
            listed.append(replace(sight, tools=services.rt.tools.specs(spec)))
        except UserError as error:
            listed.append(replace(sight, fault=words_for(caller, error)))
    return listed


@router.get("/agents")
def list_agents(request: Request) -> Response:
    context = context_of(request, KeyScope.READ)
    services = services_of(request)
    faults = services.faults() if context.caller.sees_all else []
    used = {line.key: line for line in usage_of(request, context, UsageKey.AGENT, DAYS_SHOWN).lines}
    outcomes = views.tool_outcomes(services.rt.store) if context.caller.sees_all else None
    return render(
        request, context, "agents.html", agents=_agents(services, context.caller, used), faults=faults,
        outcomes=outcomes, window=views.WINDOW,
    )  # fmt: skip


@router.get("/agents/{name}/diff")
def show_diff(
    request: Request,
    name: AgentName,
    old: Annotated[str, Query(max_length=64)] = "",
    new: Annotated[str, Query(max_length=64)] = "",
) -> Response:
    """Of the two newest versions, where none are chosen."""
    context = context_of(request, KeyScope.READ, KeyScope.PAYLOADS)
    caller = context.caller
    if not caller.sees_room:
        raise Forbidden(f"{caller.label} does not see the files of the room", scope=KeyScope.OPERATE.value)
    if caller.agents is not None and name not in caller.agents:
        raise UnknownAgent(f"there is no agent {name!r} for this key")
    store = services_of(request).rt.store
    versions = [one for one in views.agent_versions(store, name, views.fleet_versions(store)) if one.first_seen_at]
    if not versions:
        raise NotFound(f"no version of agent {name!r} is on record: no process has used it yet")
    digests = [one.digest for one in versions]
    new = new or digests[0]
    older = digests[digests.index(new) + 1 :] if new in digests else []
    diff = views.agent_diff(store, name, old or next(iter(older), new), new)
    return render(request, context, "agent_diff.html", name=name, diff=diff, versions=versions)
