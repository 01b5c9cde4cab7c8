"""Deliveries over HTTP: replies on their way out, and dead letters that are sent again."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Path, Request

from chordage.orchestrator import stages, views
from chordage.orchestrator.api import pages, problems
from chordage.orchestrator.api.callers import needs
from chordage.orchestrator.api.guards import json_router
from chordage.orchestrator.api.pages import After, Limit, page_model
from chordage.orchestrator.api.problems import documented
from chordage.orchestrator.api.services import services_of
from chordage.orchestrator.api.shown import model_of, show, show_all
from chordage.orchestrator.core.callers import Caller, KeyScope
from chordage.orchestrator.core.deliveries import DeliveryStatus
from chordage.orchestrator.views.deliveries import DeliveryView

DeliveryId = Annotated[int, Path(ge=1, lt=2**63)]

router = json_router("deliveries")


@router.get(
    "/deliveries",
    operation_id="list_deliveries",
    summary="List replies to webhooks and channels, the newest first",
    response_model=page_model(model_of(DeliveryView), "DeliveryPage"),
    responses=documented(*problems.OF_READS),
)
def list_deliveries(
    request: Request,
    caller: Annotated[Caller, needs(KeyScope.READ)],
    status: DeliveryStatus | None = None,
    after: After = None,
    limit: Limit = 50,
) -> Any:
    """A page may have fewer than `limit`, or none, and `next` all the same."""
    place = pages.place_of(after, pages.number)
    page = views.delivery_page(
        services_of(request).rt.store, limit=limit, status=status, space=caller.reach,
        before=place[0] if place else None,
    )  # fmt: skip
    return {"data": show_all(page.data, caller), "next": page.next and pages.cursor_of(page.next)}


@router.get(
    "/deliveries/{delivery_id}",
    operation_id="read_delivery",
    summary="Read a delivery",
    response_model=model_of(DeliveryView),
    responses=documented(*problems.OF_READS, 404),
)
def read_delivery(request: Request, delivery_id: DeliveryId, caller: Annotated[Caller, needs(KeyScope.READ)]) -> Any:
    return show(views.delivery(services_of(request).rt.store, delivery_id, space=caller.reach), caller)


@router.post(
    "/deliveries/{delivery_id}/retry",
    status_code=202,
    operation_id="retry_delivery",
    summary="Send a dead letter again",
    response_model=model_of(DeliveryView),
    responses=documented(*problems.OF_WRITES, 404, 409),
)
def retry_delivery(
    request: Request, delivery_id: DeliveryId, caller: Annotated[Caller, needs(KeyScope.OPERATE)]
) -> Any:
    """With the same key, so that its receiver recognises a repetition. 409: it is no dead letter."""
    rt = services_of(request).rt
    views.delivery(rt.store, delivery_id, space=caller.reach)
    stages.retry_dead(rt, delivery_id, by=caller.actor)
    return show(views.delivery(rt.store, delivery_id, space=caller.reach), caller)
