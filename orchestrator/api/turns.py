"""Turns over HTTP: a message comes in and is stored; its turn is read, waited for, listed, cancelled, retried."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, Any

import anyio.to_thread
from fastapi import Header, Path, Query, Request, Response
from pydantic import AwareDatetime

from chordage.orchestrator import stages, views
from chordage.orchestrator.api import etags, pages, problems
from chordage.orchestrator.api.bodies import CancelBody, Moment, Name, TurnChange, TurnFields
from chordage.orchestrator.api.callers import allow_group, as_caller, needs, require, thread_of
from chordage.orchestrator.api.etags import IfMatch, IfNoneMatch
from chordage.orchestrator.api.guards import json_router
from chordage.orchestrator.api.pages import After, Limit, page_model
from chordage.orchestrator.api.problems import documented
from chordage.orchestrator.api.services import SOURCE, Services, address, services_of
from chordage.orchestrator.api.shown import model_of, show, show_all
from chordage.orchestrator.core.audit import Audited
from chordage.orchestrator.core.callers import Caller, KeyScope
from chordage.orchestrator.core.errors import InvalidMessage
from chordage.orchestrator.core.groups import Group
from chordage.orchestrator.core.status import Disposition, TurnStatus
from chordage.orchestrator.core.stepping import Control
from chordage.orchestrator.views import PageQuery, TurnView
from chordage.orchestrator.views.trace import TraceView
from chordage.orchestrator.views.turns import TurnLine

LONGEST_WAIT = 60.0

Id = Annotated[str, Path(max_length=200, pattern=r"^[0-9A-Za-z-]+$")]
Seconds = Annotated[
    float,
    Query(
        ge=0,
        le=LONGEST_WAIT,
        allow_inf_nan=False,
        description="Wait this long for the turn to end: 200 with the turn if it does. Otherwise, and while too many "
        "callers wait, the answer is that of a request that does not wait.",
    ),
]
IdempotencyKey = Annotated[
    str | None,
    Header(
        pattern=r"^[\x21-\x7e]{1,200}$",
        description="The same request sent again under the same key is carried out once.",
    ),
]
Since = Annotated[Moment | None, Query(description="Only what came then or later.")]
Until = Annotated[Moment | None, Query(description="Only what came before.")]
_DONE: dict[str, Any] = {"model": model_of(TurnView), "description": "It was waited for, and is done."}

router = json_router("turns")


@dataclass(frozen=True, kw_only=True, slots=True)
class Receipt:
    turn_id: str
    thread_id: str
    duplicate: bool  # the key was known: this is the turn that was made then


@router.post(
    "/turns",
    status_code=202,
    operation_id="submit_turn",
    summary="Send a message",
    response_model=Receipt | model_of(TurnView),
    response_description="Stored. The turn can be read at `Location`.",
    responses={200: _DONE, 202: {"model": Receipt}, **documented(*problems.OF_WRITES, 404, 409)},
)
async def submit(
    *,
    request: Request,
    response: Response,
    fields: TurnFields,
    caller: Annotated[Caller, needs(KeyScope.SUBMIT)],
    wait: Seconds = 0.0,
    idempotency_key: IdempotencyKey = None,
) -> Any:
    services = services_of(request)
    if wait > 0:
        require(caller, KeyScope.READ, "waiting for the turn")
    turn_request = fields.request(source=SOURCE, space=caller.space, step=fields.step.terms() if fields.step else None)
    turn_request = replace(turn_request, dedupe_key=_only_key(fields.dedupe_key, idempotency_key))
    admitted = await anyio.to_thread.run_sync(lambda: services.accept(as_caller(services, turn_request, caller)))
    response.headers["Location"] = address(request, "/turns", f"/turns/{admitted.turn_id}")
    if wait > 0 and (done := await services.waits.until_done(request, admitted.turn_id, wait)) is not None:
        response.status_code = 200
        return show(done, caller)
    return Receipt(turn_id=admitted.turn_id, thread_id=admitted.thread_id, duplicate=admitted.duplicate)


def _only_key(in_body: str | None, in_header: str | None) -> str | None:
    if in_body is not None and in_header is not None and in_body != in_header:
        problem = f"Idempotency-Key is {in_header!r} and dedupe_key is {in_body!r}: give one of them, or the same twice"
        raise InvalidMessage(problem, field="Idempotency-Key")
    return in_body if in_body is not None else in_header


@router.get(
    "/turns",
    operation_id="list_turns",
    summary="List turns, the newest first",
    response_model=page_model(model_of(TurnLine), "TurnPage"),
    responses=documented(*problems.OF_READS),
)
def list_turns(
    *,
    request: Request,
    caller: Annotated[Caller, needs(KeyScope.READ)],
    status: TurnStatus | None = None,
    disposition: Disposition | None = None,
    agent: Name | None = None,
    group: Group | None = None,
    thread_id: Name | None = None,
    tenant: Name | None = None,
    since: Since = None,
    until: Until = None,
    after: After = None,
    limit: Limit = 50,
) -> Any:
    """A filter that few turns meet looks at a part of the table at a time: such a page may have fewer turns than
    `limit`, or none, and `next` all the same.
    """
    equal = {"disposition": disposition, "agent": agent, "grp": group, "tenant": tenant}
    services = services_of(request)
    query = query_of(services, caller, equal, thread_id, since=since, until=until, after=after, limit=limit)
    page = views.turn_page(services.rt.store, query, status=status)
    return {"data": show_all(page.data, caller), "next": page.next and pages.cursor_of(page.next)}


def query_of(
    services: Services,
    caller: Caller,
    equal: dict[str, Any],
    thread_id: str | None,
    *,
    since: AwareDatetime | None,
    until: AwareDatetime | None,
    after: str | None,
    limit: int,
) -> PageQuery:
    """Of a list of turns or runs. A thread may be given by the name that its caller gave it."""
    place = pages.place_of(after, pages.text)
    return PageQuery(
        equal={name: str(value) for name, value in equal.items() if value is not None},
        thread_id=thread_id and thread_of(services, caller, thread_id), space=caller.reach, since=since, until=until,
        before=place[0] if place else None, limit=limit,
    )  # fmt: skip


@router.get(
    "/turns/{turn_id}",
    operation_id="read_turn",
    summary="Read a turn",
    response_model=model_of(TurnView),
    responses={**documented(*problems.OF_READS, 404), **etags.NOT_MODIFIED},
)
async def read(
    *,
    request: Request,
    response: Response,
    turn_id: Id,
    caller: Annotated[Caller, needs(KeyScope.READ)],
    wait: Seconds = 0.0,
    if_none_match: IfNoneMatch = None,  # noqa: ARG001 - documented here, read with the tag
) -> Any:
    """With `wait` the answer comes as soon as the turn is done, or then. The entity tag begins with that of the group
    and the deadline, which `PATCH` compares.
    """
    services = services_of(request)
    load = partial(services.turn, turn_id, space=caller.reach)
    turn: TurnView | None = await anyio.to_thread.run_sync(load)
    if turn is not None and wait > 0 and turn.status is not TurnStatus.DONE:
        turn = await services.waits.until_done(request, turn_id, wait)
    turn = turn or await anyio.to_thread.run_sync(load)
    assert turn is not None
    shown = show(turn, caller)
    return etags.answer_with(request, response, etags.of_queued(turn.group, turn.deadline, shown), shown)


@router.patch(
    "/turns/{turn_id}",
    operation_id="change_turn",
    summary="Move a turn that is queued to a lower group, or extend its deadline",
    response_model=model_of(TurnView),
    responses=documented(*problems.OF_WRITES, 404, 409, 412),
)
def change(
    request: Request,
    response: Response,
    turn_id: Id,
    body: TurnChange,
    caller: Annotated[Caller, needs(KeyScope.OPERATE)],
    if_match: IfMatch = None,
) -> Any:
    """409 once it has started: then nothing is changed. Its place in the line of its thread stays."""
    services = services_of(request)
    if body.group is not None:
        allow_group(caller, body.group)
    intents = stages.change_queued_turn(
        services.rt, turn_id, by=caller.actor, group=body.group, deadline=body.deadline, space=caller.reach,
        check=lambda turn: etags.check_queued(if_match, turn.group, turn.deadline),
    )  # fmt: skip
    services.send(intents)
    turn = services.turn(turn_id, space=None)
    shown = show(turn, caller)
    response.headers["ETag"] = etags.of_queued(turn.group, turn.deadline, shown)
    return shown


@router.get(
    "/turns/{turn_id}/trace",
    operation_id="trace_turn",
    summary="Read what happened to a message, from its arrival to its end",
    response_model=model_of(TraceView),
    responses=documented(*problems.OF_READS, 404),
)
def trace(request: Request, turn_id: Id, caller: Annotated[Caller, needs(KeyScope.READ)]) -> Any:
    """A turn that was merged into another names it in `merged_into`."""
    services = services_of(request)
    services.turn(turn_id, space=caller.reach)
    return show(views.trace(services.rt.store, turn_id), caller)


@router.post(
    "/turns/{turn_id}/cancel",
    operation_id="cancel_turn",
    summary="Cancel a turn",
    response_model=model_of(TurnView),
    responses=documented(*problems.OF_WRITES, 404, 409),
)
def cancel(
    request: Request,
    turn_id: Id,
    caller: Annotated[Caller, needs(KeyScope.OPERATE)],
    body: CancelBody | None = None,
) -> Any:
    """A queued turn never starts. The run of an active one ends, and its calls are aborted. A turn that is done stays
    as it is: its `disposition` says how it ended.
    """
    services = services_of(request)
    _, intents = stages.cancel_turn(
        services.rt, turn_id, body.reason if body else None, space=caller.reach, by=caller.actor
    )
    services.send(intents)
    return show(services.turn(turn_id, space=None), caller)


@router.post(
    "/turns/{turn_id}/retry",
    status_code=202,
    operation_id="retry_turn",
    summary="Send the message of a turn again that ended without an answer",
    response_description="Stored. The new turn can be read at `Location`.",
    responses=documented(*problems.OF_WRITES, 404, 409),
)
def retry(
    request: Request, response: Response, turn_id: Id, caller: Annotated[Caller, needs(KeyScope.OPERATE)]
) -> Receipt:
    """A turn is retried once: the second time, this is the turn that was made then. Retry that one to try again."""
    services = services_of(request)
    turn_request = views.retry_of(services.rt.store, turn_id, space=caller.reach)
    if turn_request.control is Control.STEP:
        require(caller, KeyScope.SUBMIT, "a stepped turn")
    turn_request = replace(as_caller(services, turn_request, caller), audited=Audited.RETRIED)
    admitted = services.accept(turn_request)
    response.headers["Location"] = address(request, f"/turns/{turn_id}/retry", f"/turns/{admitted.turn_id}")
    return Receipt(turn_id=admitted.turn_id, thread_id=admitted.thread_id, duplicate=admitted.duplicate)
