"""What is wrong with the fleet, over HTTP: the report of `chordage doctor`."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Request

from chordage.orchestrator.api import problems
from chordage.orchestrator.api.callers import needs_whole_fleet
from chordage.orchestrator.api.guards import JsonRoute
from chordage.orchestrator.api.problems import documented
from chordage.orchestrator.api.services import services_of
from chordage.orchestrator.core.callers import Caller, KeyScope
from chordage.orchestrator.core.doctor import DoctorReport
from chordage.orchestrator.core.errors import Unavailable

router = APIRouter(route_class=JsonRoute, tags=["fleet"])


@router.get(
    "/doctor",
    operation_id="read_doctor",
    summary="Examine the fleet: what is wrong, where, since when, and what cures it",
    responses=documented(*problems.OF_READS),
)
def read_doctor(request: Request, _caller: Annotated[Caller, needs_whole_fleet(KeyScope.OPERATE)]) -> DoctorReport:
    """Made now; requests that come meanwhile share it. It takes some seconds at most: a probe that takes longer is a
    finding. The answer is 200 whatever was found; `state` is the worst of it.
    """
    doctor = services_of(request).doctor
    if doctor is None:
        raise Unavailable("this server does not examine its fleet: run `chordage doctor` beside a worker")
    return doctor.examine()
