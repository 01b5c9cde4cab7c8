"""What the endpoints for clients of other protocols share: their streams, and their errors as plain JSON."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from http import HTTPStatus
from typing import Annotated, Any, Protocol

import anyio
import structlog
from pydantic import AfterValidator, BaseModel, ConfigDict, Field
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from chordage.orchestrator.api import problems
from chordage.orchestrator.api.bodies import storable
from chordage.orchestrator.api.problems import Problem
from chordage.orchestrator.api.services import Services, TurnStreams
from chordage.orchestrator.api.streams import EventStream, while_valid
from chordage.orchestrator.core.approvals import DecisionRequest, Why
from chordage.orchestrator.core.callers import Caller, KeyScope
from chordage.orchestrator.core.client_tools import ClientResult, ClientTool
from chordage.orchestrator.core.errors import Forbidden, Unauthenticated, Unavailable, UserError
from chordage.orchestrator.faces.moments import TurnEnded, TurnMoment
from chordage.orchestrator.gateways.schemas import complaint_about
from chordage.orchestrator.views.lookups import QuestionPlace, question_places

log = structlog.get_logger()

PATHS = ("/agui/", "/ai/")
PLAIN = "application/json"
SEPARATOR = "\n"  # the AG-UI client finds no event in a stream with CRLF
PREFETCH = 64  # moments that may wait for a slow client
_ID = re.compile(r"[0-9A-Za-z-]{1,200}")

_AGAIN = "The turn continues: send the same request again to read it from its start."
_LOST = f"The stream broke off on the side of the server. {_AGAIN}"
_STOPPING = f"The server stops. {_AGAIN}"


class Face(Protocol):
    is_over: bool

    def begin(self) -> list[dict[str, Any]]: ...
    def feed(self, moment: TurnMoment) -> list[dict[str, Any]]: ...
    def fail(self, message: str, code: str) -> list[dict[str, Any]]: ...


class _Stopping(Exception):
    """The server stops."""


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
    if services.streams is None:
        raise Unavailable("nothing is streamed without Redis")
    return services.streams


def check_agent(caller: Caller, agent: str) -> None:
    if caller.agents is not None and agent not in caller.agents:
        raise Forbidden(f"the key {caller.id} does not address the agent {agent!r}")


def check_decides(caller: Caller) -> None:
    """A request may carry decisions, and then needs a scope that it does not need otherwise."""
    if KeyScope.DECIDE not in caller.scopes:
        scope = KeyScope.DECIDE.value
        raise Forbidden(f"the key {caller.id} does not have the scope {scope!r}", scope=scope)


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
    def questions(self) -> list[str]:
        return [place.id for place in self.places.values()]

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


def stream(
    face: Face,
    services: Services,
    caller: Caller,
    turn_ids: Sequence[str],
    *,
    done: str | None = None,
    headers: Mapping[str, str] | None = None,
) -> EventStream:
    """The moments of these turns, one after the other, as the face shows them. `done` is sent behind the last event.

    A client that goes away ends nothing but its stream.
    """
    stopping = anyio.Event()
    moments = while_valid(_following(streams_of(services), turn_ids, caller.reach), services, caller)
    return EventStream(
        _frames(face, _prefetched(moments, stopping), done),
        services=services,
        caller=caller,
        headers=headers,
        shutdown_event=stopping,
    )


async def _following(streams: TurnStreams, turn_ids: Sequence[str], space: str | None) -> AsyncGenerator[TurnMoment]:
    """The end of a turn is left out where another follows."""
    *first, last = turn_ids
    for turn_id in first:
        async for moment in streams.follow(turn_id, space=space):
            if not isinstance(moment, TurnEnded):
                yield moment
    async for moment in streams.follow(last, space=space):
        yield moment


async def _frames(face: Face, moments: AsyncGenerator[TurnMoment], done: str | None) -> AsyncIterator[dict[str, str]]:
    """Never without a last event: a client takes a stream that just ends for a success."""
    for event in face.begin():
        yield _frame(event)
    try:
        async with aclosing(moments):
            async for moment in moments:
                for event in face.feed(moment):
                    yield _frame(event)
                if face.is_over:
                    break
        failure = (_LOST, "stream_lost")
    except _Stopping:
        failure = (_STOPPING, "server_stopping")
    except Unauthenticated as error:
        failure = (str(error), "unauthenticated")
    except UserError as error:
        log.info("a stream ends early", why=str(error))
        failure = (problems.words_for(None, error), "unavailable" if isinstance(error, Unavailable) else "stream_lost")
    except Exception:
        log.exception("a stream broke off")
        failure = (_LOST, "stream_lost")
    for event in face.fail(*failure):
        yield _frame(event)
    if done is not None:
        yield {"data": done}


def _frame(event: dict[str, Any]) -> dict[str, str]:
    return {"data": json.dumps(event, separators=(",", ":"))}


async def _prefetched(moments: AsyncGenerator[TurnMoment], stopping: anyio.Event) -> AsyncGenerator[TurnMoment]:
    """The moments, until the server stops: then _Stopping is raised."""
    queue: asyncio.Queue[TurnMoment | Exception | None] = asyncio.Queue(PREFETCH)

    async def read() -> None:
        try:
            async with aclosing(moments):
                async for moment in moments:
                    await queue.put(moment)
            await queue.put(None)
        except Exception as error:
            await queue.put(error)

    async def watch() -> None:
        await stopping.wait()
        await queue.put(_Stopping())

    tasks = [asyncio.create_task(read()), asyncio.create_task(watch())]
    try:
        while (item := await queue.get()) is not None:
            if isinstance(item, Exception):
                raise item
            yield item
    finally:
        for task in tasks:
            task.cancel()
