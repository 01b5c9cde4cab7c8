"""Tool calls over HTTP: the whole result of one."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query, Request

from chordage.orchestrator.api import problems
from chordage.orchestrator.api.callers import needs
from chordage.orchestrator.api.guards import JsonRoute
from chordage.orchestrator.api.problems import documented
from chordage.orchestrator.api.services import services_of
from chordage.orchestrator.api.shown import model_of, show
from chordage.orchestrator.api.turns import Id
from chordage.orchestrator.core.callers import Caller, KeyScope
from chordage.orchestrator.views import MAX_PART, ResultView

Offset = Annotated[int, Query(ge=0, lt=2**31 - 1, description="The first character of the part.")]
Limit = Annotated[int, Query(ge=1, le=MAX_PART, description="How many characters at most.")]

router = APIRouter(route_class=JsonRoute, tags=["runs"])


@router.get(
    "/calls/{call_id}/result",
    operation_id="read_result",
    summary="Read the result of a tool call",
    description="The whole result is kept, also where the model saw only its beginning. The next part begins at "
    "`next_offset`.",
    response_model=model_of(ResultView),
    responses=documented(*problems.OF_READS, 404),
)
def read_result(
    request: Request,
    call_id: Id,
    caller: Annotated[Caller, needs(KeyScope.READ)],
    offset: Offset = 0,
    limit: Limit = 65_536,
) -> Any:
    return show(services_of(request).result(call_id, offset=offset, limit=limit, space=caller.reach), caller)
