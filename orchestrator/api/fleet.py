"""The fleet over HTTP: groups with their budgets, processes, metrics, and the report of `chordage doctor`."""

from __future__ import annotations

import hmac
from typing import Annotated, Any

from fastapi import Depends, Request, Response
from fastapi.responses import PlainTextResponse

from chordage.orchestrator import stages, views
from chordage.orchestrator.api import etags, problems
from chordage.orchestrator.api.authentication import sent_key
from chordage.orchestrator.api.bodies import BudgetBody
from chordage.orchestrator.api.callers import known_for_fleet, needs_whole_fleet
from chordage.orchestrator.api.etags import IfMatch, IfNoneMatch
from chordage.orchestrator.api.guards import headers_of, json_router
from chordage.orchestrator.api.pages import page_model
from chordage.orchestrator.api.problems import documented
from chordage.orchestrator.api.services import services_of
from chordage.orchestrator.core.callers import Caller, KeyScope
from chordage.orchestrator.core.doctor import DoctorReport
from chordage.orchestrator.core.errors import Unavailable
from chordage.orchestrator.core.groups import Group
from chordage.orchestrator.core.metrics import FAMILIES
from chordage.orchestrator.core.metrics_text import OPENMETRICS, PROMETHEUS, text_of
from chordage.orchestrator.runtime import Runtime
from chordage.orchestrator.views.groups import GroupView
from chordage.orchestrator.views.processes import ProcessView

router = json_router("fleet")


@router.get(
    "/groups",
    operation_id="list_groups",
    summary="List the groups: their budgets, and what runs and waits in each",
    response_model=page_model(GroupView, "GroupPage"),
    responses=documented(*problems.OF_READS),
)
def list_groups(request: Request, _caller: Annotated[Caller, needs_whole_fleet(KeyScope.READ)]) -> Any:
    """All on one page."""
    return {"data": _groups(services_of(request).rt), "next": None}


@router.get(
    "/groups/{name}",
    operation_id="read_group",
    summary="Read a group",
    response_model=GroupView,
    responses={**documented(*problems.OF_READS, 404), **etags.NOT_MODIFIED},
)
def read_group(
    request: Request,
    response: Response,
    name: Group,
    _caller: Annotated[Caller, needs_whole_fleet(KeyScope.READ)],
    if_none_match: IfNoneMatch = None,  # noqa: ARG001 - documented here, read with the tag
) -> Any:
    """The entity tag begins with that of the budget, which `PATCH` compares."""
    view = _group(services_of(request).rt, name)
    return etags.answer_with(request, response, etags.of_budget(_stored(view), view), view)


@router.patch(
    "/groups/{name}",
    operation_id="set_budget",
    summary="Set how many runs of a group may work at once",
    response_model=GroupView,
    responses=documented(*problems.OF_WRITES, 404, 412),
)
def set_budget(
    request: Request,
    response: Response,
    name: Group,
    body: BudgetBody,
    caller: Annotated[Caller, needs_whole_fleet(KeyScope.OPERATE)],
    if_match: IfMatch = None,
) -> Any:
    """Over the whole fleet, from now on. With `If-Match` only if the budget was not changed since it was read."""
    services = services_of(request)
    intents = stages.set_budget(
        services.rt, name, body.budget, by=caller.actor, check=lambda stored: etags.check_budget(if_match, stored)
    )
    services.send(intents)
    view = _group(services.rt, name)
    response.headers["ETag"] = etags.of_budget(_stored(view), view)
    return view


@router.get(
    "/workers",
    operation_id="list_workers",
    summary="List the processes of the fleet, and what each holds",
    response_model=page_model(ProcessView, "WorkerPage"),
    responses=documented(*problems.OF_READS),
)
def list_workers(request: Request, _caller: Annotated[Caller, needs_whole_fleet(KeyScope.READ)]) -> Any:
    """All on one page, with those that went within the last minutes."""
    rt = services_of(request).rt
    return {"data": views.processes(rt.store, now=rt.now()), "next": None}


def _groups(rt: Runtime) -> list[GroupView]:
    return views.groups(rt.store, now=rt.now(), budgets=rt.budgets, bounds=rt.queue_bounds)


def _group(rt: Runtime, name: Group) -> GroupView:
    return next(view for view in _groups(rt) if view.group is name)


def _stored(view: GroupView) -> int | None:
    return view.budget if view.budget_from == "database" else None


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


def _check_reader(request: Request) -> None:
    """The token of monitors, or a key that reads the whole fleet."""
    token, sent = services_of(request).metrics_token, sent_key(headers_of(request.scope))
    if token is None or sent is None or not hmac.compare_digest(sent.encode(), token.encode()):
        known_for_fleet(request, KeyScope.READ)


@router.get(
    "/metrics",
    operation_id="read_metrics",
    summary="Read the metrics of the fleet",
    response_class=PlainTextResponse,
    responses=documented(*problems.OF_READS),
    dependencies=[Depends(_check_reader)],
)
def read_metrics(request: Request) -> Response:
    """For Prometheus: text in its format, or in that of OpenMetrics where `Accept` asks for it. Numbers of the fleet
    may be five seconds old. With `CHORDAGE_METRICS_TOKEN` the server also takes that token in place of a key.
    """
    services = services_of(request)
    openmetrics = "application/openmetrics-text" in request.headers.get("accept", "")
    text = text_of(FAMILIES.values(), {**services.metrics(), **services.meter.read()}, openmetrics=openmetrics)
    return Response(text, media_type=OPENMETRICS if openmetrics else PROMETHEUS)
