"""Agents over HTTP: which a caller may address, what the file of one says, and how two versions of it differ."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any

from fastapi import Path, Query, Request, Response

from chordage.orchestrator import views
from chordage.orchestrator.api import etags, problems
from chordage.orchestrator.api.callers import needs, require
from chordage.orchestrator.api.etags import IfNoneMatch
from chordage.orchestrator.api.guards import json_router
from chordage.orchestrator.api.pages import page_model
from chordage.orchestrator.api.problems import documented
from chordage.orchestrator.api.services import Services, services_of
from chordage.orchestrator.core.callers import Caller, KeyScope
from chordage.orchestrator.core.errors import Forbidden, UnknownAgent
from chordage.orchestrator.views.agents import AgentDiff, AgentLine, AgentView

Digest = Annotated[str, Query(min_length=6, max_length=64, pattern="^[0-9a-f]+$", examples=["1f0c93ab"])]
AgentName = Annotated[str, Path(min_length=1, max_length=200, pattern=r"^[^\x00/]+$")]

router = json_router("agents")


@router.get(
    "/agents",
    operation_id="list_agents",
    summary="List the agents of the room",
    response_model=page_model(AgentLine, "AgentPage"),
    responses=documented(*problems.OF_READS),
)
def list_agents(request: Request, caller: Annotated[Caller, needs(KeyScope.READ)]) -> Any:
    """Those that the caller may address, all on one page."""
    services = services_of(request)
    fleet = views.fleet_versions(services.rt.store) if caller.sees_room else None
    lines = views.agents(services.rt.agents, _broken(services, caller), fleet)
    allowed = [line for line in lines if caller.agents is None or line.name in caller.agents]
    return {"data": allowed, "next": None}


@router.get(
    "/agents/{name}",
    operation_id="read_agent",
    summary="Read an agent: models, tools, limits",
    response_model=AgentView,
    responses={**documented(*problems.OF_READS, 404), **etags.NOT_MODIFIED},
)
def read_agent(
    request: Request,
    response: Response,
    name: AgentName,
    caller: Annotated[Caller, needs(KeyScope.READ)],
    if_none_match: IfNoneMatch = None,  # noqa: ARG001 - documented here, read with the tag
) -> Any:
    """Its parameters and instructions are not shown. A broken agent has a `fault`, and its work waits. Its versions are
    shown to keys that may operate the whole fleet.
    """
    _check_agent(caller, name)
    services = services_of(request)
    store = services.rt.store if caller.sees_room else None
    view = views.agent(services.rt.agents, services.rt.tools, name, _broken(services, caller), store=store)
    if view.fault is not None and not caller.sees_room:  # also one that the file does not show
        view = replace(view, fault=problems.broken_agent(name))
    return etags.answer_with(request, response, etags.etag_of(view), view)


@router.get(
    "/agents/{name}/diff",
    operation_id="compare_agent_versions",
    summary="Compare two versions of an agent, line by line",
    response_model=AgentDiff,
    responses=documented(*problems.OF_READS, 404),
)
def compare_agent_versions(
    request: Request, name: AgentName, old: Digest, new: Digest, caller: Annotated[Caller, needs(KeyScope.READ)]
) -> Any:
    """First the instructions, then the rest of the definition. `old` and `new`: digests, or the first characters of
    them. For keys with `payloads` that may operate the whole fleet. Values that may be secrets are not in it.
    """
    require(caller, KeyScope.PAYLOADS, "to read instructions")
    if not caller.sees_room:
        raise Forbidden(f"{caller.label} does not see the files of the room", scope=KeyScope.OPERATE.value)
    _check_agent(caller, name)
    return views.agent_diff(services_of(request).rt.store, name, old, new)


def _check_agent(caller: Caller, name: str) -> None:
    if caller.agents is not None and name not in caller.agents:
        raise UnknownAgent(f"there is no agent {name!r} for this key")


def _broken(services: Services, caller: Caller) -> dict[str, str]:
    """What is wrong with each agent, as this caller may read it."""
    broken = services.broken_agents()
    return {name: fault if caller.sees_room else problems.broken_agent(name) for name, fault in broken.items()}
