"""Keeps foreign web pages away: in front of everything, the API and web hooks alike.

A browser reaches a server on its own machine for every page it shows. So the Host must be one that we are called, a
page that says where it is from must be ours, and a body for the API must say that it is JSON, which no form can.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

from fastapi import Request
from fastapi.routing import APIRoute
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from chordage.orchestrator.core import webhooks
from chordage.orchestrator.core.deliveries import Hosts
from chordage.orchestrator.loops import problems

READS = frozenset({"GET", "HEAD", "OPTIONS", "TRACE"})
CLOSE = {"Connection": "close"}  # what comes behind is not read


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
            return problems.answer(421, "misdirected", _wrong_host(host), headers=CLOSE)
        if origin and not (len(origin) == 1 and self._hosts.takes_page(origin[0], host[0])):
            told = (
                "a page of another site asks for this, and none may: the operator can name its host in CHORDAGE_HOSTS"
            )
            return problems.answer(403, "foreign_origin", told, headers=CLOSE)
        return None


class JsonRoute(APIRoute):
    """A route of the API: what changes something says that it sends JSON."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def handle_json(request: Request) -> Response:
            if request.method in READS or _is_json(_values(request.scope, b"content-type")):
                return await handle(request)
            told = "the body has to be JSON, and say so: send it with Content-Type: application/json"
            return problems.answer(415, "unsupported_media_type", told)

        return handle_json


def path_of(scope: Scope) -> str:
    """Without what a proxy has put before it."""
    path: str = scope["path"]
    return path.removeprefix(scope.get("root_path", ""))


def is_hook(scope: Scope) -> bool:
    return path_of(scope).startswith(webhooks.PREFIX)


def _values(scope: Scope, wanted: bytes) -> list[str]:
    return [value.decode("latin-1") for name, value in scope["headers"] if name.lower() == wanted]


def _wrong_host(given: list[str]) -> str:
    told = f"{given[0]!r:.200}" if len(given) == 1 else f"{len(given)} Host headers"
    return f"this server is not called {told}: use a name of this machine, or the operator names it in CHORDAGE_HOSTS"


def _is_json(content_types: list[str]) -> bool:
    kind = content_types[0].partition(";")[0].strip().lower() if len(content_types) == 1 else ""
    return kind == "application/json" or (kind.startswith("application/") and kind.endswith("+json"))
