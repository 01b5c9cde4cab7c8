"""The first page: what needs a person, what runs and waits in each group, and which processes carry out work."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import timedelta

import anyio.to_thread
from fastapi import Request
from fastapi.responses import Response

from chordage.orchestrator import views
from chordage.orchestrator.api.services import Services, services_of
from chordage.orchestrator.console.first_turn import first_turn
from chordage.orchestrator.console.live import LivePage, LiveParts, digest, streaming
from chordage.orchestrator.console.live_text import RunWatch
from chordage.orchestrator.console.pages import PageContext, context_of, open_questions, page_router, part, render
from chordage.orchestrator.core.callers import KeyScope
from chordage.orchestrator.views import Throughput, TurnFilter, TurnState
from chordage.orchestrator.views.groups import GroupView
from chordage.orchestrator.views.processes import ProcessView

OLDEST = 3  # questions and failures that are named
LATELY = timedelta(hours=24)
SILENT = timedelta(seconds=30)  # a process that was not seen for longer is probably gone

router = page_router()


@dataclass(frozen=True, kw_only=True, slots=True)
class Sparkline:
    """Bars in a square of 100 by 24; each with its height."""

    bars: tuple[tuple[float, float, float, float], ...]  # x, width, height of all, height of the failed
    total: int
    failed: int
    minutes: int


def sparkline(counts: Throughput) -> Sparkline:
    most = max([*counts.came, 1])
    width = 100 / max(1, len(counts.came))
    bars = tuple(
        (round(place * width, 2), round(width * 0.8, 2), round(24 * came / most, 2), round(24 * failed / most, 2))
        for place, (came, failed) in enumerate(zip(counts.came, counts.failed, strict=True))
        if came
    )
    return Sparkline(bars=bars, total=sum(counts.came), failed=sum(counts.failed), minutes=len(counts.came))


def group_views(services: Services) -> Sequence[GroupView]:
    rt = services.rt
    return views.groups(rt.store, now=rt.now(), budgets=rt.budgets, bounds=rt.queue_bounds)


def process_views(services: Services) -> Sequence[ProcessView]:
    return views.processes(services.rt.store, now=services.rt.now())


@router.get("/")
def overview(request: Request) -> Response:
    context = context_of(request, KeyScope.READ)
    parts = _parts(services_of(request), context)
    live = context.link("/live", v=digest(parts))
    return render(
        request, context, "overview.html", parts=parts, live=live, first=first_turn(services_of(request), context)
    )


@router.get("/live")
async def overview_live(request: Request) -> Response:
    context = await anyio.to_thread.run_sync(context_of, request, KeyScope.READ)
    services = services_of(request)

    def parts(_watch: RunWatch) -> LiveParts:
        return LiveParts(parts=_parts(services, replace(context, now=services.rt.now())))

    return streaming(
        request, context.caller, LivePage(render=parts, key=("overview", context.caller), target="overview")
    )


def _parts(services: Services, context: PageContext) -> dict[str, str]:
    store, reach = services.rt.store, context.caller.reach
    questions = context.shown(services.inbox(limit=OLDEST, space=reach))
    failed = views.search_turns(
        store,
        TurnFilter(states=frozenset({TurnState.FAILED}), since=context.now - LATELY),
        limit=OLDEST + 1,
        space=reach,
    )
    latest = views.search_turns(store, TurnFilter(), limit=8, space=reach) if reach is None else None
    faults = [] if reach is not None else services.faults()
    parts: dict[str, str] = {
        "needs": part(
            context, "overview", "needs", open_questions(services, context.caller), questions, context.shown(failed),
            context.shown(faults) if context.may("payloads") else faults[:0],
        ),
    }  # fmt: skip
    if reach is None:  # as wide screens have them: two columns, in which the turns take two rows
        parts["flow"] = part(
            context, "overview", "flow", sparkline(views.throughput(store, context.now)), context.shown(latest)
        )
        parts["groups"] = part(context, "overview", "groups", group_views(services))
        if context.may("operate") and services.doctor is not None:
            parts["doctor"] = part(context, "overview", "doctor", services.doctor.latest())
        parts["workers"] = part(context, "overview", "workers", process_views(services), context.now - SILENT)
    return parts
