"""OpenAI's API over agents: models, chat completions and Responses. `model` is the name of an agent.

A turn is a response; its id is that of the turn behind `resp_`. What a client reads here is made of the moments of the
turn (faces/openai_responses.py, faces/openai_chat.py); a client that goes away cancels nothing.
"""

from __future__ import annotations

import time
from contextlib import aclosing
from functools import partial
from typing import Annotated, Any

import anyio
import anyio.to_thread
from fastapi import Header, Query, Request
from fastapi.responses import JSONResponse
from starlette.responses import Response

from chordage.orchestrator import stages
from chordage.orchestrator.api import openai_turns
from chordage.orchestrator.api.callers import needs
from chordage.orchestrator.api.faces import FollowedTurns, check_streams, moments_of, streams_of
from chordage.orchestrator.api.faces import stream as stream_of
from chordage.orchestrator.api.guards import json_router
from chordage.orchestrator.api.openai_bodies import ChatRequest, CompactionRequest, ResponseRequest
from chordage.orchestrator.api.openai_errors import OpenAIRefusal, OpenAIRoute, documented, error
from chordage.orchestrator.api.openai_turns import PREFIX, Taken
from chordage.orchestrator.api.services import Services, services_of
from chordage.orchestrator.core.callers import Caller, KeyScope
from chordage.orchestrator.core.errors import Unavailable
from chordage.orchestrator.core.reasons import Reason
from chordage.orchestrator.core.status import TurnStatus
from chordage.orchestrator.faces.face import Face, Wire
from chordage.orchestrator.faces.openai_chat import SAME_KEY, ChatFace
from chordage.orchestrator.faces.openai_responses import LOST, ResponseFace, usage_of
from chordage.orchestrator.views import TurnView

OF_READS = (401, 403, 421, 422, 429, 500, 503)
OF_WRITES = (400, 401, 403, 404, 408, 409, 413, 415, 421, 422, 429, 500, 502, 503)

_STREAMED: dict[int | str, dict[str, Any]] = {
    200: {"description": "The object; with `stream`, server-sent events.", "content": {"text/event-stream": {}}}
}

router = json_router("openai", OpenAIRoute)
Submits = Annotated[Caller, needs(KeyScope.SUBMIT, KeyScope.READ, KeyScope.PAYLOADS)]
Reads = Annotated[Caller, needs(KeyScope.READ, KeyScope.PAYLOADS)]
Operates = Annotated[Caller, needs(KeyScope.OPERATE, KeyScope.READ, KeyScope.PAYLOADS)]
Idempotency = Annotated[str | None, Header(description="The same key makes one turn, however often it is sent.")]
ThreadHeader = Annotated[str | None, Header(description="The thread. Default: `metadata.thread_id`, or a new one.")]


# Models.


@router.get("/v1/models", summary="List the agents", responses=documented(*OF_READS))
def models(request: Request, caller: Annotated[Caller, needs(KeyScope.READ)]) -> dict[str, Any]:
    names = [name for name in services_of(request).rt.agents.names() if _may_use(caller, name)]
    return {"object": "list", "data": [_model(name) for name in names]}


@router.get("/v1/models/{name}", summary="Read an agent", responses=documented(404, *OF_READS))
def model(request: Request, name: str, caller: Annotated[Caller, needs(KeyScope.READ)]) -> dict[str, Any]:
    if not _may_use(caller, name) or name not in services_of(request).rt.agents.names():
        raise OpenAIRefusal(f"there is no agent {name!r}", code="model_not_found", param="model", status=404)
    return _model(name)


def _model(name: str) -> Wire:
    return {"id": name, "object": "model", "created": 0, "owned_by": "chordage"}


def _may_use(caller: Caller, agent: str) -> bool:
    return caller.agents is None or agent in caller.agents


# Chat completions.


@router.post("/v1/chat/completions", summary="Send a message", responses={**_STREAMED, **documented(*OF_WRITES)})
async def complete_chat(
    request: Request,
    body: ChatRequest,
    caller: Submits,
    idempotency_key: Idempotency = None,
    x_thread_id: ThreadHeader = None,
) -> Response:
    """With a known thread only the last message counts; without one, those before it are quoted to the agent. Messages
    of the role `tool` behind the last reply continue the turn that asked for them.
    """
    body.check()
    services = services_of(request)
    check_streams(services)
    take = partial(openai_turns.take_chat, services, caller, body)
    taken = await anyio.to_thread.run_sync(take, idempotency_key, x_thread_id)
    face = ChatFace(
        id=f"chatcmpl-{taken.turn_id}", agent=body.agent(), created=taken.created_at,
        with_usage=body.stream_options is not None and body.stream_options.include_usage, since=taken.since,
    )  # fmt: skip
    if body.stream:
        return await _streamed(services, caller, face, taken)
    is_there = await _fold(request, services, caller, face, taken)
    if face.failure is not None:
        status, headers = (502 if face.failure["type"] == "server_error" else 409), {"x-should-retry": "false"}
        return error(status, face.failure["message"], code=face.failure["code"], headers=headers)
    if face.finish is None and is_there:
        raise Unavailable(LOST + SAME_KEY)
    return _answer(face.completion(), taken.thread_id)


# Responses.


@router.post(
    "/v1/responses", summary="Send a message, or answer approvals", responses={**_STREAMED, **documented(*OF_WRITES)}
)
async def create_response(
    request: Request,
    body: ResponseRequest,
    caller: Submits,
    idempotency_key: Idempotency = None,
    x_thread_id: ThreadHeader = None,
) -> Response:
    """Answers to approvals alone continue the turn that waits for them: the response has what came of it."""
    body.check()
    services = services_of(request)
    in_background = body.background and not body.stream
    if not in_background:
        check_streams(services)
    take = partial(openai_turns.take_response, services, caller, body)
    taken = await anyio.to_thread.run_sync(take, idempotency_key, x_thread_id)
    face = ResponseFace(
        id=PREFIX + taken.turn_id, agent=body.agent(), created_at=taken.created_at, echo=taken.echo, since=taken.since
    )
    if body.stream:
        return await _streamed(services, caller, face, taken)
    if not in_background:
        await _fold(request, services, caller, face, taken)
    return _answer(face.response(), taken.thread_id)


# Before the route of a response itself, which would take this path too.
@router.post("/v1/responses/compact", summary="Ask for a summary of a thread", responses=documented(*OF_WRITES))
def compact_response(request: Request, body: CompactionRequest, caller: Submits) -> dict[str, Any]:
    """The summary is written before the next answer on the thread. The item in `output` refers to the thread."""
    body.agent()
    if body.previous_response_id is None:
        problem = "name the thread to be summarised by one of its responses: give previous_response_id"
        raise OpenAIRefusal(problem, code="missing_required_parameter", param="previous_response_id")
    services = services_of(request)
    turn = openai_turns.turn_of(services, body.previous_response_id, caller)
    stages.ask_to_compact(services.rt, turn.thread_id, by=caller.actor)
    item = {"id": f"cmp_{turn.turn_id}", "type": "compaction", "encrypted_content": PREFIX + turn.turn_id}
    return {
        "id": f"resp_cmp_{turn.turn_id}", "object": "response.compaction", "created_at": int(time.time()),
        "output": [item], "usage": usage_of(turn.usage),
    }  # fmt: skip


@router.get(
    "/v1/responses/{response_id}",
    summary="Read a response, or follow it",
    responses={**_STREAMED, **documented(404, *OF_READS)},
)
async def read_response(
    request: Request,
    response_id: str,
    caller: Reads,
    stream: bool = False,
    starting_after: Annotated[int | None, Query(ge=0, lt=2**53, description="The last number that was read.")] = None,
) -> Response:
    """The whole turn, also what came of answers to its approvals."""
    services = services_of(request)
    turn = await anyio.to_thread.run_sync(openai_turns.turn_of, services, response_id, caller)
    if stream:
        check_streams(services)
        face = _face_of(turn, after=-1 if starting_after is None else starting_after)
        return await _streamed(services, caller, face, turn)
    return await _read(request, services, caller, turn)


async def _read(request: Request, services: Services, caller: Caller, turn: TurnView) -> JSONResponse:
    """As it is now, without waiting for anything."""
    face = _face_of(turn)
    if turn.status is TurnStatus.DONE or turn.reason is Reason.SUSPENDED:
        check_streams(services)
        await _fold(request, services, caller, face, turn)
    elif turn.status is TurnStatus.ACTIVE:
        face.status = "in_progress"
    return _answer(face.response(), turn.thread_id)


@router.post(
    "/v1/responses/{response_id}/cancel", summary="Cancel the turn of a response", responses=documented(*OF_WRITES)
)
async def cancel_response(request: Request, response_id: str, caller: Operates) -> Response:
    """What is done stays as it is."""
    services = services_of(request)

    def cancel() -> TurnView:
        turn = openai_turns.turn_of(services, response_id, caller)
        _, intents = stages.cancel_turn(services.rt, turn.turn_id, space=caller.reach, by=caller.actor)
        services.send(intents)
        return openai_turns.turn_of(services, response_id, caller)

    turn = await anyio.to_thread.run_sync(cancel)
    return await _read(request, services, caller, turn)


@router.get(
    "/v1/responses/{response_id}/input_items",
    summary="Read what a response answers",
    responses=documented(404, *OF_READS),
)
def input_items(request: Request, response_id: str, caller: Reads) -> dict[str, Any]:
    turn = openai_turns.turn_of(services_of(request), response_id, caller)
    text = turn.text[openai_turns.kept(turn).get("preface", 0) :]
    item = {
        "id": f"msg_{turn.turn_id}", "type": "message", "role": "user", "status": "completed",
        "content": [{"type": "input_text", "text": text}],
    }  # fmt: skip
    return {"object": "list", "data": [item], "first_id": item["id"], "last_id": item["id"], "has_more": False}


@router.delete("/v1/responses/{response_id}", summary="Refused: turns stay on record", responses=documented(*OF_WRITES))
def delete_response(request: Request, response_id: str, caller: Operates) -> dict[str, Any]:
    openai_turns.turn_of(services_of(request), response_id, caller)
    problem = "a turn is part of the record of its thread and cannot be deleted alone; cancel it to stop it"
    raise OpenAIRefusal(problem, code="unsupported_operation")


# Following a turn.


def _face_of(turn: TurnView, after: int = -1) -> ResponseFace:
    created_at = int(turn.queued_at.timestamp())
    echo = openai_turns.echo_of(turn)
    return ResponseFace(id=PREFIX + turn.turn_id, agent=turn.agent, created_at=created_at, echo=echo, after=after)


async def _streamed(services: Services, caller: Caller, face: Face, turn: Taken | TurnView) -> Response:
    headers = {"X-Thread-Id": turn.thread_id}
    return await stream_of(face, services, caller, _followed(turn), headers=headers, refuses=True)


def _followed(turn: Taken | TurnView) -> FollowedTurns:
    since = turn.since if isinstance(turn, Taken) else frozenset[str]()
    return FollowedTurns(turn_ids=[turn.turn_id], answered={turn.turn_id: since})


async def _fold(request: Request, services: Services, caller: Caller, face: Face, turn: Taken | TurnView) -> bool:
    """All moments, into the face. False: the client has gone."""
    moments = moments_of(streams_of(services), _followed(turn), space=caller.reach)
    refusal, is_there = None, True
    async with anyio.create_task_group() as tasks:

        async def stop_when_gone() -> None:
            nonlocal is_there
            while (await request.receive())["type"] != "http.disconnect":
                pass
            is_there = False
            tasks.cancel_scope.cancel()

        tasks.start_soon(stop_when_gone)
        try:
            async with aclosing(moments):
                async for moment in moments:
                    face.feed(moment)
        except Exception as error:  # a task group would raise a group
            refusal = error
        tasks.cancel_scope.cancel()
    if refusal is not None:
        raise refusal
    return is_there


def _answer(content: Wire, thread_id: str) -> JSONResponse:
    return JSONResponse(content, headers={"X-Thread-Id": thread_id})
