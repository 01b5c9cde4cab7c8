"""Bulk jobs: what a search or a selection would change, with a count first, and how far the job has come."""

from __future__ import annotations

import secrets
from dataclasses import replace
from typing import Annotated

import anyio.to_thread
from fastapi import Query, Request
from fastapi.responses import Response

from chordage.orchestrator import stages, views
from chordage.orchestrator.api.bulk import bulk_request
from chordage.orchestrator.api.services import Services, services_of
from chordage.orchestrator.console.forms import SentForm, sent_form
from chordage.orchestrator.console.live import LivePage, LiveParts, digest, streaming
from chordage.orchestrator.console.live_text import RunWatch
from chordage.orchestrator.console.pages import PageContext, back, context_of, page_router, part, render
from chordage.orchestrator.console.search import read_search
from chordage.orchestrator.core.bulk import BulkAction, BulkRequest
from chordage.orchestrator.core.callers import KeyScope
from chordage.orchestrator.core.errors import InvalidMessage

LISTED = 50
REFUSED = 50  # that a page shows

router = page_router()
Words = Annotated[str, Query(max_length=1000)]
Place = Annotated[str | None, Query(max_length=200)]
Ids = Annotated[list[str] | None, Query(max_length=200)]


@router.get("/bulk")
def list_jobs(request: Request, before: Place = None) -> Response:
    context = context_of(request, KeyScope.READ)
    jobs = views.bulk_jobs(services_of(request).rt.store, limit=LISTED, before=before, space=context.caller.reach)
    older = jobs[-1].id if len(jobs) == LISTED else None
    return render(request, context, "bulk_jobs.html", jobs=context.shown(jobs), older=older)


@router.get("/bulk/new")
def confirm(request: Request, action: str = "", q: Words = "", id: Ids = None) -> Response:  # noqa: A002 - the name in the address
    """What would be done, and to how many. Without a selection: to all that fit the search."""
    context = context_of(request, KeyScope.OPERATE, KeyScope.READ)
    wanted = _request(context, action, q, id)
    count = stages.count_bulk(services_of(request).rt, wanted)
    return render(
        request, context, "bulk_new.html", action=wanted.action, query=q.strip(), ids=id or [], count=count,
        key=secrets.token_urlsafe(16),
    )  # fmt: skip


def _request(
    context: PageContext, action: str, query: str, ids: list[str] | None, *, reason: str = "", key: str | None = None
) -> BulkRequest:
    if action not in set(BulkAction):
        raise InvalidMessage("choose to cancel, to retry or to send again", field="action")
    search, chosen = read_search(query.strip(), context.now), tuple(ids) if ids else None
    if chosen is None and (search.faults or search.ids):
        raise InvalidMessage("; ".join(search.faults) or "an id is no search: select its line instead", field="q")
    is_search = chosen is None and BulkAction(action) is not BulkAction.REDELIVER
    return bulk_request(
        BulkAction(action), context.caller, wanted=search.wanted if is_search else None, ids=chosen,
        query=search.text if is_search else None, reason=reason.strip() or None, key=key,
    )  # fmt: skip


@router.post("/bulk")
async def start(request: Request) -> Response:
    form = await sent_form(request)
    return await anyio.to_thread.run_sync(_start, request, form)


def _start(request: Request, form: SentForm) -> Response:
    """The key was made with the form: sent twice, it is one job."""
    context = context_of(request, KeyScope.OPERATE, KeyScope.READ)
    services = services_of(request)
    wanted = _request(
        context, form.first("action"), form.first("q"), form.every("id"), reason=form.first("reason"),
        key=form.first("key")[:100] or None,
    )  # fmt: skip
    job, intents = stages.start_bulk(services.rt, wanted)
    services.send(intents)
    return back(context, f"/bulk/{job.id}")


@router.get("/bulk/{job_id}")
def show_job(request: Request, job_id: str, done: str = "") -> Response:
    context = context_of(request, KeyScope.READ)
    return _page(request, context, job_id, notice="Stopped." if done == "stopped" else "")


def _page(
    request: Request, context: PageContext, job_id: str, *, notice: str = "", fault: str = "", status: int = 200
) -> Response:
    job, parts = _parts(services_of(request), context, job_id)
    *listed, actions = parts.values()
    return render(
        request, context, "bulk_job.html", job=job, parts=listed, actions=actions, notice=notice, fault=fault,
        live=context.link(f"/bulk/{job_id}/live", v=digest(parts)) if job.is_open else None, status=status,
    )  # fmt: skip


def _parts(services: Services, context: PageContext, job_id: str) -> tuple[views.BulkView, dict[str, str]]:
    store, reach = services.rt.store, context.caller.reach
    job = context.shown(views.bulk_job(store, job_id, space=reach))
    refusals = views.bulk_refusals(store, job_id, limit=REFUSED, space=reach)
    return job, {
        "bulk-progress": part(context, "bulk", "progress", job),
        "bulk-refusals": part(context, "bulk", "refusals", job, refusals),
        "bulk-actions": part(context, "bulk", "actions", job),
    }


@router.get("/bulk/{job_id}/live")
async def job_live(request: Request, job_id: str) -> Response:
    context = await anyio.to_thread.run_sync(context_of, request, KeyScope.READ)
    services = services_of(request)

    def parts(_watch: RunWatch) -> LiveParts:
        job, shown = _parts(services, replace(context, now=services.rt.now()), job_id)
        return LiveParts(parts=shown, is_over=not job.is_open)

    await anyio.to_thread.run_sync(_parts, services, context, job_id)  # refused before the first byte
    page = LivePage(render=parts, key=("bulk", job_id, context.caller, context.csrf), target="bulk")
    return streaming(request, context.caller, page)


@router.post("/bulk/{job_id}/stop")
async def stop(request: Request, job_id: str) -> Response:
    await sent_form(request)
    return await anyio.to_thread.run_sync(_stop, request, job_id)


def _stop(request: Request, job_id: str) -> Response:
    context = context_of(request, KeyScope.OPERATE, KeyScope.READ)
    services, reach = services_of(request), context.caller.reach
    if not views.bulk_job(services.rt.store, job_id, space=reach).is_open:
        return _page(request, context, job_id, fault="It is over: nothing was stopped.", status=409)
    stages.stop_bulk(services.rt, job_id, context.caller.actor, space=reach)
    return back(context, f"/bulk/{job_id}", done="stopped")
