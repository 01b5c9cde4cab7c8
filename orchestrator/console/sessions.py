"""Sessions: where people are logged in, and how they are ended."""

from __future__ import annotations

import anyio.to_thread
from fastapi import Request
from fastapi.responses import Response

from chordage.orchestrator import stages, views
from chordage.orchestrator.api import pages
from chordage.orchestrator.api.services import services_of
from chordage.orchestrator.api.sessions import session_id_of
from chordage.orchestrator.api.web_sessions import forget
from chordage.orchestrator.console.forms import SentForm, sent_form
from chordage.orchestrator.console.pages import PageContext, back, context_of, page_router, render
from chordage.orchestrator.core.errors import NotFound

LISTED = 50

router = page_router()


@router.get("/sessions")
def list_sessions(request: Request, after: str = "", done: str = "") -> Response:
    """An operator sees all of them, another caller those of its key."""
    context = context_of(request)
    place = pages.place_of(after or None, pages.moment, pages.text)
    before = None if place is None else (place[0], place[1])
    page = views.session_page(
        services_of(request).rt.store, context.now, limit=LISTED, key_id=_key(context), before=before
    )  # fmt: skip
    return render(
        request, context, "sessions.html", sessions=page.data, more=page.next and pages.cursor_of(*page.next),
        own=session_id_of(request), notice=f"{done} ended." if done.isdecimal() else "",
    )  # fmt: skip


@router.post("/sessions/end")
async def end_sessions(request: Request) -> Response:
    form = await sent_form(request)
    return await anyio.to_thread.run_sync(_end, request, form)


def _end(request: Request, form: SentForm) -> Response:
    """One, or all that the page lists."""
    context = context_of(request)
    services = services_of(request)
    store, by, session_id = services.rt.store, context.caller.actor, form.first("session")
    if session_id:
        try:
            stages.end_session(store, session_id, by, context.now, key_id=_key(context))
            ended = 1
        except NotFound:  # it was ended meanwhile
            ended = 0
    else:
        ended = stages.end_sessions(store, by, context.now, key_id=_key(context))
    forget(services)
    return back(context, "/sessions", done=ended)


def _key(context: PageContext) -> str | None:
    return None if context.caller.sees_all else context.caller.id
