"""Why things wait, over HTTP: in the same words as `chordage why`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from fastapi import Path, Query, Request

from chordage.orchestrator.api.callers import needs
from chordage.orchestrator.api.guards import json_router
from chordage.orchestrator.api.problems import documented
from chordage.orchestrator.api.services import services_of
from chordage.orchestrator.core.callers import Caller, KeyScope
from chordage.orchestrator.core.why.reasons import WaitReason
from chordage.orchestrator.runtime import Runtime
from chordage.orchestrator.views import WaitSources, WhyView, waiting, why

SomeId = Annotated[
    str,
    Path(
        min_length=1,
        max_length=400,
        pattern=r"^[^\x00]+$",
        description="A turn, a run, a thread, a call or a suspension (its first letters are enough), the number of a "
        "delivery, `pulse:NAME` or `channel:NAME`.",
    ),
]

router = json_router("why")


@dataclass(frozen=True, kw_only=True, slots=True)
class WaitList:
    reasons: list[WaitReason]


@router.get(
    "/why", summary="Read everything that waits, oldest first", responses=documented(401, 403, 421, 422, 429, 500, 503)
)
def read_waiting(
    request: Request,
    caller: Annotated[Caller, needs(KeyScope.READ)],
    limit: Annotated[int, Query(ge=1, le=500)] = 50,
) -> WaitList:
    """Turns and deliveries, each with its reason; for operators also scheduled work that is due and channels that are
    not read.
    """
    return WaitList(reasons=waiting(_sources(services_of(request).rt, caller), limit=limit))


@router.get(
    "/why/{some_id:path}",
    summary="Read why something waits",
    responses=documented(401, 403, 404, 409, 421, 422, 429, 500, 503),
)
def read_why(request: Request, some_id: SomeId, caller: Annotated[Caller, needs(KeyScope.READ)]) -> WhyView:
    """Its one reason: the cause, who holds it, since when, until when, and what changes it. `because` is the reason of
    what it waits for. `reason` is null for what does not wait.
    """
    return why(_sources(services_of(request).rt, caller), some_id)


def _sources(rt: Runtime, caller: Caller) -> WaitSources:
    return WaitSources(
        store=rt.store, now=rt.now(), budgets=rt.budgets, leases=rt.leases, locks=rt.locks, space=caller.reach
    )
