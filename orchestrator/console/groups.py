"""Groups: budgets, what runs and waits in each, and for which tenants."""

from __future__ import annotations

from fastapi import APIRouter, Request
from fastapi.responses import Response

from chordage.orchestrator.api.services import services_of
from chordage.orchestrator.console.fleet import fleet_context
from chordage.orchestrator.console.overview import group_views
from chordage.orchestrator.console.pages import render

router = APIRouter(include_in_schema=False)


@router.get("/groups")
def list_groups(request: Request) -> Response:
    context = fleet_context(request)
    return render(request, context, "groups.html", groups=group_views(services_of(request)))
