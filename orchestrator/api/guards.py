"""What a request passes before the API or a webhook sees it: its host, the page it comes from, the size of its body.

A browser reaches a server on its own machine for every page it shows. So the Host must be a name of this server, a page
that says where it comes from must be ours, and a body for the API must say that it is JSON, which no HTML form can.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterator, Mapping
from typing import Any

from fastapi import APIRouter, Request
from fastapi.dependencies.models import Dependant
from fastapi.routing import APIRoute
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from chordage.orchestrator.api import problems
from chordage.orchestrator.core import bounds
from chordage.orchestrator.core.errors import InvalidMessage, alternatives
from chordage.orchestrator.core.hosts import Hosts
from chordage.orchestrator.loops.server import BodyBroken, BodyRefused, BodyTooLarge, BodyTooSlow, RequestBodies

READS = frozenset({"GET", "HEAD", "OPTIONS", "TRACE"})
BODY_BYTES = "chordage.body_bytes"  # its key in the ASGI scope
RATES = "chordage.rates"  # of the caller, as headers: their key in the ASGI scope
NO_BODY = READS | {"DELETE"}  # no form and no `no-cors` request of a page can delete


class PageGuard:
    def __init__(self, app: ASGIApp, hosts: Hosts) -> None:
        self._app = app
        self._hosts = hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        refusal = self._refusal(scope) if scope["type"] == "http" else None
        await (refusal or self._app)(scope, receive, send)

    def _refusal(self, scope: Scope) -> Response | None:
        host, origin = _values(scope, b"host"), _values(scope, b"origin")
        if len(host) != 1 or not self._hosts.takes(host[0]):
            called = f"{host[0]!r:.200}" if len(host) == 1 else f"{len(host)} Host headers"
            detail = (
                f"this server is not called {called}: use a name of this machine, or the operator names it in "
                "CHORDAGE_HOSTS"
            )
            return problems.answer(421, "misdirected", detail, headers=problems.CLOSE)
        if _values(scope, b"content-length") and _values(scope, b"transfer-encoding"):
            # A proxy that believes the other of the two would take the rest of the body for a request.
            detail = "the request has both Content-Length and Transfer-Encoding: send one of them"
            return problems.answer(400, "bad_request", detail, headers=problems.CLOSE)
        if origin and not (len(origin) == 1 and self._hosts.takes_page(origin[0], host[0])):
            detail = "a page of another site sent this request: the operator can name its host in CHORDAGE_HOSTS"
            return problems.answer(403, "foreign_origin", detail, headers=problems.CLOSE)
        return None


class BodyLimit:
    """Reads the whole body within its bounds before the API sees any of it. A body that is too deep is not parsed."""

    def __init__(self, app: ASGIApp, limit: int, bodies: RequestBodies) -> None:
        self._app = app
        self._limit = limit
        self._bodies = bodies

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        try:
            body = await self._bodies.read(headers_of(scope), receive, self._limit)
        except BodyBroken:
            return  # the connection is closed
        except BodyRefused as error:
            await self._refusal(error)(scope, receive, send)
            return
        if bounds.is_too_deep(body):
            await problems.answer(400, "bad_request", f"the body: {bounds.TOO_DEEP}")(scope, receive, send)
        else:
            scope[BODY_BYTES] = len(body)
            await self._app(scope, _replayed(body, receive), send)

    def _refusal(self, error: BodyRefused) -> Response:
        match error:
            case BodyTooLarge():
                detail = f"the body is larger than {self._limit} bytes"
                return problems.answer(413, "too_large", detail, headers=problems.CLOSE)
            case BodyTooSlow():
                return problems.answer(408, "request_timeout", "the body did not come in time", headers=problems.CLOSE)
            case _:
                detail = "too many bodies are on their way: try again; with a dedupe_key that is safe"
                return problems.answer(503, "unavailable", detail, headers=problems.CLOSE | problems.LATER)


class JsonRoute(APIRoute):
    """A route of the API: a request that changes something says that it sends JSON, errors are problem documents, and
    each answer has the rates of its caller, whatever app the route is in.
    """

    takes_unknown_parameters = False

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def handle_json(request: Request) -> Response:
            if request.method not in NO_BODY and not _is_json(_values(request.scope, b"content-type")):
                wanted = "send it with Content-Type: application/json"
                detail = f"the body has to be JSON, and say so: {wanted}, also where the request has no body"
                return problems.answer(415, "unsupported_media_type", detail)
            try:
                response = await handle(request)
            except problems.KNOWN as error:
                response = problems.answer_to(request, error)
            return with_rates(request, response)

        return handle_json


def json_router(subject: str, route_class: type[JsonRoute] = JsonRoute) -> APIRouter:
    """For the routes of a subject, as the OpenAPI document groups them."""
    return APIRouter(route_class=route_class, tags=[subject], generate_unique_id_function=lambda route: route.name)


def check_parameters(request: Request) -> None:
    """A filter that is misspelt would list everything. Raises InvalidMessage."""
    route = request.scope.get("route")
    if not request.query_params or not isinstance(route, JsonRoute) or route.takes_unknown_parameters:
        return
    known = set(_query_names(route.dependant))
    for name in sorted(request.query_params.keys() - known):
        raise InvalidMessage(f"{name}: there is no such parameter; {alternatives(name, known)}", field=name)


def _query_names(dependant: Dependant) -> Iterator[str]:
    yield from (parameter.alias for parameter in dependant.query_params)
    for needed in dependant.dependencies:
        yield from _query_names(needed)


def with_rates(request: Request, response: Response) -> Response:
    """Not by the dependency that knows the caller: its headers are lost where an endpoint raises, or makes its own
    response, as streams do.
    """
    for name, value in request.scope.get(RATES, {}).items():
        response.headers.setdefault(name, value)
    return response


def headers_of(scope: Mapping[str, Any]) -> dict[str, str]:
    """Names in lower case. A header that is given twice has both values, with a comma between them, as HTTP has it."""
    headers: dict[str, str] = {}
    for raw_name, raw_value in scope["headers"]:
        name, value = raw_name.decode("latin-1").lower(), raw_value.decode("latin-1")
        headers[name] = f"{headers[name]}, {value}" if name in headers else value
    return headers


def size_of(scope: Mapping[str, Any], headers: Mapping[str, str]) -> int:
    """Of the body: as it came, or, in a server of others, as it is announced."""
    announced = headers.get("content-length", "")
    size: int = scope.get(BODY_BYTES) or (int(announced) if announced.isdecimal() and len(announced) < 12 else 0)
    return size


def _values(scope: Scope, wanted: bytes) -> list[str]:
    return [value.decode("latin-1") for name, value in scope["headers"] if name.lower() == wanted]


def _is_json(content_types: list[str]) -> bool:
    kind = content_types[0].partition(";")[0].strip().lower() if len(content_types) == 1 else ""
    return kind == "application/json" or (kind.startswith("application/") and kind.endswith("+json"))


def _replayed(body: bytes, receive: Receive) -> Receive:
    events: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def next_event() -> Message:
        return events.pop() if events else await receive()

    return next_event
