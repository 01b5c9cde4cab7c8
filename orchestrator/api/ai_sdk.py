"""The AI SDK over HTTP: `useChat` with its default transport talks to an agent.

The chat is a thread. The dedupe key of a turn is made of the ids of its chat and its message, so the same request again
attaches to the turn. An approval comes back in the last message of the assistant; only the id of the question and the
answer are taken from it, the arguments of the call are those on record.
"""

from __future__ import annotations

import hashlib
from typing import Annotated, Any, Literal

import anyio.to_thread
from fastapi import Header, Path, Query, Request
from pydantic import ConfigDict, Field, JsonValue
from starlette.responses import Response

from chordage.orchestrator import views
from chordage.orchestrator.api.callers import as_caller, decide_as, needs
from chordage.orchestrator.api.faces import (
    FOLLOWS,
    READS,
    AgentName,
    ClientBody,
    ClientId,
    ClientRequest,
    FollowedTurns,
    FunctionTool,
    answered_calls,
    asked_on,
    check_agent,
    check_decides,
    check_streams,
    plain_yes,
    refusals,
    stream,
    streamed,
)
from chordage.orchestrator.api.guards import json_router
from chordage.orchestrator.api.services import Services, services_of
from chordage.orchestrator.core.approvals import Action, DecisionRequest
from chordage.orchestrator.core.callers import Caller, KeyScope
from chordage.orchestrator.core.client_tools import MOST, ClientResult
from chordage.orchestrator.core.errors import InvalidMessage, NotFound
from chordage.orchestrator.core.message import Message, Origin, Sender, TurnRequest, placed
from chordage.orchestrator.core.reasons import Reason
from chordage.orchestrator.core.status import TurnStatus
from chordage.orchestrator.faces.ai_sdk import AiSdkDialect, AiSdkFace
from chordage.orchestrator.views.lookups import QuestionPlace

SOURCE = "ai_sdk"
HEADERS = {"x-vercel-ai-ui-message-stream": "v1"}

router = json_router("ai sdk")

Version = Annotated[Literal["6", "7"] | None, Query(description="The major version of the AI SDK. Default: 6.")]
VersionHeader = Annotated[Literal["6", "7"] | None, Header(alias="x-ai-sdk", description="As `sdk`.")]
_WAITS = frozenset({Reason.SUSPENDED, Reason.HELD})


class PartApproval(ClientBody):
    id: ClientId
    approved: bool | None = None
    reason: str | None = None


class UiMessagePart(ClientBody):
    type: Annotated[str, Field(min_length=1)]
    text: str | None = None
    state: str | None = None
    approval: PartApproval | None = None
    tool_call_id: str | None = None
    output: JsonValue = None
    error_text: str | None = None
    preliminary: bool | None = None


class UiMessage(ClientBody):
    id: ClientId
    role: Literal["system", "user", "assistant"]
    parts: tuple[UiMessagePart, ...]

    def text(self) -> str:
        if any(part.type == "file" for part in self.parts):
            raise InvalidMessage("send text; files are not taken", field="messages")
        return "".join(part.text or "" for part in self.parts if part.type == "text")

    def answers(self) -> dict[str, PartApproval]:
        """Approvals that the client has answered, by the ids of their questions."""
        answered = (part.approval for part in self.parts if part.approval and part.state == "approval-responded")
        return {approval.id: approval for approval in answered if approval.approved is not None}

    def results(self) -> dict[str, ClientResult]:
        """Of calls of the last step, by their ids. Those of the agent's own tools are among them."""
        results: dict[str, ClientResult] = {}
        for part in self.parts:
            if part.type == "step-start":
                results.clear()
            elif part.tool_call_id is not None and part.state == "output-available" and not part.preliminary:
                results[part.tool_call_id] = ClientResult(content=part.output)
            elif part.tool_call_id is not None and part.state == "output-error":
                results[part.tool_call_id] = ClientResult(error=part.error_text or "it failed")
        return results


class UiChatRequest(ClientRequest):
    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "id": "chat1",
                    "trigger": "submit-message",
                    "messages": [{"id": "m1", "role": "user", "parts": [{"type": "text", "text": "What is 2 + 2?"}]}],
                }
            ]
        }
    )

    id: Annotated[ClientId, Field(description="Of the chat: the name of one of your threads.")]
    messages: Annotated[tuple[UiMessage, ...], Field(min_length=1)]
    trigger: Literal["submit-message", "regenerate-message"] = "submit-message"
    tools: Annotated[
        tuple[FunctionTool, ...],
        Field(max_length=MOST, description="Of the page, which carries their calls out, in this turn."),
    ] = ()


@router.post(
    "/ai/{agent}/chat",
    summary="Send a message of a chat, answers to approvals, or results of client tools",
    response_class=Response,
    responses={**streamed("The chunks of the answer."), **refusals(400, 408, 409, 413, 415, *FOLLOWS)},
)
async def send_message(
    request: Request,
    agent: AgentName,
    body: UiChatRequest,
    caller: Annotated[Caller, needs(KeyScope.SUBMIT, *READS)],
    sdk: Version = None,
    header: VersionHeader = None,
) -> Response:
    """The request needs the scope `decide` too where it answers approvals."""
    services = services_of(request)
    check_streams(services)
    check_agent(caller, agent)
    last = body.messages[-1]
    if last.role == "assistant" and body.trigger == "submit-message":
        if last.answers():
            check_decides(caller)
        turn = await anyio.to_thread.run_sync(_decide, services, caller, body, last)
    else:
        turn = await anyio.to_thread.run_sync(_submit, services, caller, agent, body)
    return await _stream(services, caller, turn, sdk or header)


@router.get(
    "/ai/{agent}/chat/{chat_id}/stream",
    summary="Come back to the answer that is being made",
    response_class=Response,
    responses={
        **streamed("The chunks of the answer, from its start."),
        204: {"description": "Nothing runs on the thread of this chat."},
        **refusals(*FOLLOWS),
    },
)
async def come_back_to_chat(
    request: Request,
    agent: AgentName,
    chat_id: Annotated[str, Path(max_length=200, pattern=r"^[^\x00]+$")],
    caller: Annotated[Caller, needs(*READS)],
    sdk: Version = None,
    header: VersionHeader = None,
) -> Response:
    services = services_of(request)
    check_streams(services)
    check_agent(caller, agent)
    turn_id = await anyio.to_thread.run_sync(_turn_at_work, services, caller, agent, chat_id)
    if turn_id is None:
        return Response(status_code=204)
    return await _stream(services, caller, FollowedTurns(turn_ids=[turn_id]), sdk or header)


async def _stream(services: Services, caller: Caller, turns: FollowedTurns, sdk: str | None) -> Response:
    (turn_id,), dialect = turns.turn_ids, AiSdkDialect(int(sdk or AiSdkDialect.SIX))
    face = AiSdkFace(turn_id=turn_id, dialect=dialect, answers=turns.answers)
    return await stream(face, services, caller, turns, headers=HEADERS)


def _submit(services: Services, caller: Caller, agent: str, body: UiChatRequest) -> FollowedTurns:
    """The last message of the user. To have it answered again, it is sent again: what was said stays on the thread."""
    message = next((one for one in reversed(body.messages) if one.role == "user"), None)
    if message is None:
        raise InvalidMessage("there is no message of the user: send one", field="messages")
    key = None
    if body.trigger == "submit-message":
        ids = f"{body.id}\0{message.id}".encode("utf-8", "surrogatepass")
        key = placed(caller.space, hashlib.sha256(ids).hexdigest())
    content = Message(
        origin=Origin.INVOKE, channel=None, sender=Sender.SERVICE, thread_id=body.id, text=message.text(),
        meta={SOURCE: {"message": message.id}},
    )  # fmt: skip
    request = TurnRequest(
        message=content, agent=agent, source=SOURCE, space=caller.space, dedupe_key=key,
        client_tools=tuple(tool.tool() for tool in body.tools),
    )  # fmt: skip
    return FollowedTurns(turn_ids=[services.accept(as_caller(services, request, caller)).turn_id])


def _decide(services: Services, caller: Caller, body: UiChatRequest, last: UiMessage) -> FollowedTurns:
    approvals = last.answers()
    asked = asked_on(services, approvals, space=caller.space, thread=body.id)
    thread_id = placed(caller.space, body.id)
    answered = answered_calls(services, last.results(), space=caller.space, thread_id=thread_id)
    if approvals and not asked:
        raise NotFound(f"chat {body.id!r} has no approval {next(iter(approvals))!r}")
    if not asked and not answered.places:
        problem = "the last message is the assistant's, and answers no approval and no call of a client tool"
        raise InvalidMessage(problem, field="messages")
    turn_id = [*(place.turn_id for place in asked.values()), *answered.turn_ids][-1]
    now = [answer for answer in approvals.values() if answer.id in asked and asked[answer.id].turn_id == turn_id]
    decisions = [*(_decision(answer, asked[answer.id]) for answer in now), *answered.decisions()]
    decide_as(services, decisions, caller, source=SOURCE)
    places = [*(asked[answer.id] for answer in now), *answered.places.values()]
    return FollowedTurns.behind(places, [turn_id])


def _decision(answer: PartApproval, place: QuestionPlace) -> DecisionRequest:
    if answer.approved:
        return DecisionRequest(target=answer.id, action=Action.RESUME, payload=plain_yes(place.schema))
    return DecisionRequest(target=answer.id, action=Action.CANCEL, reason=answer.reason)


def _turn_at_work(services: Services, caller: Caller, agent: str, chat_id: str) -> str | None:
    """The turn that is running on the thread of the chat, or that is about to. One that waits for decisions is not."""
    wanted: dict[str, Any] = {"thread_id": placed(caller.space, chat_id), "agent": agent, "limit": 1}
    store = services.rt.store
    active = views.turns(store, status=TurnStatus.ACTIVE, **wanted)
    if active and active[0].reason not in _WAITS:
        return active[0].turn_id
    queued = views.turns(store, status=TurnStatus.QUEUED, **wanted)
    return queued[0].turn_id if queued else None
