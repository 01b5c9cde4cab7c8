"""Threads: the list, a conversation as the person sees it, and as the model saw it at a step."""

from __future__ import annotations

from typing import Annotated

from fastapi import Path, Query, Request
from fastapi.responses import Response

from chordage.orchestrator import views
from chordage.orchestrator.api import pages
from chordage.orchestrator.api.pages import After
from chordage.orchestrator.api.services import Services, services_of
from chordage.orchestrator.console.pages import PageContext, context_of, page_router, render
from chordage.orchestrator.console.why import why_of_turn
from chordage.orchestrator.core import message
from chordage.orchestrator.core.callers import KeyScope
from chordage.orchestrator.core.errors import NotFound
from chordage.orchestrator.core.status import TurnStatus
from chordage.orchestrator.core.why.reasons import WaitReason
from chordage.orchestrator.views.threads import ThreadView
from chordage.orchestrator.views.turns import TurnLine

PAGE = 50
REMARKS = 60

router = page_router()


@router.get("/threads")
def list_threads(request: Request, before: After = None) -> Response:
    context = context_of(request, KeyScope.READ)
    place = pages.place_of(before, pages.moment, pages.text)
    page = views.thread_page(
        services_of(request).rt.store, limit=PAGE, space=context.caller.reach,
        before=(place[0], place[1]) if place else None,
    )  # fmt: skip
    following = page.next and pages.cursor_of(*page.next)
    return render(request, context, "threads.html", threads=page.data, next=following)


@router.get("/thread")
def show_thread(
    request: Request,
    thread_id: Annotated[str, Query(max_length=400, alias="id")],
    before: Annotated[int | None, Query(ge=1)] = None,
) -> Response:
    context = context_of(request, KeyScope.READ)
    services = services_of(request)
    store = services.rt.store
    if not message.holds(context.caller.reach, thread_id):
        raise NotFound(f"there is no thread {thread_id!r}")
    thread = views.thread_details(store, thread_id)
    remarks = views.history(store, thread_id, limit=REMARKS, before=before)
    queued = views.turns(store, thread_id=thread_id, status=TurnStatus.QUEUED, limit=20)
    return render(
        request, context, "thread.html", thread=thread, remarks=context.shown(remarks), queued=context.shown(queued),
        why=_why(services, context, thread, queued), older=remarks[0].id if len(remarks) == REMARKS else None,
    )  # fmt: skip


def _why(services: Services, context: PageContext, thread: ThreadView, queued: list[TurnLine]) -> WaitReason | None:
    """Of its open run, or of the first turn in its line."""
    if thread.open_run is not None:
        return why_of_turn(services, context, views.run(services.rt.store, thread.open_run).turn_id)
    return why_of_turn(services, context, queued[-1].turn_id) if queued else None


@router.get("/runs/{run_id}/prompt/{step}")
def show_prompt(
    request: Request, run_id: Annotated[str, Path(max_length=200)], step: Annotated[int, Path(ge=0, lt=2**31)]
) -> Response:
    """The thread as the model saw it."""
    context = context_of(request, KeyScope.READ, KeyScope.PAYLOADS)
    services = services_of(request)
    views.turn_of_run(services.rt.store, run_id, space=context.caller.reach)
    run = views.run(services.rt.store, run_id)
    prompt = views.prompt_at(services.rt.store, run_id, step)
    steps = [one.number for one in run.steps if one.kind.value == "inference"]
    return render(request, context, "prompt.html", prompt=prompt, steps=steps)
