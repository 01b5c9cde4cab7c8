"""Runs over HTTP: what a turn came to, step by step and call by call; and a message into a run that is at work."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Query, Request, Response

from chordage.orchestrator import views
from chordage.orchestrator.api import pages, problems
from chordage.orchestrator.api.bodies import Name, SteerBody
from chordage.orchestrator.api.callers import as_caller, needs
from chordage.orchestrator.api.guards import json_router
from chordage.orchestrator.api.pages import After, Limit, page_model
from chordage.orchestrator.api.problems import documented
from chordage.orchestrator.api.services import SOURCE, address, services_of
from chordage.orchestrator.api.shown import model_of, show, show_all
from chordage.orchestrator.api.turns import Id, IdempotencyKey, Receipt, Since, Until, query_of
from chordage.orchestrator.core import message
from chordage.orchestrator.core.callers import Caller, KeyScope
from chordage.orchestrator.core.errors import NotFound
from chordage.orchestrator.core.groups import Group
from chordage.orchestrator.core.message import Message, Origin, Sender
from chordage.orchestrator.core.reasons import Reason
from chordage.orchestrator.core.status import RunStatus
from chordage.orchestrator.views import MAX_PART, ResultView, RunExport, RunLine
from chordage.orchestrator.views.calls import CallView
from chordage.orchestrator.views.comparison import Comparison
from chordage.orchestrator.views.runs import RunView, Step, ToolRound

PartOffset = Annotated[int, Query(ge=0, lt=2**31 - 1, description="The first character of the part.")]
PartLength = Annotated[int, Query(ge=1, le=MAX_PART, description="How many characters at most.")]

router = json_router("runs")


@router.get(
    "/runs",
    operation_id="list_runs",
    summary="List runs, the newest first",
    response_model=page_model(model_of(RunLine), "RunPage"),
    responses=documented(*problems.OF_READS),
)
def list_runs(
    *,
    request: Request,
    caller: Annotated[Caller, needs(KeyScope.READ)],
    status: RunStatus | None = None,
    agent: Name | None = None,
    group: Group | None = None,
    thread_id: Name | None = None,
    reason: Reason | None = None,
    code: Name | None = None,
    since: Since = None,
    until: Until = None,
    after: After = None,
    limit: Limit = 50,
) -> Any:
    """A page may have fewer runs than `limit`, or none, and `next` all the same: as of turns."""
    equal = {"agent": agent, "grp": group, "reason": reason, "code": code}
    services = services_of(request)
    query = query_of(services, caller, equal, thread_id, since=since, until=until, after=after, limit=limit)
    page = views.run_page(services.rt.store, query, status=status)
    return {"data": show_all(page.data, caller), "next": page.next and pages.cursor_of(page.next)}


@router.get(
    "/runs/{run_id}",
    operation_id="read_run",
    summary="Read a run with its steps and calls",
    response_model=model_of(RunView),
    responses=documented(*problems.OF_READS, 404),
)
def read_run(request: Request, run_id: Id, caller: Annotated[Caller, needs(KeyScope.READ)]) -> Any:
    return show(_run(request, run_id, caller), caller)


@router.get(
    "/runs/{run_id}/export",
    operation_id="export_run",
    summary="Read all there is of a run, as one document",
    response_model=model_of(RunExport),
    responses=documented(*problems.OF_READS, 404),
)
def export_run(request: Request, run_id: Id, caller: Annotated[Caller, needs(KeyScope.READ)]) -> Any:
    """With the runs of its sub-agents, the whole results of its calls and the trace. Of a run that is done the document
    is the same each time.
    """
    return show(views.export(services_of(request).rt.store, run_id, space=caller.reach), caller)


@router.get(
    "/runs/{run_id}/compare",
    operation_id="compare_runs",
    summary="Compare a run with another, reply by reply and call by call",
    response_model=model_of(Comparison),
    responses=documented(*problems.OF_READS, 404),
)
def compare_runs(
    request: Request,
    run_id: Id,
    caller: Annotated[Caller, needs(KeyScope.READ)],
    other: Annotated[
        str | None,
        Query(alias="with", max_length=200, pattern=r"^[0-9A-Za-z-]+$", description="Default: what it is a fork of."),
    ] = None,
) -> Any:
    """The first of each pair is of the run in `with`, the second of `run_id`."""
    services, second = services_of(request), _run(request, run_id, caller)
    source = other or second.fork_of
    if source is None:
        raise NotFound(f"run {run_id} is no fork: give the run to compare it with, as ?with=RUN")
    first = _run(request, source, caller)
    texts = [services.turn(run.turn_id, space=caller.reach).text for run in (first, second)]
    return show(views.compare(first, second, (texts[0], texts[1])), caller)


@router.get(
    "/runs/{run_id}/steps",
    operation_id="list_steps",
    summary="List the steps of a run, in their order",
    response_model=page_model(model_of(Step), "StepPage"),
    responses=documented(*problems.OF_READS, 404),
)
def list_steps(
    request: Request,
    run_id: Id,
    caller: Annotated[Caller, needs(KeyScope.READ)],
    after: After = None,
    limit: Limit = 100,
) -> Any:
    return _part(_run(request, run_id, caller).steps, caller, after, limit)


@router.get(
    "/runs/{run_id}/calls",
    operation_id="list_calls",
    summary="List the tool calls of a run, in their order",
    response_model=page_model(model_of(CallView), "CallPage"),
    responses=documented(*problems.OF_READS, 404),
)
def list_calls(
    request: Request,
    run_id: Id,
    caller: Annotated[Caller, needs(KeyScope.READ)],
    after: After = None,
    limit: Limit = 100,
) -> Any:
    """The whole result of a call: `GET /calls/{call_id}/result`."""
    steps = _run(request, run_id, caller).steps
    calls = [call for step in steps if isinstance(step, ToolRound) for call in step.calls]
    return _part(calls, caller, after, limit)


@router.post(
    "/runs/{run_id}/steer",
    status_code=202,
    operation_id="steer_run",
    summary="Send a message into a run that is at work",
    response_description="Stored. Its turn, at `Location`, ends as `steered` when the run has taken the message in.",
    responses=documented(*problems.OF_WRITES, 404, 409),
)
def steer_run(
    *,
    request: Request,
    response: Response,
    run_id: Id,
    body: SteerBody,
    caller: Annotated[Caller, needs(KeyScope.OPERATE)],
    idempotency_key: IdempotencyKey = None,
) -> Receipt:
    """A run that waits for decisions takes it in when they have come. If the run ends before its next step, the message
    is the next turn of the thread.
    """
    services = services_of(request)
    run = _run(request, run_id, caller)
    # An operator reaches a thread outside of its own space only as it is.
    space = caller.space if message.holds(caller.space, run.thread_id) else None
    content = Message(
        origin=Origin.INVOKE, channel=None, sender=Sender.SERVICE, thread_id=run.thread_id, text=body.text,
        meta=body.meta,
    )  # fmt: skip
    key = body.dedupe_key or idempotency_key
    steering = views.steering_of(run, content, source=SOURCE, space=space, key=key)
    admitted = services.accept(as_caller(services, steering, caller))
    response.headers["Location"] = address(request, f"/runs/{run_id}/steer", f"/turns/{admitted.turn_id}")
    return Receipt(turn_id=admitted.turn_id, thread_id=admitted.thread_id, duplicate=admitted.duplicate)


def _run(request: Request, run_id: str, caller: Caller) -> RunView:
    return views.run(services_of(request).rt.store, run_id, space=caller.reach)


def _part(rows: Any, caller: Caller, after: str | None, limit: int) -> dict[str, Any]:
    """Of the rows of one run, which only become more."""
    place = pages.place_of(after, pages.number)
    first = place[0] if place else 0
    shown = rows[first : first + limit]
    end = first + len(shown)
    return {"data": show_all(shown, caller), "next": pages.cursor_of(end) if shown and end < len(rows) else None}


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
    offset: PartOffset = 0,
    limit: PartLength = 65_536,
) -> Any:
    return show(services_of(request).result(call_id, offset=offset, limit=limit, space=caller.reach), caller)
