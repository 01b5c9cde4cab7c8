"""Usage: tokens and cost of the last days, by agent, tenant or day."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated

from fastapi import Query, Request
from fastapi.responses import Response

from chordage.orchestrator import views
from chordage.orchestrator.api.services import services_of
from chordage.orchestrator.console.pages import PageContext, context_of, page_router, render
from chordage.orchestrator.core.callers import KeyScope
from chordage.orchestrator.core.prices import UsageKey
from chordage.orchestrator.views.usage import UsageReport

DAYS = (1, 7, 30, 90)

router = page_router()


def usage_of(request: Request, context: PageContext, by: UsageKey, days: int) -> UsageReport:
    """Of whole days in UTC; the last of them is today."""
    since = context.now.replace(hour=0, minute=0, second=0, microsecond=0) - timedelta(days=days - 1)
    store = services_of(request).rt.store
    return views.usage_report(store, by, context.now, since=since, space=context.caller.reach)


@router.get("/usage")
def show_usage(request: Request, by: Annotated[UsageKey, Query()] = UsageKey.DAY, days: int = 7) -> Response:
    context = context_of(request, KeyScope.READ)
    days = days if days in DAYS else 7
    report = usage_of(request, context, by, days)
    most = max((line.usage.cost_nanos or 0 for line in report.lines), default=0)
    return render(
        request, context, "usage.html", report=report, days=days, spans=DAYS, most=most, total=views.total(report.lines)
    )
