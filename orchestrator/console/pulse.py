"""The pulse: tasks, chores and the will, when each is next, and running one of them now."""

from __future__ import annotations

import anyio.to_thread
from fastapi import APIRouter, Request
from fastapi.responses import Response

from chordage.orchestrator import views
from chordage.orchestrator.api.services import services_of
from chordage.orchestrator.console.fleet import fleet_context
from chordage.orchestrator.console.forms import SentForm, sent_form
from chordage.orchestrator.console.pages import PageContext, back, render
from chordage.orchestrator.core.callers import KeyScope
from chordage.orchestrator.core.errors import UserError
from chordage.orchestrator.gateways.schedules.room_work import WorkSnapshot
from chordage.orchestrator.loops.pulse import pause, resume, run_now

router = APIRouter(include_in_schema=False)


@router.get("/pulse")
def list_work(request: Request) -> Response:
    return _page(request, fleet_context(request))


def _page(request: Request, context: PageContext, fault: str = "", status: int = 200) -> Response:
    rt = services_of(request).rt
    snapshot = rt.work.read() if rt.work is not None else WorkSnapshot(items={}, faults={})
    work = views.standing_work(rt.store, snapshot, [str(error) for error in snapshot.faults.values()])
    return render(request, context, "pulse.html", work=context.shown(work), fault=fault, status=status)


@router.post("/pulse/pause")
async def pause_item(request: Request) -> Response:
    form = await sent_form(request)
    return await anyio.to_thread.run_sync(_pause, request, form)


def _pause(request: Request, form: SentForm) -> Response:
    context = fleet_context(request, KeyScope.OPERATE)
    services = services_of(request)
    try:
        if form.first("to") == "resume":
            services.send(resume(services.rt, form.first("item"), context.caller.actor))
        else:
            pause(services.rt, form.first("item"), context.caller.actor)
    except UserError as error:
        return _page(request, context, fault=str(error), status=409)
    return back(context, "/pulse")


@router.post("/pulse/run")
async def run_item(request: Request) -> Response:
    form = await sent_form(request)
    return await anyio.to_thread.run_sync(_run, request, form)


def _run(request: Request, form: SentForm) -> Response:
    """Its schedule does not change."""
    context = fleet_context(request, KeyScope.OPERATE)
    services = services_of(request)
    try:
        admitted, intents = run_now(services.rt, form.first("item"), by=context.caller.actor)
    except UserError as error:
        return _page(request, context, fault=str(error), status=409)
    services.send(intents)
    return back(context, f"/runs/{admitted.turn_id}")
