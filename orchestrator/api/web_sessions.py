"""Sessions of the console over HTTP: listed and ended with a key of the scope `admin`.

A key of a tenant sees and ends the sessions that began with keys of its own tenant.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import Path, Query, Request

from chordage.orchestrator import stages, views
from chordage.orchestrator.api import pages, problems
from chordage.orchestrator.api.bodies import Name
from chordage.orchestrator.api.callers import needs
from chordage.orchestrator.api.guards import json_router
from chordage.orchestrator.api.pages import After, Limit, page_model
from chordage.orchestrator.api.problems import documented
from chordage.orchestrator.api.services import Services, services_of
from chordage.orchestrator.core.callers import Caller, KeyScope
from chordage.orchestrator.core.logins import WebSession

Admin = Annotated[Caller, needs(KeyScope.ADMIN)]
SessionId = Annotated[str, Path(max_length=40, pattern=r"^[0-9A-Za-z_-]+$")]

router = json_router("keys")


@dataclass(frozen=True, kw_only=True, slots=True)
class EndedSessions:
    ended: int


@router.get(
    "/sessions",
    operation_id="list_sessions",
    summary="List the open sessions of the console, the newest first",
    response_model=page_model(WebSession, "WebSessionPage"),
    responses=documented(*problems.OF_READS),
)
def read_all(request: Request, caller: Admin, after: After = None, limit: Limit = 50) -> Any:
    """`key_id` is null for those that began with a link."""
    place = pages.place_of(after, pages.moment, pages.text)
    rt = services_of(request).rt
    before = None if place is None else (place[0], place[1])
    page = views.session_page(rt.store, rt.now(), limit=limit, tenant=caller.tenant, before=before)
    return {"data": page.data, "next": page.next and pages.cursor_of(*page.next)}


@router.delete(
    "/sessions/{session_id}",
    operation_id="end_session",
    summary="End a session of the console",
    response_description="Ended: within five seconds every process refuses its cookie.",
    responses=documented(401, 403, 404, 421, 422, 429, 500, 503),
)
def end(request: Request, session_id: SessionId, caller: Admin) -> EndedSessions:
    services = services_of(request)
    rt = services.rt
    stages.end_session(rt.store, session_id, caller.actor, rt.now(), tenant=caller.tenant)
    forget(services)
    return EndedSessions(ended=1)


@router.delete(
    "/sessions",
    operation_id="end_sessions",
    summary="End all sessions of the console, or those of a key",
    response_description="Ended: within five seconds every process refuses their cookies.",
    responses=documented(401, 403, 421, 422, 429, 500, 503),
)
def end_all(
    request: Request,
    caller: Admin,
    key: Annotated[Name | None, Query(description="Only those that began with this key.")] = None,
) -> EndedSessions:
    services = services_of(request)
    rt = services.rt
    ended = stages.end_sessions(rt.store, caller.actor, rt.now(), key_id=key, tenant=caller.tenant)
    forget(services)
    return EndedSessions(ended=ended)


def forget(services: Services) -> None:
    """In this process at once."""
    if services.sessions is not None:
        services.sessions.forget()
