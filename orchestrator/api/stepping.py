"""Stepped turns over HTTP: what is held for their consumer, and the verbs that move them.

The revision of a turn is its entity tag. A verb with `If-Match` is refused if the turn has changed since it was read.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import Request, Response

from chordage.orchestrator import views
from chordage.orchestrator.api import etags, problems
from chordage.orchestrator.api.bodies import VerbBody
from chordage.orchestrator.api.callers import needs, require
from chordage.orchestrator.api.etags import IfMatch, IfNoneMatch
from chordage.orchestrator.api.guards import json_router
from chordage.orchestrator.api.problems import documented
from chordage.orchestrator.api.services import services_of
from chordage.orchestrator.api.shown import model_of, show
from chordage.orchestrator.api.turns import Id, IdempotencyKey
from chordage.orchestrator.core.callers import Caller, KeyScope
from chordage.orchestrator.core.stepping import Standing, StepRequest, Verb
from chordage.orchestrator.views.stepped import SteppedView

router = json_router("stepped turns")


@dataclass(frozen=True, kw_only=True, slots=True)
class SteppedTo:
    turn_id: str
    run_id: str | None
    rev: int
    standing: Standing
    duplicate: bool  # the key was known: this is what the verb came to then


@router.get(
    "/turns/{turn_id}/stepped",
    operation_id="read_stepped_turn",
    summary="Read what is held of a stepped turn",
    response_model=model_of(SteppedView),
    responses={**documented(*problems.OF_READS, 404, 409), **etags.NOT_MODIFIED},
)
def read_stepped(
    request: Request,
    response: Response,
    turn_id: Id,
    caller: Annotated[Caller, needs(KeyScope.READ)],
    if_none_match: IfNoneMatch = None,  # noqa: ARG001 - documented here, read with the tag
) -> Any:
    """`turn_id` may be the id of its run. 409: the turn was not submitted with control `step`."""
    view = views.stepped(services_of(request).rt.store, turn_id, space=caller.reach)
    state = (view.run_id, view.standing, view.iteration, [(call.id, call.status) for call in view.calls])
    return etags.answer_with(request, response, etags.numbered(view.rev, state), show(view, caller))


@router.post(
    "/turns/{turn_id}/steps",
    operation_id="step_turn",
    summary="Move a stepped turn",
    responses=documented(*problems.OF_WRITES, 404, 409, 412),
)
def step(
    *,
    request: Request,
    response: Response,
    turn_id: Id,
    body: VerbBody,
    caller: Annotated[Caller, needs(KeyScope.SUBMIT)],
    if_match: IfMatch = None,
    idempotency_key: IdempotencyKey = None,
) -> SteppedTo:
    """A refusal says in `code` why, and in `rev` and `standing` the state of the turn."""
    if body.verb is Verb.DECIDE:
        require(caller, KeyScope.DECIDE, "the verb decide")
    order = StepRequest(
        target=turn_id, verb=body.verb, args=body.args, if_rev=etags.revision_in(if_match), key=idempotency_key,
        space=caller.reach,
    )  # fmt: skip
    stepped = SteppedTo(**services_of(request).step(order))
    response.headers["ETag"] = etags.numbered(stepped.rev)
    return stepped
