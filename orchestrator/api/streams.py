"""Server-sent events: what happens to a run, a turn, a thread and the fleet.

Whatever refuses a request does so before the first byte: a generator endpoint has already answered 200. Facts carry
ids; a client that comes back with the last of them in `Last-Event-ID` gets what came behind it. docs/reference/
streams.md describes the events.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, Literal, TypeVar

import anyio.to_thread
import structlog
from fastapi import Depends, Header, Path, Query, Request, Response
from sse_starlette import EventSourceResponse, ServerSentEvent
from sse_starlette.sse import SendTimeoutError
from starlette.exceptions import HTTPException
from starlette.types import Receive, Scope, Send

from chordage.orchestrator import views
from chordage.orchestrator.api.callers import needs_or_ticket
from chordage.orchestrator.api.guards import json_router
from chordage.orchestrator.api.problems import documented, words_for
from chordage.orchestrator.api.services import EventStreams, Services, services_of
from chordage.orchestrator.core import message
from chordage.orchestrator.core.callers import Caller, KeyScope
from chordage.orchestrator.core.errors import TooManyRequests, Unauthenticated, Unavailable
from chordage.orchestrator.core.run_events import RunEvent, position_of, without_texts
from chordage.orchestrator.views.run_events import BEGINNING, Position, TurnPlace, now

log = structlog.get_logger()
T = TypeVar("T")

RETRY = 1000  # milliseconds until a client comes back
PING = 15  # seconds between two comments where nothing happens
SEND_WITHIN = 10  # seconds
ASK_EVERY = 5.0  # seconds between two looks at whether the key of a stream is valid
NOT_VALID_ANY_MORE = "the key of this stream is not valid any more: it was revoked, or has expired"
FAREWELL_WITHIN = 5.0  # seconds for the last comment when the server stops
STREAMS_MAX = 4000  # of a process
NO_STREAMS = "this server has no Redis, and nothing is streamed without it"

Id = Annotated[str, Path(max_length=200, pattern=r"^[0-9A-Za-z-]+$")]
ThreadId = Annotated[str, Path(min_length=1, max_length=400, pattern=r"^[^\x00]+$")]
LastEventId = Annotated[
    str | None,
    Header(description="The id of the last event that came: the stream begins behind it.", max_length=100),
]
After = Annotated[
    str | None,
    Query(max_length=100, description="As `Last-Event-ID`, which comes first. `0-0` is the beginning of the journal."),
]
Until = Annotated[
    Literal["ended", "waiting"],
    Query(description="Whether the stream also ends when the turn waits for decisions."),
]
_EXAMPLE = (
    "retry: 1000\n\n"
    'id: 41-0\nevent: run.started\ndata: {"kind": "run.started", "thread_id": "api:orders", "run_id": "…", '
    '"step": 0, "text": "Where is my order?"}\n\n'
    'event: live.delta\ndata: {"kind": "live.delta", "step": 1, "attempt": 3, "offset": 0, "text": "Let me "}\n\n'
    ": still here\n\n"
)
_STREAM: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "Server-sent events. Facts carry an `id`; notes (`live.*`, `tool.*`, `turn.waiting`) do not.",
        "content": {"text/event-stream": {"example": _EXAMPLE}},
    }
}
_OVER: dict[int | str, dict[str, Any]] = {204: {"description": "There is nothing behind that event: the turn ended."}}

router = json_router("streams")
TicketQuery = Annotated[
    str | None, Query(max_length=200, description="In the place of a key: good once, and for this path alone.")
]
Reader = Annotated[Caller, needs_or_ticket(KeyScope.READ)]


class ServerStop:
    """Takes the place of the event that sse-starlette sets when the server stops. Setting it ends all followers."""

    def __init__(self, services: Services) -> None:
        self._streams = services.events
        self.is_set = False
        self.upcoming: asyncio.Future[Any] | None = None  # what the stream waits for

    def set(self) -> None:
        self.is_set = True
        if self.upcoming is not None:
            self.upcoming.cancel()
        if self._streams is not None:
            self._streams.end_followers()


class ServerStopping(Unavailable):
    """The server stops while a stream is open."""


async def while_valid(
    events: AsyncGenerator[T, None], services: Services, caller: Caller, stop: ServerStop | None = None
) -> AsyncGenerator[T, None]:
    """The events, for as long as the key of the caller is valid: it may be revoked while a stream is open.

    Raises Unauthenticated, and ServerStopping where `stop` is given.
    """
    stop = stop or ServerStop(services)
    upcoming = stop.upcoming = asyncio.ensure_future(anext(events))
    asked_at = time.monotonic()
    try:
        while not stop.is_set:
            rest = asked_at + ASK_EVERY - time.monotonic()
            if rest <= 0:
                if not await anyio.to_thread.run_sync(services.is_valid, caller):
                    raise Unauthenticated(NOT_VALID_ANY_MORE)
                asked_at = time.monotonic()
            elif (await asyncio.wait({upcoming}, timeout=rest))[0] and not stop.is_set:
                try:
                    event = upcoming.result()
                except StopAsyncIteration:
                    return
                yield event
                upcoming = stop.upcoming = asyncio.ensure_future(anext(events))
        raise ServerStopping("the server stops")
    finally:
        upcoming.cancel()
        await asyncio.wait({upcoming})
        if not upcoming.cancelled():
            upcoming.exception()  # it was raised above
        await events.aclose()


class EventStream(EventSourceResponse):
    """One of the open streams of its caller. If its client does not read it any more, it ends without an error of ours.

    Raises TooManyRequests where the caller has as many open as it may have.
    """

    def __init__(
        self, content: Any, status_code: int = 200, *, services: Services, caller: Caller, **more: Any
    ) -> None:  # FastAPI reads the default of `status_code`
        services.stream_slots.enter(caller)
        self._leave = partial(services.stream_slots.leave, caller)
        usual = {
            "sep": "\n", "ping": PING, "send_timeout": SEND_WITHIN, "shutdown_grace_period": FAREWELL_WITHIN,
            "ping_message_factory": lambda: ServerSentEvent(comment="still here", sep="\n"),
        }  # fmt: skip
        try:
            super().__init__(content, status_code, **{**usual, **more})
        except BaseException:
            self._leave()
            raise

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        except SendTimeoutError:
            log.info("a stream was not read in time", path=scope["path"], seconds=SEND_WITHIN)
        finally:
            self._leave()


@dataclass(frozen=True, kw_only=True, slots=True)
class Begun:
    """A stream that may be sent: everything that could refuse it has been asked."""

    services: Services
    caller: Caller
    streams: EventStreams
    after: Position | None

    @property
    def shows_texts(self) -> bool:
        return KeyScope.PAYLOADS in self.caller.scopes


def check_room(services: Services) -> None:
    """Raises TooManyRequests."""
    if services.events is not None and services.events.followers >= STREAMS_MAX:
        raise TooManyRequests(f"this server has {STREAMS_MAX} streams, and sends no more: try again later", 5.0)


def begun(
    request: Request,
    caller: Reader,
    last_event_id: LastEventId = None,
    after: After = None,
    ticket: TicketQuery = None,  # noqa: ARG001 - documented here, read with the caller
) -> Begun:
    services = services_of(request)
    check_room(services)
    if services.events is None:
        raise Unavailable(NO_STREAMS)
    given = last_event_id or after
    position = None if given is None else _position(given)
    if position is not None and not views.is_known(services.rt.store, position):
        start = views.first_event(services.rt.store)
        raise HTTPException(410, f"there is no event {given} any more: start again without it, or behind {start}")
    return Begun(services=services, caller=caller, streams=services.events, after=position)


def _position(event_id: str) -> Position:
    try:
        return position_of(event_id)
    except ValueError as error:
        raise HTTPException(400, f"Last-Event-ID: {error}; leave it out to start at the beginning") from error


Stream = Annotated[Begun, Depends(begun)]


def run_place(request: Request, run_id: Id, caller: Reader) -> TurnPlace:
    return views.turn_of_run(services_of(request).rt.store, run_id, space=caller.reach)


def turn_place(request: Request, turn_id: Id, caller: Reader) -> TurnPlace:
    return views.place_of_turn(services_of(request).rt.store, turn_id, space=caller.reach)


@router.get(
    "/runs/{run_id}/events",
    summary="Follow a run",
    response_class=EventStream,
    responses={**_STREAM, **_OVER, **documented(400, 401, 403, 404, 410, 421, 422, 429, 500, 503)},
)
def follow_run(
    request: Request, stream: Stream, place: Annotated[TurnPlace, Depends(run_place)], until: Until = "ended"
) -> Response:
    assert place.run_id is not None
    return _of_turn(request, stream, place, stream.streams.run_events(place.run_id, stream.after or BEGINNING), until)


@router.get(
    "/turns/{turn_id}/events",
    summary="Follow a turn",
    description="From the moment it was queued. A message that was merged or steered into another turn is followed "
    "there.",
    response_class=EventStream,
    responses={**_STREAM, **_OVER, **documented(400, 401, 403, 404, 410, 421, 422, 429, 500, 503)},
)
def follow_turn(
    request: Request, stream: Stream, place: Annotated[TurnPlace, Depends(turn_place)], until: Until = "ended"
) -> Response:
    return _of_turn(request, stream, place, stream.streams.turn_events(place, stream.after or BEGINNING), until)


@router.get(
    "/threads/{thread_id:path}/events",
    summary="Follow a thread",
    description="From now on, or behind an event. It has no end.",
    response_class=EventStream,
    responses={**_STREAM, **documented(400, 401, 403, 404, 410, 421, 422, 429, 500, 503)},
)
def follow_thread(request: Request, stream: Stream, thread_id: ThreadId, caller: Reader) -> Response:
    store = services_of(request).rt.store
    full_id = views.thread_named(store, thread_id, space=caller.reach, own=caller.space)
    return _answer(request, stream, stream.streams.thread_events(full_id, _from_now(request, stream)))


@router.get(
    "/events",
    summary="Follow the fleet",
    description="What happens to turns, runs, questions and deliveries on the threads that the caller sees, without "
    "texts. From now on, or behind an event. It has no end.",
    response_class=EventStream,
    responses={**_STREAM, **documented(400, 401, 403, 410, 421, 422, 429, 500, 503)},
)
def follow_fleet(request: Request, stream: Stream, caller: Reader) -> Response:
    reach = caller.reach
    sees = None if reach is None else lambda event: message.holds(reach, event.thread_id or "")
    return _answer(request, stream, stream.streams.fleet_events(_from_now(request, stream)), sees=sees)


def _from_now(request: Request, stream: Begun) -> Position:
    """Now is when the request came, not when its stream begins."""
    return now(services_of(request).rt.store) if stream.after is None else stream.after


def _of_turn(
    request: Request, stream: Begun, place: TurnPlace, events: AsyncGenerator[RunEvent, None], until: str
) -> Response:
    store = services_of(request).rt.store
    if stream.after is not None and place.is_done and views.ended_by(store, place, stream.after):
        return Response(status_code=204)
    return _answer(request, stream, events, is_last=_is_waiting if until == "waiting" else None)


def _is_waiting(event: RunEvent) -> bool:
    return event.kind == "turn.waiting"


def _answer(
    request: Request,
    stream: Begun,
    events: AsyncGenerator[RunEvent, None],
    *,
    sees: Callable[[RunEvent], bool] | None = None,
    is_last: Callable[[RunEvent], bool] | None = None,
) -> Response:
    return EventStream(
        _sent(request, stream, events, sees, is_last),
        services=stream.services,
        caller=stream.caller,
        shutdown_event=ServerStop(stream.services),
    )


async def _sent(
    request: Request,
    stream: Begun,
    events: AsyncGenerator[RunEvent, None],
    sees: Callable[[RunEvent], bool] | None,
    is_last: Callable[[RunEvent], bool] | None,
) -> AsyncIterator[ServerSentEvent]:
    """A client that sees a stream end without its last event comes back behind the last fact."""
    yield ServerSentEvent(retry=RETRY, sep="\n")
    try:
        async with aclosing(while_valid(events, stream.services, stream.caller)) as source:
            async for event in source:
                shown = event if stream.shows_texts else without_texts(event)
                if shown is not None and (sees is None or sees(event)):
                    yield as_sent(shown)
                if is_last is not None and is_last(event):
                    return
    except stream.streams.too_slow:
        yield _comment("you are too slow: come back behind the last event")
    except (Unavailable, Unauthenticated) as error:
        log.info("a stream ends early", path=request.url.path, why=str(error))
        yield _comment(words_for(stream.caller, error))
    except Exception:
        log.exception("a stream failed", path=request.url.path)
        yield _comment("the server failed: come back behind the last event")


def as_sent(event: RunEvent) -> ServerSentEvent:
    about = {
        "kind": event.kind, "thread_id": event.thread_id, "turn_id": event.turn_id, "run_id": event.run_id,
        "agent": event.agent, "step": event.step, "at": None if event.at is None else event.at.isoformat(),
    }  # fmt: skip
    data = {**event.data, **{name: value for name, value in about.items() if value is not None}}
    return ServerSentEvent(
        data=json.dumps(data, ensure_ascii=False), event=event.kind, id=event.id, sep="\n"
    )  # fmt: skip


def _comment(text: str) -> ServerSentEvent:
    return ServerSentEvent(comment=text, sep="\n")
