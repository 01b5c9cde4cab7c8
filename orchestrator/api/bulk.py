"""Bulk jobs over HTTP: one action on many turns or dead letters, counted first and carried out by the workers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from fastapi import Path, Request, Response
from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from chordage.orchestrator import stages, views
from chordage.orchestrator.api import pages, problems
from chordage.orchestrator.api.bodies import STRICT, Moment, Name, storable
from chordage.orchestrator.api.callers import needs, require, thread_of
from chordage.orchestrator.api.guards import json_router
from chordage.orchestrator.api.pages import After, Limit, page_model
from chordage.orchestrator.api.problems import documented
from chordage.orchestrator.api.services import Services, address, services_of
from chordage.orchestrator.api.shown import model_of, show, show_all
from chordage.orchestrator.api.turns import IdempotencyKey
from chordage.orchestrator.core.bulk import CHOSEN_MAX, REASON_MAX, BulkAction, BulkCount, BulkRequest, targets_of
from chordage.orchestrator.core.callers import Caller, KeyScope
from chordage.orchestrator.core.errors import InvalidMessage
from chordage.orchestrator.core.groups import Group
from chordage.orchestrator.views import BulkView, TurnFilter, TurnState
from chordage.orchestrator.views.bulk import BulkRefusal
from chordage.orchestrator.views.requests import RETRIED
from chordage.orchestrator.views.turn_search import OPEN_STATES, filter_as_json

BulkId = Annotated[str, Path(max_length=200, pattern=r"^[0-9A-Za-z-]+$")]
RETRIED_STATES = frozenset(TurnState(disposition.value) for disposition in RETRIED)
STATES_OF: Mapping[BulkAction, tuple[frozenset[TurnState], str]] = {
    BulkAction.CANCEL: (OPEN_STATES, "turns that are not done, such as status:queued"),
    BulkAction.RETRY: (RETRIED_STATES, "turns that ended without an answer, such as status:failed"),
}

router = json_router("bulk")


class TurnFilterBody(BaseModel):
    """Conditions that a turn meets, all of them."""

    model_config = ConfigDict(**STRICT)

    status: Annotated[
        frozenset[TurnState],
        Field(min_length=1, description="One of these. `cancel`: of queued, running and waiting; `retry`: of the ways "
              "in which a turn ends without an answer."),
    ]  # fmt: skip
    agent: Name | None = None
    group: Group | None = None
    tenant: Name | None = None
    tool: Annotated[Name | None, Field(description="That its run has called.")] = None
    text: Annotated[
        str | None, Field(min_length=1, max_length=1000, description="Part of its message."), AfterValidator(storable)
    ] = None
    thread_id: Name | None = None
    more_tokens: Annotated[int | None, Field(ge=0, lt=2**62)] = None
    fewer_tokens: Annotated[int | None, Field(ge=0, lt=2**62)] = None
    since: Moment | None = None
    until: Moment | None = None

    def wanted(self, services: Services, caller: Caller) -> TurnFilter:
        """A thread may be given by the name that its caller gave it."""
        given = self.model_dump(exclude={"status"})
        if self.thread_id:
            given["thread_id"] = thread_of(services, caller, self.thread_id)
        return TurnFilter(states=self.status, **given)


class BulkBody(BaseModel):
    """What to do, and to what: turns by a filter or by their ids, dead letters by their numbers or all of them."""

    model_config = ConfigDict(
        **STRICT, json_schema_extra={"examples": [{"action": "cancel", "filter": {"status": ["queued"], "agent": "x"}}]}
    )

    action: Annotated[BulkAction, Field(description="`redeliver` sends dead letters again.")]
    filter: TurnFilterBody | None = None
    ids: Annotated[tuple[Name, ...] | None, Field(min_length=1, max_length=CHOSEN_MAX)] = None
    reason: Annotated[
        str | None, Field(max_length=REASON_MAX, description="Of a cancel."), AfterValidator(storable)
    ] = None

    def request(self, services: Services, caller: Caller, key: str | None = None) -> BulkRequest:
        return bulk_request(
            self.action, caller, wanted=self.filter.wanted(services, caller) if self.filter else None, ids=self.ids,
            reason=self.reason, key=key,
        )  # fmt: skip


def bulk_request(
    action: BulkAction,
    caller: Caller,
    *,
    wanted: TurnFilter | None,
    ids: tuple[str, ...] | None,
    query: str | None = None,
    reason: str | None = None,
    key: str | None = None,
) -> BulkRequest:
    """Of this caller, who may only look for what it may see. Raises InvalidMessage, Forbidden."""
    if wanted is not None and wanted.text is not None:
        require(caller, KeyScope.PAYLOADS, "a search in texts")
    if wanted is not None and action in STATES_OF:
        allowed, such_as = STATES_OF[action]
        if not wanted.states or not wanted.states <= allowed:
            raise InvalidMessage(f"a search for {such_as}, is needed to {action.value}", field="filter")
    return BulkRequest(
        action=action, by=caller.actor, wanted=None if wanted is None else filter_as_json(wanted),
        chosen=None if ids is None else targets_of(action, ids), query=query, reason=reason, space=caller.reach,
        agents=caller.agents, groups=caller.groups, key=key,
    )  # fmt: skip


@router.post(
    "/bulk",
    status_code=202,
    operation_id="start_bulk",
    summary="Cancel or retry many turns, or send many dead letters again",
    response_model=model_of(BulkView),
    response_description="Stored. The job can be read at `Location`.",
    responses=documented(*problems.OF_WRITES, 404, 409),
)
def start(
    request: Request,
    response: Response,
    body: BulkBody,
    caller: Annotated[Caller, needs(KeyScope.OPERATE)],
    idempotency_key: IdempotencyKey = None,
) -> Any:
    """Workers carry it out, one target after the other; each at most once. What is refused is kept with the reason.
    Turns that came after the request are not touched.
    """
    services = services_of(request)
    job, intents = stages.start_bulk(services.rt, body.request(services, caller, idempotency_key))
    services.send(intents)
    response.headers["Location"] = address(request, "/bulk", f"/bulk/{job.id}")
    return show(views.bulk_view(job), caller)


@router.post(
    "/bulk/count",
    operation_id="count_bulk",
    summary="Count what a bulk job would act on",
    response_description="Above 10,000 it is an estimate, and says so.",
    responses=documented(*problems.OF_WRITES, 404),
)
def count(request: Request, body: BulkBody, caller: Annotated[Caller, needs(KeyScope.OPERATE)]) -> BulkCount:
    services = services_of(request)
    return stages.count_bulk(services.rt, body.request(services, caller))


@router.get(
    "/bulk",
    operation_id="list_bulk",
    summary="List bulk jobs, the newest first",
    response_model=page_model(model_of(BulkView), "BulkPage"),
    responses=documented(*problems.OF_READS),
)
def list_bulk(
    request: Request, caller: Annotated[Caller, needs(KeyScope.READ)], after: After = None, limit: Limit = 50
) -> Any:
    place = pages.place_of(after, pages.text)
    jobs = views.bulk_jobs(
        services_of(request).rt.store, limit=limit, before=place[0] if place else None, space=caller.reach
    )
    return {"data": show_all(jobs, caller), "next": pages.cursor_of(jobs[-1].id) if len(jobs) == limit else None}


@router.get(
    "/bulk/{bulk_id}",
    operation_id="read_bulk",
    summary="Read how far a bulk job has come",
    response_model=model_of(BulkView),
    responses=documented(*problems.OF_READS, 404),
)
def read_bulk(request: Request, bulk_id: BulkId, caller: Annotated[Caller, needs(KeyScope.READ)]) -> Any:
    return show(views.bulk_job(services_of(request).rt.store, bulk_id, space=caller.reach), caller)


@router.get(
    "/bulk/{bulk_id}/refusals",
    operation_id="list_bulk_refusals",
    summary="List what a bulk job refused, and why",
    response_model=page_model(BulkRefusal, "BulkRefusalPage"),
    responses=documented(*problems.OF_READS, 404),
)
def list_refusals(
    request: Request,
    bulk_id: BulkId,
    caller: Annotated[Caller, needs(KeyScope.READ)],
    after: After = None,
    limit: Limit = 50,
) -> Any:
    place = pages.place_of(after, pages.text)
    refused = views.bulk_refusals(
        services_of(request).rt.store, bulk_id, limit=limit, after=place[0] if place else None, space=caller.reach
    )
    return {"data": refused, "next": pages.cursor_of(refused[-1].target) if len(refused) == limit else None}


@router.post(
    "/bulk/{bulk_id}/stop",
    operation_id="stop_bulk",
    summary="Stop a bulk job",
    response_model=model_of(BulkView),
    responses=documented(*problems.OF_WRITES, 404),
)
def stop(request: Request, bulk_id: BulkId, caller: Annotated[Caller, needs(KeyScope.OPERATE)]) -> Any:
    """What is done stays done. A job that is over stays as it is."""
    rt = services_of(request).rt
    return show(views.bulk_view(stages.stop_bulk(rt, bulk_id, caller.actor, space=caller.reach)), caller)
