"""Threads over HTTP: which there are, and what was said on one.

The id of a thread may hold any visible character: write it percent-encoded, a slash as `%2F`. A caller may give one of
its own threads by its name too. A thread whose id ends with `/history` or `/fork` is found in lists alone.
"""

from __future__ import annotations

from typing import Annotated, Any
from urllib.parse import quote

from fastapi import HTTPException, Path, Request, Response

from chordage.orchestrator import stages, views
from chordage.orchestrator.api import pages, problems
from chordage.orchestrator.api.bodies import ForkBody, Name
from chordage.orchestrator.api.callers import as_caller, needs, require
from chordage.orchestrator.api.guards import json_router
from chordage.orchestrator.api.pages import After, Limit, page_model
from chordage.orchestrator.api.problems import documented
from chordage.orchestrator.api.services import SOURCE, Services, address, services_of
from chordage.orchestrator.api.shown import model_of, show, show_all
from chordage.orchestrator.core.callers import Caller, KeyScope
from chordage.orchestrator.core.errors import InvalidMessage
from chordage.orchestrator.stages import Fork
from chordage.orchestrator.views.threads import Remark, ThreadDetails, ThreadView

ThreadId = Annotated[str, Path(min_length=1, max_length=400, pattern=r"^[^\x00]+$")]

router = json_router("threads")


@router.get(
    "/threads",
    operation_id="list_threads",
    summary="List threads, those with the newest turn first",
    response_model=page_model(model_of(ThreadView), "ThreadPage"),
    responses=documented(*problems.OF_READS),
)
def list_threads(
    *,
    request: Request,
    caller: Annotated[Caller, needs(KeyScope.READ)],
    agent: Name | None = None,
    after: After = None,
    limit: Limit = 50,
) -> Any:
    """Threads of sub-agents are not listed. A page may have fewer than `limit`, or none, and `next` all the same."""
    place = pages.place_of(after, pages.moment, pages.text)
    page = views.thread_page(
        services_of(request).rt.store, limit=limit, space=caller.reach, agent=agent,
        before=(place[0], place[1]) if place else None,
    )  # fmt: skip
    return {"data": show_all(page.data, caller), "next": page.next and pages.cursor_of(*page.next)}


# Before the route of a thread itself: an id may hold slashes, so that route would take these paths too.
@router.get(
    "/threads/{thread_id:path}/history",
    operation_id="read_history",
    summary="Read what was said on a thread",
    response_model=page_model(model_of(Remark), "RemarkPage"),
    responses=documented(*problems.OF_READS, 404),
)
def read_history(
    *,
    request: Request,
    thread_id: ThreadId,
    caller: Annotated[Caller, needs(KeyScope.READ)],
    after: After = None,
    limit: Limit = 50,
) -> Any:
    """The last messages and replies, each page oldest first; the next page is what was said before. Messages of runs
    that were rolled back are not shown. What a summary stands for in later requests is.
    """
    place = pages.place_of(after, pages.number)
    page = views.history_page(
        services_of(request).rt.store, thread_id, limit=limit, space=caller.reach, own=caller.space,
        before=place[0] if place else None,
    )  # fmt: skip
    return {"data": show_all(page.data, caller), "next": page.next and pages.cursor_of(page.next)}


@router.post(
    "/threads/{thread_id:path}/fork",
    status_code=201,
    operation_id="fork_thread",
    summary="Begin a new thread with the history of this one, up to a point",
    response_description="The new thread can be read at `Location`.",
    responses=documented(*problems.OF_WRITES, 404, 409),
)
def fork_thread(
    *,
    request: Request,
    response: Response,
    thread_id: ThreadId,
    caller: Annotated[Caller, needs(KeyScope.OPERATE)],
    body: ForkBody | None = None,
) -> Fork:
    """Results of calls are copied as they are, and nothing is carried out again. Continue with a turn on the new
    thread, which is one of the caller's own.

    With `run` the run itself continues from the end of `step`, with the edits, as a new turn: `turn_id`. That wants the
    scope `submit` too. Its calls are answered from the record of the run that is forked; see `effects`.
    """
    services, body = services_of(request), body or ForkBody()
    source = views.thread_in_reach(services.rt.store, thread_id, space=caller.reach, own=caller.space)
    if body.run:
        fork = _run_on(services, source.thread_id, body, caller)
    else:
        _check_copy(body)
        point = stages.ForkPoint(upto=body.upto, run_id=body.run_id, step=body.step)
        fork = stages.fork_thread(
            services.rt, source.thread_id, point, space=caller.space, name=body.thread_id, by=caller.actor
        )
    own = f"/threads/{thread_id}/fork"
    response.headers["Location"] = address(request, own, f"/threads/{quote(fork.thread_id, safe='')}")
    return fork


def _run_on(services: Services, thread_id: str, body: ForkBody, caller: Caller) -> Fork:
    require(caller, KeyScope.SUBMIT, "a fork that runs")
    if body.run_id is None or body.step is None or body.upto is not None:
        raise InvalidMessage("run begins at a step of a run: give run_id and step, and no upto", field="step")
    edits = stages.ForkEdits(**body.edits.model_dump(), effects=body.effects)
    turn_request = stages.fork_request(
        services.rt, body.run_id, body.step, edits, space=caller.space, source=SOURCE, thread_id=thread_id,
        name=body.thread_id,
    )  # fmt: skip
    fork, intents = stages.fork_run(services.rt, as_caller(services, turn_request, caller))
    services.send(intents)
    return fork


def _check_copy(body: ForkBody) -> None:
    if body.effects or body.edits.model_fields_set:
        problem = "edits and effects are of a fork that runs: give run true, with run_id and step, or leave them out"
        raise InvalidMessage(problem, field="run")


@router.get("/threads/{thread_id:path}/fork", include_in_schema=False)
def read_no_fork(thread_id: str) -> None:  # noqa: ARG001 - part of the path
    """Otherwise the next route would look for a thread whose id ends so."""
    raise HTTPException(405, headers={"Allow": "POST"})


@router.get(
    "/threads/{thread_id:path}",
    operation_id="read_thread",
    summary="Read a thread",
    response_model=model_of(ThreadDetails),
    responses=documented(*problems.OF_READS, 404),
)
def read_thread(request: Request, thread_id: ThreadId, caller: Annotated[Caller, needs(KeyScope.READ)]) -> Any:
    store = services_of(request).rt.store
    return show(views.thread_in_reach(store, thread_id, space=caller.reach, own=caller.space), caller)
