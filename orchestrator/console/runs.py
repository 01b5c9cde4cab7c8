"""The list of runs with its search box, and the first message of a newcomer."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

import anyio.to_thread
from fastapi import Query, Request
from fastapi.responses import RedirectResponse, Response

from chordage.orchestrator import views
from chordage.orchestrator.api.bulk import STATES_OF
from chordage.orchestrator.api.services import Services, services_of
from chordage.orchestrator.console.first_turn import first_turn
from chordage.orchestrator.console.forms import SentForm, sent_form
from chordage.orchestrator.console.live import LivePage, LiveParts, digest, streaming
from chordage.orchestrator.console.live_text import RunWatch
from chordage.orchestrator.console.pages import HEADERS, PageContext, back, context_of, page_router, part, render
from chordage.orchestrator.console.run_page import from_person
from chordage.orchestrator.console.search import RunSearch, read_search
from chordage.orchestrator.console.suggestions import may_share
from chordage.orchestrator.console.why import whys_of_turns
from chordage.orchestrator.core.callers import KeyScope
from chordage.orchestrator.core.errors import Conflict, InvalidMessage, NotFound, QueueFull
from chordage.orchestrator.views import IdKind, TurnPage
from chordage.orchestrator.views.turn_search import OPEN_STATES

PAGE = 50
NO_TEXTS = "your key may not search in texts: it has no scope payloads"

router = page_router()
Words = Annotated[str, Query(max_length=1000)]
Before = Annotated[str | None, Query(max_length=200)]


@router.get("/runs")
def list_runs(request: Request, q: Words = "", before: Before = None) -> Response:
    context = context_of(request, KeyScope.READ)
    services = services_of(request)
    search = _search(context, q)
    if search.ids:
        target = _named(services, context, search)
        if target is not None:
            return RedirectResponse(target, status_code=303, headers=dict(HEADERS))
        fault = f"no turn, run or thread begins with {search.ids[0]!r}, or several do: give more of it"
        search = replace(search, faults=(*search.faults, fault))
    page = _page(services, context, search, before)
    lines = _lines(services, context, page)
    live = None
    if before is None and not search.faults and (search.wanted.is_open or not q):
        live = context.link("/runs/live", q=q, v=digest(lines))
    return render(
        request, context, "runs.html", search=search, page=page, lines=list(lines.values()), live=live,
        saved=views.saved_views(services.rt.store, context.caller.id), may_share=may_share(context),
        first=None if lines or q else first_turn(services, context),
        fits=_bulk_action(search), fault="", status=422 if search.faults else 200,
    )  # fmt: skip


def _bulk_action(search: RunSearch) -> str | None:
    """What may be done to all that fit."""
    if search.faults or search.ids:
        return None
    states = search.wanted.states
    return next((action.value for action, (may, _) in STATES_OF.items() if states and states <= may), None)


def _search(context: PageContext, text: str) -> RunSearch:
    search = read_search(text.strip(), context.now)
    if search.needs_texts and not context.may("payloads"):
        return replace(search, faults=(*search.faults, NO_TEXTS))
    return search


def _page(services: Services, context: PageContext, search: RunSearch, before: str | None) -> TurnPage:
    if search.faults:
        return TurnPage(turns=(), next=None, looked_to=None)
    found = views.search_turns(services.rt.store, search.wanted, limit=PAGE, before=before, space=context.caller.reach)
    return context.shown(found)


def _lines(services: Services, context: PageContext, page: TurnPage) -> dict[str, str]:
    open_turns = [turn.turn_id for turn in page.turns if turn.state in OPEN_STATES]
    reasons = whys_of_turns(services, context, open_turns)
    return {
        f"turn-{turn.turn_id}": part(context, "runs", "line", turn, reasons.get(turn.turn_id)) for turn in page.turns
    }


def _named(services: Services, context: PageContext, search: RunSearch) -> str | None:
    """The page of the only turn, run or thread whose id begins so."""
    try:
        kind, full_id = views.identify(services.rt.store, search.ids[0], space=context.caller.reach)
    except (NotFound, Conflict):
        return None
    return context.link("/thread", id=full_id) if kind is IdKind.THREAD else context.link(f"/runs/{full_id}")


@router.get("/runs/live")
async def runs_live(request: Request, q: Words = "") -> Response:
    context = await anyio.to_thread.run_sync(context_of, request, KeyScope.READ)
    services = services_of(request)

    def parts(_watch: RunWatch) -> LiveParts:
        now = replace(context, now=services.rt.now())
        return LiveParts(parts=_lines(services, now, _page(services, now, _search(now, q), None)))

    page = LivePage(render=parts, key=("runs", q, context.caller), target="runs", newest_first=True)
    return streaming(request, context.caller, page)


@router.post("/runs")
async def send_message(request: Request) -> Response:
    form = await sent_form(request)
    return await anyio.to_thread.run_sync(_send, request, form)


def _send(request: Request, form: SentForm) -> Response:
    """A message on a new thread, from the empty page; or on a thread, from its page."""
    context = context_of(request, KeyScope.SUBMIT)
    services, thread_id = services_of(request), form.first("thread") or None
    try:
        message = from_person(
            services, context, thread_id=thread_id, text=form.first("text"), agent=form.first("agent") or None
        )
        admitted = services.accept(message)
    except (InvalidMessage, Conflict, QueueFull) as error:
        search = _search(context, "")
        page = _page(services, context, search, None)
        return render(
            request, context, "runs.html", status=422, search=search, page=page,
            lines=list(_lines(services, context, page).values()), live=None, saved=[], may_share=False, first=None,
            fits=None, fault=str(error),
        )  # fmt: skip
    if thread_id is not None:
        return back(context, "/thread", id=thread_id)
    return back(context, f"/runs/{admitted.turn_id}")
