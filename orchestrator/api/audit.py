"""The record over HTTP: who decided, who changed keys and who intervened."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query, Request

from chordage.orchestrator import views
from chordage.orchestrator.api import pages, problems
from chordage.orchestrator.api.bodies import Name
from chordage.orchestrator.api.callers import needs
from chordage.orchestrator.api.guards import JsonRoute
from chordage.orchestrator.api.pages import After, Limit, page_model
from chordage.orchestrator.api.problems import documented
from chordage.orchestrator.api.services import services_of
from chordage.orchestrator.api.turns import Since
from chordage.orchestrator.core.audit import Audited, AuditEntry
from chordage.orchestrator.core.callers import Caller, KeyScope

router = APIRouter(route_class=JsonRoute, tags=["keys"])


@router.get(
    "/audit",
    operation_id="list_audit",
    summary="List who decided, changed keys and intervened, the newest first",
    response_model=page_model(AuditEntry, "AuditEntryPage"),
    responses=documented(*problems.OF_READS),
)
def list_audit(
    *,
    request: Request,
    caller: Annotated[Caller, needs(KeyScope.ADMIN)],
    key: Annotated[Name | None, Query(description="What this key did; or `local`, `cli`, `celery`.")] = None,
    kind: Annotated[Audited | None, Query(description="Only such entries.")] = None,
    since: Since = None,
    after: After = None,
    limit: Limit = 50,
) -> Any:
    """A key of a tenant sees what the keys of that tenant did."""
    place = pages.place_of(after, pages.moment, pages.number)
    page = views.audit_page(
        services_of(request).rt.store, limit=limit, tenant=caller.tenant, actor=key, action=kind, since=since,
        before=None if place is None else (place[0], place[1]),
    )  # fmt: skip
    return {"data": page.data, "next": page.next and pages.cursor_of(*page.next)}
