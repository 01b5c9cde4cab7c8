"""The door for web hooks, in front of the API: what is not for it goes on untouched.

A delivery is read as far as its binding allows, and no longer than a body may take. Its signature is looked at before
anything else of it, and then it is a message like any other: stored and answered with 202, and carried out by workers.
Who has not shown who he is learns nothing but that he has not.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Protocol

import anyio
import anyio.to_thread
import structlog
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from chordage.orchestrator.core import signatures, webhooks
from chordage.orchestrator.core.message import TurnRequest
from chordage.orchestrator.core.signatures import Verdict
from chordage.orchestrator.core.webhooks import Binding, Outcome
from chordage.orchestrator.gateways.hooks import decoders
from chordage.orchestrator.gateways.hooks.book import Closed, HookBook, WrongMethod
from chordage.orchestrator.loops import hook_answers
from chordage.orchestrator.loops.coming import Bodies, Broken, Crowded, Refused, TooLarge, TooSlow
from chordage.orchestrator.loops.pages import is_hook, path_of

log = structlog.get_logger()

THREADS = 32  # the API has its own


class Admission(Protocol):
    @property
    def turn_id(self) -> str: ...
    @property
    def thread_id(self) -> str: ...
    @property
    def duplicate(self) -> bool: ...


class Tally(Protocol):
    def note(self, name: str, outcome: Outcome, last: dict[str, Any] | None = None) -> None: ...
    def close(self) -> None: ...


@dataclass(frozen=True, kw_only=True, slots=True)
class Hooks:
    book: HookBook
    accept: Callable[[TurnRequest], Admission]
    tally: Tally
    clock: Callable[[], float] = time.time
    threads: anyio.CapacityLimiter = field(default_factory=lambda: anyio.CapacityLimiter(THREADS))


@dataclass(frozen=True, kw_only=True, slots=True)
class Arrived:
    headers: Mapping[str, str]
    body: bytes


_UNREAD: Mapping[type[Refused], Outcome] = {
    TooLarge: Outcome.TOO_LARGE,
    TooSlow: Outcome.TOO_SLOW,
    Crowded: Outcome.CROWDED,
    Broken: Outcome.BROKEN,
}


class HookDoor:
    def __init__(self, app: ASGIApp, door: Hooks, bodies: Bodies) -> None:
        self._app = app
        self._door = door
        self._bodies = bodies

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not is_hook(scope):
            await self._app(scope, receive, send)
            return
        response = await self._answer(path_of(scope), scope, receive)
        await response(scope, receive, send)

    async def _answer(self, path: str, scope: Scope, receive: Receive) -> Response:
        book = self._door.book
        if book.is_due:
            await anyio.to_thread.run_sync(book.look, limiter=self._door.threads)
        match book.find(path, scope["method"]):
            case None:
                return hook_answers.unknown()
            case Closed():
                return hook_answers.refused(Outcome.UNAVAILABLE)
            case WrongMethod(allowed):
                return hook_answers.wrong_method(allowed)
            case Binding() as binding:
                return await self._receive(binding, scope, receive)

    async def _receive(self, binding: Binding, scope: Scope, receive: Receive) -> Response:
        headers = _headers(scope)
        try:
            body = await self._bodies.read(headers, receive, binding.max_bytes)
        except Refused as error:
            outcome = _UNREAD[type(error)]
            self._door.tally.note(binding.name, outcome)
            return hook_answers.refused(outcome)
        request = Arrived(headers=headers, body=body)
        return await anyio.to_thread.run_sync(take, self._door, binding, request, limiter=self._door.threads)


def take(door: Hooks, binding: Binding, request: Arrived) -> Response:
    match signatures.verdict(binding.seal, request.headers, request.body, door.clock()):
        case Verdict.RIGHT:
            return _take_signed(door, binding, request)
        case refusal:
            door.tally.note(binding.name, outcome := Outcome(refusal.value))
            return hook_answers.refused(outcome)


def _take_signed(door: Hooks, binding: Binding, request: Arrived) -> Response:
    try:
        key = webhooks.delivery_key(binding.seal, request.headers, request.body)
        once = webhooks.once_of(binding.seal, request.headers, request.body)
        said = decoders.decode(binding, request.headers, request.body)
        admitted = None if said is None else door.accept(webhooks.request_of(binding, said, key, once))
    except Exception as error:
        outcome, response = hook_answers.of_error(binding, error)
        door.tally.note(binding.name, outcome)
        return response
    if admitted is None:
        door.tally.note(binding.name, Outcome.IGNORED)
        return hook_answers.ignored()
    return _admitted(door, binding, admitted, key)


def _admitted(door: Hooks, binding: Binding, admitted: Admission, key: str | None) -> Response:
    if admitted.duplicate:
        door.tally.note(binding.name, Outcome.REPLAYED)
        return hook_answers.replayed(admitted.turn_id)
    at = datetime.fromtimestamp(door.clock(), UTC).isoformat(timespec="seconds")
    door.tally.note(binding.name, Outcome.ACCEPTED, {"at": at, "turn": admitted.turn_id, "delivery": key})
    return hook_answers.accepted(admitted.turn_id, admitted.thread_id)


def _headers(scope: Scope) -> dict[str, str]:
    """One that is given twice is one value with a comma in it, as HTTP has it: no signature is right then."""
    found: dict[str, str] = {}
    for raw_name, raw_value in scope["headers"]:
        name, value = raw_name.decode("latin-1").lower(), raw_value.decode("latin-1")
        found[name] = f"{found[name]}, {value}" if name in found else value
    return found
