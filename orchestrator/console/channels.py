"""Channels and deliveries: how far each channel was read, what was refused, and replies on their way out."""

from __future__ import annotations

import anyio.to_thread
from fastapi import APIRouter, Request
from fastapi.responses import Response

from chordage.orchestrator import stages, views
from chordage.orchestrator.api.services import services_of
from chordage.orchestrator.console.fleet import fleet_context
from chordage.orchestrator.console.forms import SentForm, sent_form
from chordage.orchestrator.console.pages import back, render
from chordage.orchestrator.core.callers import KeyScope
from chordage.orchestrator.core.deliveries import DeliveryStatus
from chordage.orchestrator.core.errors import InvalidMessage

LISTED = 50

router = APIRouter(include_in_schema=False)


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
    return await anyio.to_thread.run_sync(_retry, request, form)


def _retry(request: Request, form: SentForm) -> Response:
    """One dead letter. Its key stays the same, so that its receiver recognises a repetition; several are a bulk job."""
    context = fleet_context(request, KeyScope.OPERATE)
    rt = services_of(request).rt
    number = form.first("delivery")
    if not (number.isascii() and number.isdecimal() and len(number) < 19):
        raise InvalidMessage(f"{number!r:.40} is not the number of a delivery", field="delivery")
    again = stages.retry_dead(rt, int(number), by=context.caller.actor)
    return back(context, "/channels", done=len(again))
