"""Workers: the processes that carry out work, when each was last seen, and what it holds."""

from __future__ import annotations

from fastapi import APIRouter, Request
from fastapi.responses import Response

from chordage.orchestrator.api.services import services_of
from chordage.orchestrator.console.fleet import fleet_context
from chordage.orchestrator.console.overview import SILENT, process_views
from chordage.orchestrator.console.pages import render

router = APIRouter(include_in_schema=False)


@router.get("/workers")
def list_workers(request: Request) -> Response:
    context = fleet_context(request)
    processes = process_views(services_of(request))
    return render(request, context, "workers.html", processes=processes, silent=context.now - SILENT)
