"""How a session reaches its server: a program's standard input and output, or HTTP. Either knows what went wrong."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any, Protocol

import httpx2
from mcp.client.stdio import StdioServerParameters, stdio_client
from mcp.client.streamable_http import streamable_http_client

from chordage.orchestrator.gateways.mcp.address import Address, Endpoint, Environ, Program
from chordage.orchestrator.gateways.mcp.last_words import LastWords
from chordage.orchestrator.gateways.mcp.watched import Watched
from chordage.orchestrator.gateways.proxies import proxy_of

Streams = tuple[Any, Any]  # in and out, as the package wants them

CONNECT_SECONDS = 10.0  # for one TCP connection; the whole way there has a limit of its own


class Wire(Protocol):
    def open(self, on_end: Callable[[], None]) -> AbstractAsyncContextManager[Streams]: ...
    async def words(self) -> str:
        """What the server's side has to say to a failure; empty where that is nothing."""
        ...

    def was_never_sent(self, error: BaseException) -> bool: ...


def wire_to(address: Address, environ: Environ, room: Path) -> Wire:
    return ProgramWire(address, environ, room) if isinstance(address, Program) else HttpWire(address, environ)


class ProgramWire:
    """A process of its own that ends when its input does: also where this process is killed."""

    def __init__(self, program: Program, environ: Environ, room: Path) -> None:
        self._parameters = StdioServerParameters(
            command=program.command,
            args=list(program.args),
            env=program.variables(environ),
            cwd=room / program.cwd,
        )
        self._last = LastWords(program.command)

    @asynccontextmanager
    async def open(self, on_end: Callable[[], None]) -> AsyncIterator[Streams]:
        async with self._last.heard() as errlog, stdio_client(self._parameters, errlog) as (incoming, outgoing):
            errlog.close()  # the server has it now; with ours open nobody would see that it has ended
            yield Watched(incoming, on_end), outgoing

    async def words(self) -> str:
        return await self._last.words()

    def was_never_sent(self, error: BaseException) -> bool:
        return isinstance(error, OSError)


class HttpWire:
    def __init__(self, endpoint: Endpoint, environ: Environ) -> None:
        self._url = endpoint.target(environ)
        self._headers = {"User-Agent": "chordage", **endpoint.sent_headers(environ)}
        url = httpx2.URL(self._url)
        self._proxy = proxy_of(environ, url.scheme, url.host)
        self._status = ""

    @asynccontextmanager
    async def open(self, on_end: Callable[[], None]) -> AsyncIterator[Streams]:
        async with (
            self._client() as client,
            streamable_http_client(self._url, http_client=client) as (incoming, outgoing),
        ):
            yield Watched(incoming, on_end), outgoing

    async def words(self) -> str:
        return self._status

    def was_never_sent(self, error: BaseException) -> bool:
        return isinstance(error, httpx2.ConnectError | httpx2.ConnectTimeout | httpx2.PoolTimeout)

    def _client(self) -> httpx2.AsyncClient:
        """No timeout for an answer: calls have their own, and news of the server may be long in coming."""
        return httpx2.AsyncClient(
            headers=self._headers,
            timeout=httpx2.Timeout(CONNECT_SECONDS, read=None),
            event_hooks={"response": [self._note]},
            proxy=self._proxy,
            trust_env=False,
        )

    async def _note(self, response: httpx2.Response) -> None:
        """The package says only that there was an error."""
        bad = response.is_error
        self._status = f"HTTP {response.status_code} {response.reason_phrase}" if bad else ""
