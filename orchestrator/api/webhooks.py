"""The HTTP endpoint of webhooks, in front of the API: all paths below /hooks/.

An unknown sender gets the same answer whatever was wrong; a sender whose signature is right learns what to change.
"""

from __future__ import annotations

from collections.abc import Mapping

import anyio.to_thread
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from chordage.orchestrator.api import problems
from chordage.orchestrator.api.guards import headers_of
from chordage.orchestrator.core import webhooks
from chordage.orchestrator.core.webhooks import DeliveryOutcome, WebhookBinding
from chordage.orchestrator.gateways.webhooks.bindings import Closed, WrongMethod
from chordage.orchestrator.loops import hook
from chordage.orchestrator.loops.hook import DeliveryResult, WebhookReceiver
from chordage.orchestrator.loops.server import (
    BodyBroken,
    BodyCrowdedOut,
    BodyRefused,
    BodyTooLarge,
    BodyTooSlow,
    RequestBodies,
)

_REFUSED_BODIES: Mapping[type[BodyRefused], DeliveryOutcome] = {
    BodyTooLarge: DeliveryOutcome.TOO_LARGE,
    BodyTooSlow: DeliveryOutcome.TOO_SLOW,
    BodyCrowdedOut: DeliveryOutcome.CROWDED,
    BodyBroken: DeliveryOutcome.BROKEN,
}
_LATER = "it cannot be taken now; send it again later"
_REFUSALS: Mapping[DeliveryOutcome, tuple[int, str, str, Mapping[str, str]]] = {
    DeliveryOutcome.UNSIGNED: (401, "unauthorized", "a signature is needed", {"WWW-Authenticate": "Signature"}),
    DeliveryOutcome.WRONG: (403, "forbidden", "the signature is not right", {}),
    DeliveryOutcome.STALE: (403, "forbidden", "the signature is not right", {}),
    DeliveryOutcome.TOO_LARGE: (413, "too_large", "the body is too large", problems.CLOSE),
    DeliveryOutcome.TOO_SLOW: (408, "request_timeout", "the body did not come in time", problems.CLOSE),
    DeliveryOutcome.CROWDED: (503, "unavailable", _LATER, problems.LATER | problems.CLOSE),
    DeliveryOutcome.BROKEN: (422, "invalid", "the body is not whole", {}),  # the connection is closed: not sent
    DeliveryOutcome.UNAVAILABLE: (503, "unavailable", _LATER, problems.LATER),
    DeliveryOutcome.FAILED: (503, "unavailable", _LATER, problems.LATER),
}  # fmt: skip


class WebhookEndpoint:
    def __init__(self, app: ASGIApp, receiver: WebhookReceiver, bodies: RequestBodies) -> None:
        self._app = app
        self._receiver = receiver
        self._bodies = bodies

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = _path_of(scope)
        if scope["type"] != "http" or not path.startswith(webhooks.PREFIX):
            await self._app(scope, receive, send)
            return
        response = await self._answer(path, scope, receive)
        await response(scope, receive, send)

    async def _answer(self, path: str, scope: Scope, receive: Receive) -> Response:
        bindings = self._receiver.bindings
        if bindings.is_due:
            await anyio.to_thread.run_sync(bindings.refresh, limiter=self._receiver.threads)
        match bindings.find(path, scope["method"]):
            case None:  # the same words as the API has for a path that it does not know
                return problems.nothing_at(path)
            case Closed():
                return _refusal(DeliveryOutcome.UNAVAILABLE)
            case WrongMethod(allowed):
                return problems.wrong_method(scope["method"], allowed)
            case WebhookBinding() as binding:
                return await self._deliver(binding, scope, receive)

    async def _deliver(self, binding: WebhookBinding, scope: Scope, receive: Receive) -> Response:
        headers = headers_of(scope)
        try:
            body = await self._bodies.read(headers, receive, binding.max_bytes)
        except BodyRefused as error:
            outcome = _REFUSED_BODIES[type(error)]
            self._receiver.stats.count(binding.name, outcome)
            return _refusal(outcome)
        receiver = self._receiver
        result = await anyio.to_thread.run_sync(
            hook.receive, receiver, binding, headers, body, limiter=receiver.threads
        )
        return response_to(result)


def response_to(result: DeliveryResult) -> Response:
    match result:
        case DeliveryResult(outcome=DeliveryOutcome.IGNORED):
            return Response(status_code=204)
        case DeliveryResult(outcome=DeliveryOutcome.ACCEPTED, admitted=admitted) if admitted is not None:
            # No Location: a caller of the API cannot read turns of webhooks.
            return JSONResponse({"turn_id": admitted.turn_id, "thread_id": admitted.thread_id}, status_code=202)
        case DeliveryResult(outcome=DeliveryOutcome.REPLAYED, admitted=admitted) if admitted is not None:
            detail = f"this delivery was taken before: it is turn {admitted.turn_id}"
            return problems.answer(409, "replayed", detail, turn_id=admitted.turn_id)
        case DeliveryResult(error=error) if error is not None:
            return problems.refused(error)
        case _:
            return _refusal(result.outcome)


def _refusal(outcome: DeliveryOutcome) -> Response:
    status, kind, detail, headers = _REFUSALS[outcome]
    return problems.answer(status, kind, detail, headers=headers)


def _path_of(scope: Scope) -> str:
    """Without the prefix that a proxy has put before it."""
    path: str = scope.get("path", "")
    return path.removeprefix(scope.get("root_path", ""))
