"""Tokens and cost over HTTP, by agent, tenant or day."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Query, Request

from chordage.orchestrator import views
from chordage.orchestrator.api import problems
from chordage.orchestrator.api.callers import needs
from chordage.orchestrator.api.guards import json_router
from chordage.orchestrator.api.problems import documented
from chordage.orchestrator.api.services import services_of
from chordage.orchestrator.api.turns import Since, Until
from chordage.orchestrator.core.callers import Caller, KeyScope
from chordage.orchestrator.core.prices import UsageKey
from chordage.orchestrator.views.usage import MOST_LINES, UsageReport

_EXAMPLE = {
    "by": "agent",
    "since": "2026-11-13T00:00:00Z",
    "until": "2026-11-20T03:30:00Z",
    "lines": [
        {
            "key": "clerk",
            "runs": 412,
            "usage": {
                "input_tokens": 1_204_331, "output_tokens": 88_120, "cached_tokens": 640_000,
                "cache_write_tokens": 0, "cost_nanos": 233_519_650, "unpriced": 0,
            },
        }
    ],
    "is_cut": False,
    "looked_to": None,
}  # fmt: skip

router = json_router("usage")


@router.get(
    "/usage",
    operation_id="read_usage",
    summary="Read what agents, tenants or days have used, and what it cost",
    response_model=UsageReport,
    responses={
        **documented(*problems.OF_READS),
        200: {"content": {"application/json": {"example": _EXAMPLE}}},
    },
)
def read_usage(
    *,
    request: Request,
    caller: Annotated[Caller, needs(KeyScope.READ)],
    by: Annotated[UsageKey, Query(description="What each line is about.")] = UsageKey.AGENT,
    since: Since = None,
    until: Until = None,
    limit: Annotated[int, Query(ge=1, le=MOST_LINES, description="How many lines at most.")] = MOST_LINES,
) -> Any:
    """Of the runs that began from `since` (default a week before `until`) to before `until` (default now), 92 days at
    most; days are those of UTC. Of a span with more than 100,000 runs only the newest count, down to `looked_to`. A
    sub-agent counts as an agent of its own, so the sum of the lines is the sum of all replies. `cost_nanos` are
    billionths of a dollar, of the replies with a price; null: no reply has one. `unpriced` counts the replies without.
    """
    rt = services_of(request).rt
    return views.usage_report(rt.store, by, rt.now(), since=since, until=until, space=caller.reach, limit=limit)
