"""Agents: what each is made of, its tools with their effects, and what is broken."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from fastapi import APIRouter, Request
from fastapi.responses import Response

from chordage.orchestrator import views
from chordage.orchestrator.api.problems import words_for
from chordage.orchestrator.api.services import Services, services_of
from chordage.orchestrator.console.pages import context_of, render
from chordage.orchestrator.console.usage import usage_of
from chordage.orchestrator.core.agent import AgentSpec, ToolSpec
from chordage.orchestrator.core.callers import Caller, KeyScope
from chordage.orchestrator.core.errors import UserError
from chordage.orchestrator.core.prices import UsageKey
from chordage.orchestrator.views.usage import UsageLine

DAYS_SHOWN = 7  # of what each has used

router = APIRouter(include_in_schema=False)


@dataclass(frozen=True, kw_only=True, slots=True)
class AgentSight:
    """`tools` None: they could not be read, and `fault` says why."""

    spec: AgentSpec
    tools: Mapping[str, ToolSpec] | None
    digest: str  # of what its file says
    used: UsageLine | None = None
    fault: str = ""


def _agents(services: Services, caller: Caller, used: Mapping[str, UsageLine]) -> list[AgentSight]:
    listed: list[AgentSight] = []
    for name in services.rt.agents.names():
        if caller.agents is not None and name not in caller.agents:
            continue
        try:
            spec = services.rt.agents.get(name)
        except UserError:
            continue  # it is listed among the faults
        digest = views.digest_of(spec)
        try:
            listed.append(
                AgentSight(spec=spec, digest=digest, tools=services.rt.tools.specs(spec), used=used.get(name))
            )
        except UserError as error:
            listed.append(
                AgentSight(spec=spec, digest=digest, tools=None, used=used.get(name), fault=words_for(caller, error))
            )
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
