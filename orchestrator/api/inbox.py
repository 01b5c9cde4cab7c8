"""The inbox over HTTP: what waits for a decision, and the decisions."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Annotated, Any

from fastapi import Query, Request, Response

from chordage.orchestrator import stages, views
from chordage.orchestrator.api import etags, problems
from chordage.orchestrator.api.bodies import DecisionBatch, LinkBody, Name
from chordage.orchestrator.api.callers import allow_decisions, decide_as, needs, thread_of
from chordage.orchestrator.api.etags import IfNoneMatch
from chordage.orchestrator.api.guards import json_router
from chordage.orchestrator.api.pages import page_model
from chordage.orchestrator.api.problems import documented
from chordage.orchestrator.api.services import address, services_of
from chordage.orchestrator.api.shown import model_of, show, show_all
from chordage.orchestrator.api.turns import Id
from chordage.orchestrator.core.approvals import Action, DecisionRequest, Why
from chordage.orchestrator.core.callers import Caller, KeyScope
from chordage.orchestrator.run.approvals import Decided
from chordage.orchestrator.views import OpenQuestion
from chordage.orchestrator.views.approvals import QuestionState

LINKED_PATH = "/console/ask/"  # of the page of a link: console/asked.py

router = json_router("inbox")


@dataclass(frozen=True, kw_only=True, slots=True)
class StoredDecisions:
    decisions: list[Decided]


@router.get(
    "/inbox",
    operation_id="list_inbox",
    summary="List what waits for a decision, the oldest first",
    response_model=page_model(model_of(OpenQuestion), "QuestionPage"),
    responses=documented(*problems.OF_READS, 404),
)
def inbox(
    *,
    request: Request,
    caller: Annotated[Caller, needs(KeyScope.READ)],
    agent: Name | None = None,
    thread_id: Name | None = None,
    run_id: Name | None = None,
    root_thread: Annotated[Name | None, Query(description="Of this thread, and of all sub-agents below it.")] = None,
    root_run: Annotated[Name | None, Query(description="Of this run, and of all sub-agents below it.")] = None,
    why: Why | None = None,
    after: Annotated[Name | None, Query(description="The `next` of the page before.")] = None,
    limit: Annotated[int, Query(ge=1, le=1000)] = 50,
) -> Any:
    """Over all threads of the caller."""
    services = services_of(request)
    questions = services.inbox(
        limit=limit, agent=agent, thread_id=thread_id and thread_of(services, caller, thread_id), run_id=run_id,
        root_thread=root_thread and thread_of(services, caller, root_thread), root_run=root_run,
        why=why, after=after, space=caller.reach,
    )  # fmt: skip
    return {"data": show_all(questions, caller), "next": questions[-1].id if len(questions) == limit else None}


@router.get(
    "/inbox/{question_id}",
    operation_id="read_question",
    summary="Read a question about a call, also when it is answered",
    response_model=model_of(QuestionState),
    responses={**documented(*problems.OF_READS, 404), **etags.NOT_MODIFIED},
)
def read_question(
    request: Request,
    response: Response,
    question_id: Id,
    caller: Annotated[Caller, needs(KeyScope.READ)],
    if_none_match: IfNoneMatch = None,  # noqa: ARG001 - documented here, read with the tag
) -> Any:
    """`question_id` may be the id of its call: then it is the newest question about it."""
    state = show(views.question(services_of(request).rt.store, question_id, space=caller.reach), caller)
    return etags.answer_with(request, response, etags.etag_of(state), state)


@router.post(
    "/decisions",
    status_code=202,
    operation_id="decide",
    summary="Decide about calls that wait",
    response_description="Stored. `duplicate`: the same decision was stored before.",
    responses=documented(*problems.OF_WRITES, 404, 409),
)
def decide(
    request: Request, batch: DecisionBatch, caller: Annotated[Caller, needs(KeyScope.DECIDE)]
) -> StoredDecisions:
    """All of them are stored, or none. The calls continue at once."""
    requests = [body.request() for body in batch.decisions]
    return StoredDecisions(decisions=decide_as(services_of(request), requests, caller))


@dataclass(frozen=True, kw_only=True, slots=True)
class LinkToQuestion:
    """`url` is shown this once."""

    id: str
    url: str
    expires_at: datetime


@router.post(
    "/inbox/{question_id}/link",
    status_code=201,
    operation_id="link_question",
    summary="Make an address by which a person without a key may answer this question, once",
    responses=documented(*problems.OF_WRITES, 404, 409),
)
def link_question(
    request: Request,
    question_id: Id,
    caller: Annotated[Caller, needs(KeyScope.DECIDE, KeyScope.PAYLOADS)],
    body: LinkBody | None = None,
) -> LinkToQuestion:
    """The person who opens it sees exactly what would run, and decides. The decision is recorded as made by the link.
    Without a body it lasts an hour. The address is a page of the console of this server.
    """
    services = services_of(request)
    allow_decisions(services, [DecisionRequest(target=question_id, action=Action.CANCEL)], caller)
    rt = services.rt
    new = stages.make_question_link(
        rt.store, question_id, by=caller.actor, now=rt.now(), link_id=rt.new_id(), space=caller.reach,
        secret=stages.session_secret(rt.store),
        lasts=timedelta(seconds=(body or LinkBody()).expires_in),
    )  # fmt: skip
    path = address(request, f"/inbox/{question_id}/link", f"{LINKED_PATH}{new.token}")
    url = str(request.url.replace(path=path, query="", fragment=""))
    return LinkToQuestion(id=new.link.id, url=url, expires_at=new.link.expires_at)
