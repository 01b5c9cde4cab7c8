"""What the endpoints for clients of other protocols share: their streams, and their errors as plain JSON."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, AsyncIterator, Collection, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Annotated, Any, Self

import anyio
import structlog
from fastapi import Path
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator
from pydantic.alias_generators import to_camel
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from chordage.orchestrator.api import problems
from chordage.orchestrator.api.bodies import storable
from chordage.orchestrator.api.problems import Problem
from chordage.orchestrator.api.services import Services, TurnStreams
from chordage.orchestrator.api.streams import (
    NO_STREAMS,
    EventStream,
    ServerStop,
    ServerStopping,
    check_room,
    while_valid,
)
from chordage.orchestrator.core.approvals import DecisionRequest, Why
from chordage.orchestrator.core.callers import Caller, KeyScope
from chordage.orchestrator.core.client_tools import ClientResult, ClientTool
from chordage.orchestrator.core.errors import Forbidden, TooManyRequests, Unauthenticated, Unavailable, UserError
from chordage.orchestrator.core.message import placed
from chordage.orchestrator.faces.face import Face, begins_again
from chordage.orchestrator.faces.moments import Queued, Started, TurnEnded, TurnMoment, Waiting
from chordage.orchestrator.gateways.schemas import complaint_about
from chordage.orchestrator.views.lookups import QuestionPlace, question_places

log = structlog.get_logger()

PATHS = ("/agui/", "/ai/")
PLAIN = "application/json"
STALE_PAUSE, STALE_TRIES = 0.05, 200  # seconds until a turn is read again, and how often
_ID = re.compile(r"[0-9A-Za-z-]{1,200}")

_AGAIN = "The turn continues: send the same request again to read it from its start."
_LOST = f"The stream broke off on the side of the server. {_AGAIN}"
_STOPPING = f"The server stops. {_AGAIN}"
_NOT_SEEN = "the answers are stored, and this server does not see what came of them: read the turn again"


class PlainErrors:
    """Clients of these protocols read an error only where it is said to be `application/json`."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = scope.get("path", "").removeprefix(scope.get("root_path", ""))
        if scope["type"] != "http" or not path.startswith(PATHS):
            await self._app(scope, receive, send)
            return

        async def send_plain(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = [
                    (name, PLAIN.encode() if value == problems.MEDIA_TYPE.encode() else value)
                    for name, value in message["headers"]
                ]
                message = {**message, "headers": headers}
            await send(message)

        await self._app(scope, receive, send_plain)


def refusals(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """These statuses, as OpenAPI describes them."""
    content = {PLAIN: {"schema": Problem.model_json_schema()}}
    return {status: {"description": HTTPStatus(status).phrase, "content": content} for status in statuses}


def streamed(description: str) -> dict[int | str, dict[str, Any]]:
    return {200: {"description": description, "content": {"text/event-stream": {}}}}


def streams_of(services: Services) -> TurnStreams:
    """Raises Unavailable."""
    if services.streams is None:
        raise Unavailable(NO_STREAMS)
    return services.streams


def check_streams(services: Services) -> None:
    """Before anything is stored that could not be answered. Raises Unavailable and TooManyRequests."""
    streams_of(services)
    check_room(services)


def check_agent(caller: Caller, agent: str) -> None:
    if caller.agents is not None and agent not in caller.agents:
        raise Forbidden(f"{caller.label} does not address the agent {agent!r}")


def check_decides(caller: Caller) -> None:
    """A request may carry decisions, and then needs a scope that it does not need otherwise."""
    if KeyScope.DECIDE not in caller.scopes:
        scope = KeyScope.DECIDE.value
        raise Forbidden(f"{caller.label} does not have the scope {scope!r}", scope=scope)


# What AG-UI and the AI SDK have in common


AgentName = Annotated[str, Path(max_length=200, pattern=r"^[^\x00]+$", description="The agent's name.")]
ClientId = Annotated[str, Field(min_length=1, max_length=200)]
READS = (KeyScope.READ, KeyScope.PAYLOADS)
FOLLOWS = (401, 403, 404, 421, 422, 429, 500, 503)


class ClientBody(BaseModel):
    """Members that are not known here are no error: newer clients have more of them."""

    model_config = ConfigDict(frozen=True, alias_generator=to_camel, populate_by_name=True)


class ClientRequest(ClientBody):
    @model_validator(mode="before")
    @classmethod
    def check_characters(cls, value: Any) -> Any:
        return storable(value)


def asked_on(services: Services, ids: Collection[str], *, space: str, thread: str) -> dict[str, QuestionPlace]:
    """Those of these questions that were asked on this thread of the caller, by their ids."""
    places = question_places(services.rt.store, ids, space=space) if ids else {}
    return {place.id: place for place in places.values() if place.thread_id == placed(space, thread)}


# Tools that a client brings: core/client_tools.py


class FunctionTool(BaseModel):
    """A tool as clients describe it. Members that are not known here are no error."""

    model_config = ConfigDict(extra="allow", frozen=True)

    name: Annotated[str, Field(max_length=200)]
    description: Annotated[str | None, AfterValidator(storable)] = None
    parameters: Annotated[dict[str, Any] | None, AfterValidator(storable)] = None

    def tool(self) -> ClientTool:
        schema = self.parameters or {"type": "object", "properties": {}}
        return ClientTool(name=self.name, description=self.description or "", schema=schema)


@dataclass(frozen=True, kw_only=True, slots=True)
class AnsweredCalls:
    """Results of a client's tools, and the questions that they answer."""

    results: Mapping[str, ClientResult]  # by call
    places: Mapping[str, QuestionPlace]  # the same

    @property
    def turn_ids(self) -> list[str]:
        return list(dict.fromkeys(place.turn_id for place in self.places.values()))

    def decisions(self, *, only_open: bool = False) -> tuple[DecisionRequest, ...]:
        """Where some wait, the others are passed over: clients send the results of a round together, and one that is on
        record, or too late, must not keep back the rest. `only_open`: nor a message that comes with them.
        """
        only_open = only_open or any(place.is_open for place in self.places.values())
        return tuple(
            self.results[call_id].decision(place.id)
            for call_id, place in self.places.items()
            if place.is_open or not only_open
        )


def answered_calls(
    services: Services, results: Mapping[str, ClientResult], *, space: str | None, thread_id: str | None = None
) -> AnsweredCalls:
    """Which of the results answer a question. A call that waits for something else, such as a permission, is never
    answered by a result. Clients send results of the agent's own tools too: those are passed over.
    """
    wanted = [call_id for call_id in results if _ID.fullmatch(call_id)]
    places = question_places(services.rt.store, wanted, space=space) if wanted else {}
    return AnsweredCalls(
        results=results,
        places={
            target: place
            for target, place in places.items()
            if place.why is Why.CLIENT and place.call_id == target and thread_id in {None, place.thread_id}
        },
    )


def plain_yes(schema: dict[str, Any] | None) -> bool | None:
    """The payload of an approval that says nothing else: `true`, as at the command line, where that fits."""
    return True if schema is None or complaint_about(True, schema) is None else None


# The one stream of all faces


@dataclass(frozen=True, kw_only=True, slots=True)
class FollowedTurns:
    """What a request is answered with. `answers`: the questions that it answers.

    `answered`, by turn: those that are no longer open because of it, and the calls in which something comes of that.
    """

    turn_ids: Sequence[str]
    answers: Sequence[str] = ()
    answered: Mapping[str, frozenset[str]] = field(default_factory=dict)

    @classmethod
    def behind(cls, asked: Collection[QuestionPlace], turn_ids: Sequence[str], *, is_stored: bool = True) -> Self:
        """`asked`: what was answered. `is_stored`: the answers are; a request that is repeated may store none."""
        named: dict[str, frozenset[str]] = {}
        for place in asked if is_stored else ():
            ids = {place.id, place.call_id, place.call_above or place.call_id}
            named[place.turn_id] = named.get(place.turn_id, frozenset()) | ids
        return cls(turn_ids=turn_ids, answers=[place.id for place in asked], answered=named)


async def moments_of(streams: TurnStreams, turns: FollowedTurns, *, space: str | None) -> AsyncGenerator[TurnMoment]:
    """The moments of these turns, one after the other, each from its beginning. The end of a turn is left out where
    another follows.

    Answers of a client are stored before their facts can be streamed: a turn that still waits for one is read again.

    Raises NotFound before the first moment.
    """
    for turn_id in turns.turn_ids:
        ids = turns.answered.get(turn_id, frozenset())
        for _ in range(STALE_TRIES):
            is_current, held = not ids, list[TurnMoment]()
            async with aclosing(streams.follow(turn_id, space=space)) as moments:
                async for moment in moments:
                    if not is_current and isinstance(moment, Waiting) and _asks_again(moment, ids):
                        break
                    is_start = isinstance(moment, Queued | Started)  # which may come twice
                    is_current = is_current or begins_again(moment, ids)
                    if turn_id == turns.turn_ids[-1] or not isinstance(moment, TurnEnded):
                        held.append(moment)
                    while held and (is_current or is_start):
                        yield held.pop(0)
                else:
                    break
            await anyio.sleep(STALE_PAUSE)
        else:
            raise Unavailable(_NOT_SEEN)


def _asks_again(moment: Waiting, answered: frozenset[str]) -> bool:
    return not answered.isdisjoint(question.id for question in moment.questions)


async def stream(
    face: Face,
    services: Services,
    caller: Caller,
    turns: FollowedTurns,
    *,
    headers: Mapping[str, str] | None = None,
    refuses: bool = False,
) -> EventStream:
    """What the face sends for the moments of these turns. A client that goes away ends nothing but its stream.

    `refuses`: what fails before the first moment is raised here, while there can be another status than 200.
    """
    stop = ServerStop(services)
    moments = moments_of(streams_of(services), turns, space=caller.reach)
    first = await anext(moments, None) if refuses else None
    try:
        return EventStream(
            _frames(face, first, while_valid(moments, services, caller, stop)),
            services=services,
            caller=caller,
            headers=headers,
            shutdown_event=stop,
        )
    except TooManyRequests:
        await moments.aclose()
        raise


async def _frames(
    face: Face, first: TurnMoment | None, moments: AsyncGenerator[TurnMoment]
) -> AsyncIterator[dict[str, str]]:
    """Never without a last event: a client takes a stream that just ends for a success."""
    for event in face.begin():
        yield face.frame(event)
    failure = (_LOST, "stream_lost")
    try:
        async with aclosing(moments):
            moment = first or await anext(moments, None)
            while moment is not None:
                for event in face.feed(moment):
                    yield face.frame(event)
                moment = None if face.is_over or face.is_cut else await anext(moments, None)
    except ServerStopping:
        failure = (_STOPPING, "server_stopping")
    except Unauthenticated as error:
        failure = (str(error), "unauthenticated")
    except UserError as error:
        log.info("a stream ends early", why=str(error))
        failure = (problems.words_for(None, error), "unavailable" if isinstance(error, Unavailable) else "stream_lost")
    except Exception:
        log.exception("a stream broke off")
    for event in () if face.is_cut else face.fail(*failure):
        yield face.frame(event)
    if face.done is not None and not face.is_cut:
        yield {"data": face.done}
