"""How a session reaches its server: over a program's standard input and output, or over HTTP.

Either can say what went wrong: a program's last words on standard error, or the status of an HTTP answer.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Self, TextIO

import httpx2
from mcp.client.stdio import StdioServerParameters, stdio_client
from mcp.client.streamable_http import streamable_http_client

from chordage.orchestrator.gateways.mcp.servers import Address, Endpoint, Environ, Program
from chordage.orchestrator.gateways.proxies import proxy_of

Streams = tuple[Any, Any]  # in and out, as the package wants them

CONNECT_SECONDS = 10.0  # for one TCP connection; connecting as a whole has its own limit
LINES_KEPT = 3
LINE_LENGTH = 300
STDERR_SECONDS = 0.3  # the output of a dead process is read in less

_log = logging.getLogger(__name__)


class StdioTransport:
    """A process that ends when its input does: also where this process is killed."""

    def __init__(self, program: Program, environ: Environ, room: Path) -> None:
        self._parameters = StdioServerParameters(
            command=program.command,
            args=list(program.args),
            env=program.variables(environ),
            cwd=room / program.cwd,
        )
        self._stderr = _StderrTail(program.command)

    @asynccontextmanager
    async def open(self, on_end: Callable[[], None]) -> AsyncIterator[Streams]:
        """`on_end` is called when nothing more will come in."""
        async with self._stderr.opened() as errlog, stdio_client(self._parameters, errlog) as (incoming, outgoing):
            errlog.close()  # the server has a copy; with ours open its end would not show
            yield _WatchedStream(incoming, on_end), outgoing

    async def explanation(self) -> str:
        """What the server's side says about a failure; empty where it says nothing."""
        return await self._stderr.explanation()

    def was_never_sent(self, error: BaseException) -> bool:
        return isinstance(error, OSError)


class HttpTransport:
    def __init__(self, endpoint: Endpoint, environ: Environ) -> None:
        self._url = endpoint.target(environ)
        self._headers = {"User-Agent": "chordage", **endpoint.sent_headers(environ)}
        self._proxy = proxy_of(environ, self._url)
        self._status = ""

    @asynccontextmanager
    async def open(self, on_end: Callable[[], None]) -> AsyncIterator[Streams]:
        async with (
            self._client() as client,
            streamable_http_client(self._url, http_client=client) as (incoming, outgoing),
        ):
            yield _WatchedStream(incoming, on_end), outgoing

    async def explanation(self) -> str:
        return self._status

    def was_never_sent(self, error: BaseException) -> bool:
        return isinstance(error, httpx2.ConnectError | httpx2.ConnectTimeout | httpx2.PoolTimeout)

    def _client(self) -> httpx2.AsyncClient:
        """No timeout for an answer: calls have their own, and the server's notifications may be long in coming."""
        return httpx2.AsyncClient(
            headers=self._headers,
            timeout=httpx2.Timeout(CONNECT_SECONDS, read=None),
            event_hooks={"response": [self._note]},
            proxy=self._proxy,
            trust_env=False,
        )

    async def _note(self, response: httpx2.Response) -> None:
        """The package itself says only that there was an error."""
        bad = response.is_error
        self._status = f"HTTP {response.status_code} {response.reason_phrase}" if bad else ""


McpTransport = StdioTransport | HttpTransport


def transport_to(address: Address, environ: Environ, room: Path) -> McpTransport:
    if isinstance(address, Program):
        return StdioTransport(address, environ, room)
    return HttpTransport(address, environ)


class _WatchedStream:
    """An incoming stream that reports its end.

    The package reports the end only to calls that are under way, and the next call must not go down a dead line.
    """

    def __init__(self, stream: Any, on_end: Callable[[], None]) -> None:
        self._stream = stream
        self._on_end = on_end

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Any:
        try:
            return await self._stream.__anext__()
        except BaseException:
            self._on_end()
            raise

    async def __aenter__(self) -> Self:
        await self._stream.__aenter__()
        return self

    async def __aexit__(self, *error: object) -> bool | None:
        suppressed: bool | None = await self._stream.__aexit__(*error)
        return suppressed

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)  # such as `receive`, and `last_context`, which only some have


class _StderrTail(asyncio.Protocol):
    """A program's standard error: logged, and its last lines kept, for they mostly say why it died."""

    def __init__(self, program: str) -> None:
        self._program = program
        self._lines: deque[str] = deque(maxlen=LINES_KEPT)
        self._partial = b""
        self._over = asyncio.Event()

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[TextIO]:
        """The file to start the program with."""
        reader, writer = os.pipe()
        with os.fdopen(writer, "w", encoding="utf-8") as errlog:
            transport, _ = await asyncio.get_running_loop().connect_read_pipe(lambda: self, os.fdopen(reader, "rb", 0))
            try:
                yield errlog
            finally:
                transport.close()
                await self._over.wait()

    async def explanation(self) -> str:
        try:
            await asyncio.wait_for(self._over.wait(), STDERR_SECONDS)
        except TimeoutError:
            _log.debug("%s still has its standard error open", self._program)
        last = " / ".join(self._lines)
        return f"it said last: {last}" if last else ""

    def data_received(self, data: bytes) -> None:
        *lines, self._partial = (self._partial + data).split(b"\n")
        self._partial = self._partial[-LINE_LENGTH:]
        for line in lines:
            self._keep(line)

    def connection_lost(self, _error: Exception | None) -> None:
        self._keep(self._partial)
        self._over.set()

    def _keep(self, line: bytes) -> None:
        text = line.decode("utf-8", "replace").strip()
        if any(map(str.isalnum, text)):  # more than the frame around a traceback
            self._lines.append(text[:LINE_LENGTH])
            _log.debug("MCP server %s: %s", self._program, text)
