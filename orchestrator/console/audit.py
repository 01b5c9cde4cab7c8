"""The record: who decided, who changed keys and who intervened."""

from __future__ import annotations

from fastapi import Request
from fastapi.responses import Response

from chordage.orchestrator import views
from chordage.orchestrator.api import pages
from chordage.orchestrator.api.services import services_of
from chordage.orchestrator.console.pages import context_of, page_router, render
from chordage.orchestrator.core.audit import Audited
from chordage.orchestrator.core.callers import KeyScope

LISTED = 50

router = page_router()


@router.get("/audit")
def list_audit(request: Request, key: str = "", kind: str = "", after: str = "") -> Response:
    """A key of a tenant sees what the keys of that tenant did."""
    context = context_of(request, KeyScope.READ, KeyScope.OPERATE)
    place = pages.place_of(after or None, pages.moment, pages.number)
    action = Audited(kind) if kind in set(Audited) else None
    page = views.audit_page(
        services_of(request).rt.store, limit=LISTED, tenant=context.caller.tenant, actor=key or None, action=action,
        before=None if place is None else (place[0], place[1]),
    )  # fmt: skip
    more = page.next and pages.cursor_of(*page.next)
    return render(
        request, context, "audit.html", entries=page.data, more=more, key=key, kind=action, kinds=list(Audited)
    )
