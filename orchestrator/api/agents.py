"""Agents over HTTP: which a caller may address, and what the file of one says."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any, TypeVar

from fastapi import APIRouter, Path, Request, Response

from chordage.orchestrator import views
from chordage.orchestrator.api import etags, problems
from chordage.orchestrator.api.callers import needs
from chordage.orchestrator.api.etags import IfNoneMatch
from chordage.orchestrator.api.guards import JsonRoute
from chordage.orchestrator.api.pages import page_model
from chordage.orchestrator.api.problems import documented
from chordage.orchestrator.api.services import services_of
from chordage.orchestrator.core.callers import Caller, KeyScope
from chordage.orchestrator.core.errors import UnknownAgent
from chordage.orchestrator.views.agents import AgentLine, AgentView

V = TypeVar("V", AgentLine, AgentView)
AgentName = Annotated[str, Path(min_length=1, max_length=200, pattern=r"^[^\x00/]+$")]

router = APIRouter(route_class=JsonRoute, tags=["agents"])


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
    lines = views.agents(services.rt.agents, services.broken_agents())
    allowed = [_worded(line, caller) for line in lines if caller.agents is None or line.name in caller.agents]
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
    """Its parameters and instructions are not shown. A broken agent has a `fault`, and its work waits."""
    if caller.agents is not None and name not in caller.agents:
        raise UnknownAgent(f"there is no agent {name!r} for this key")
    services = services_of(request)
    view = _worded(views.agent(services.rt.agents, services.rt.tools, name, services.broken_agents()), caller)
    return etags.answer_with(request, response, etags.etag_of(view), view)


def _worded(view: V, caller: Caller) -> V:
    """With what is wrong with the agent as this caller may read it."""
    return view if view.fault is None or caller.sees_room else replace(view, fault=problems.broken_agent(view.name))
