"""The path of the MCP server, `/mcp`: who is calling, and the package `mcp`, which is imported by the first request.

The protocol runs in a task of its own until the server stops. Nothing of a host is kept between two of its requests.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from importlib.util import find_spec
from typing import TYPE_CHECKING

import anyio.to_thread
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from chordage.orchestrator.api import problems
from chordage.orchestrator.api.callers import known_caller
from chordage.orchestrator.api.services import Services
from chordage.orchestrator.core.callers import Caller

if TYPE_CHECKING:  # it needs the package
    from chordage.orchestrator.api.mcp_server import HostRequests

PATH = "/mcp"
MISSING = "the server has no package `mcp`: the operator installs it with `pip install 'chordage[mcp]'`"


def _has_package() -> bool:
    return find_spec("mcp") is not None


class McpEndpoint:
    def __init__(self, services: Services, *, has_package: Callable[[], bool] = _has_package) -> None:
        self._services = services
        self._has_package = has_package
        self._starting = asyncio.Lock()
        self._requests: HostRequests | None = None
        self._running: asyncio.Task[None] | None = None
        self._stop = asyncio.Event()

    @property
    def route(self) -> Route:
        return Route(PATH, endpoint=self, methods=["POST"], include_in_schema=False)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if not self._has_package():
            await problems.answer(501, "not_installed", MISSING)(scope, receive, send)
            return
        scope[problems.CALLER] = await anyio.to_thread.run_sync(self._caller, scope)
        requests = await self._started()
        await requests.handle(scope, receive, send)

    def _caller(self, scope: Scope) -> Caller:
        """Raises Unauthenticated and TooManyRequests."""
        return known_caller(self._services, scope)[0]

    async def _started(self) -> HostRequests:
        async with self._starting:
            if self._requests is None:
                self._requests = await anyio.to_thread.run_sync(self._new)
                is_ready = asyncio.Event()
                self._running = asyncio.create_task(self._requests.run(is_ready, self._stop))
                await is_ready.wait()
            return self._requests

    def _new(self) -> HostRequests:
        from chordage.orchestrator.api.mcp_server import HostRequests

        return HostRequests(self._services)

    async def close(self) -> None:
        self._stop.set()
        if self._running is not None:
            await self._running
