"""The pages of the whole fleet, which are not of one tenant: groups, workers, channels, deliveries and the pulse."""

from __future__ import annotations

import anyio.to_thread
from fastapi import Request
from fastapi.responses import Response

from chordage.orchestrator import stages, views
from chordage.orchestrator.api.services import services_of
from chordage.orchestrator.console.forms import SentForm, sent_form
from chordage.orchestrator.console.overview import SILENT, group_views, process_views
from chordage.orchestrator.console.pages import PageContext, back, context_of, page_router, render
from chordage.orchestrator.core.callers import KeyScope
from chordage.orchestrator.core.deliveries import DeliveryStatus
from chordage.orchestrator.core.errors import Forbidden, InvalidMessage, UserError
from chordage.orchestrator.gateways.schedules.room_work import WorkSnapshot
from chordage.orchestrator.loops.pulse import pause, resume, run_now

LISTED = 50

router = page_router()


def fleet_context(request: Request, *scopes: KeyScope) -> PageContext:
    """Raises Forbidden for a caller that sees one tenant."""
    context = context_of(request, KeyScope.READ, *scopes)
    if not context.caller.sees_all:
        raise Forbidden("this page is about the whole fleet, and your key sees one tenant")
    return context


@router.get("/groups")
def list_groups(request: Request) -> Response:
    context = fleet_context(request)
    return render(request, context, "groups.html", groups=group_views(services_of(request)))


@router.get("/workers")
def list_workers(request: Request) -> Response:
    context = fleet_context(request)
    processes = process_views(services_of(request))
    return render(request, context, "workers.html", processes=processes, silent=context.now - SILENT)


@router.get("/channels")
def list_channels(request: Request, status: str = "", done: str = "") -> Response:
    context = fleet_context(request)
    rt = services_of(request).rt
    wanted = DeliveryStatus(status) if status in set(DeliveryStatus) else None
    channels = views.channels(rt.store, rt.channels, rt.agents, rt.now())
    deliveries = views.deliveries(rt.store, status=wanted, limit=LISTED)
    return render(
        request, context, "channels.html", channels=context.shown(channels), deliveries=context.shown(deliveries),
        hooks=services_of(request).hooks(), bus=context.shown(views.bus(rt.store, rt.now())), status_wanted=status,
        notice=f"{done} due again." if done.isdecimal() else "",
    )  # fmt: skip


@router.post("/channels/retry")
async def retry(request: Request) -> Response:
    form = await sent_form(request)
    return await anyio.to_thread.run_sync(_retry_delivery, request, form)


def _retry_delivery(request: Request, form: SentForm) -> Response:
    """One dead letter. Its key stays the same, so that its receiver recognises a repetition; several are a bulk job."""
    context = fleet_context(request, KeyScope.OPERATE)
    rt = services_of(request).rt
    number = form.first("delivery")
    if not (number.isascii() and number.isdecimal() and len(number) < 19):
        raise InvalidMessage(f"{number!r:.40} is not the number of a delivery", field="delivery")
    again = stages.retry_dead(rt, int(number), by=context.caller.actor)
    return back(context, "/channels", done=len(again))


@router.get("/pulse")
def list_work(request: Request) -> Response:
    return _pulse_page(request, fleet_context(request))


def _pulse_page(request: Request, context: PageContext, fault: str = "", status: int = 200) -> Response:
    rt = services_of(request).rt
    snapshot = rt.work.read() if rt.work is not None else WorkSnapshot(items={}, faults={})
    work = views.standing_work(rt.store, snapshot, [str(error) for error in snapshot.faults.values()])
    return render(request, context, "pulse.html", work=context.shown(work), fault=fault, status=status)


@router.post("/pulse/pause")
async def pause_item(request: Request) -> Response:
    form = await sent_form(request)
    return await anyio.to_thread.run_sync(_pause_item, request, form)


def _pause_item(request: Request, form: SentForm) -> Response:
    context = fleet_context(request, KeyScope.OPERATE)
    services = services_of(request)
    try:
        if form.first("to") == "resume":
            services.send(resume(services.rt, form.first("item"), context.caller.actor))
        else:
            pause(services.rt, form.first("item"), context.caller.actor)
    except UserError as error:
        return _pulse_page(request, context, fault=str(error), status=409)
    return back(context, "/pulse")


@router.post("/pulse/run")
async def run_item(request: Request) -> Response:
    form = await sent_form(request)
    return await anyio.to_thread.run_sync(_run_item, request, form)


def _run_item(request: Request, form: SentForm) -> Response:
    """Its schedule does not change."""
    context = fleet_context(request, KeyScope.OPERATE)
    services = services_of(request)
    try:
        admitted, intents = run_now(services.rt, form.first("item"), by=context.caller.actor)
    except UserError as error:
        return _pulse_page(request, context, fault=str(error), status=409)
    services.send(intents)
    return back(context, f"/runs/{admitted.turn_id}")
