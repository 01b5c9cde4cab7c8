"""The server loop: what keeps the HTTP server responsive, whatever connects to it.

Three things are bounded in time and in number: connections that ask for nothing, bodies on their way in, and callers
that wait for a turn. A sender of a body is not known yet: it can announce one and send it slowly, or not at all. When
there are too many bodies, or they hold too much memory, the oldest is cut off: a body that is sent in one go is
complete long before that, and those that are kept open pay for the newcomer.
"""

from __future__ import annotations

import asyncio
import resource
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import anyio
import anyio.to_thread
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from chordage.orchestrator.core.errors import Unavailable
from chordage.orchestrator.core.status import TurnStatus
from chordage.orchestrator.views import TurnView

HEADER_SECONDS = 10.0  # for the headers of a request, from the end of the one before
READ_SECONDS = 60.0  # for the client to read an answer that the system no longer buffers
CONNECTIONS_MAX = 512  # that ask for nothing
BACKLOG = 512  # connections accepted at a time
OPEN_FILES = 8192
# One of several processes that is silent for longer is replaced. It is silent while it starts, which on a busy machine
# takes more than the 5 s of uvicorn: each would be killed before it serves, without end.
SILENT_SECONDS = 120

BODY_SECONDS = 10.0  # for a whole body
BODIES_MAX = 128
BODY_BYTES_MAX = 64 * 1024 * 1024  # of all bodies together

WAITERS = 96

PEER = "chordage.peer"  # its key in the ASGI scope: the address at the other end of the connection

Wait = Callable[[str, float, Callable[[], bool]], TurnView]  # turn, seconds, whether the caller has gone


class Connection(H11Protocol):
    """uvicorn makes one for each connection. Its h11 parser bounds the size of headers; that of `httptools` does not.

    A client can connect and send no headers, or send them slowly, or keep sending a body that was refused, or not read
    the answer. uvicorn would wait without end, and with all files open it could accept no connection.
    """

    _idle: ClassVar[dict[Connection, asyncio.TimerHandle]] = {}  # of this process, the longest idle first
    _unread: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn has it
        super().connection_made(transport)
        self.app = _with_peer(self.app, self.client)
        self._watch()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._watch()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._watch()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._unread = self.loop.call_later(READ_SECONDS, self._cut_off)

    def resume_writing(self) -> None:
        self._note_read()
        super().resume_writing()
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        self._note_read()
        self._forget()
        super().connection_lost(exc)

    def _watch(self) -> None:
        is_busy = self.cycle is not None and not self.cycle.response_complete
        if is_busy or self._unread is not None or self.transport.is_closing():
            self._forget()
        elif self not in self._idle:
            self._idle[self] = self.loop.call_later(HEADER_SECONDS, self._cut_off)
            if len(self._idle) > CONNECTIONS_MAX:
                next(iter(self._idle))._cut_off()  # noqa: SLF001 - another of our own

    def _note_read(self) -> None:
        if self._unread is not None:
            self._unread.cancel()
            self._unread = None

    def _cut_off(self) -> None:
        """Without waiting for the client to read what it was sent."""
        self._forget()
        self.transport.abort()

    def _forget(self) -> None:
        if (timer := self._idle.pop(self, None)) is not None:
            timer.cancel()


def _with_peer(app: Any, peer: tuple[str, int] | None) -> ASGIApp:
    """Uvicorn replaces the address of the client by one from the headers of a proxy; that of the connection stays."""

    async def with_peer(scope: Scope, receive: Receive, send: Send) -> None:
        scope[PEER] = None if peer is None else peer[0]
        await app(scope, receive, send)

    return with_peer


def allow_open_files() -> None:
    """As many as connections, threads and the database may need: the usual limit of a shell or of systemd is 1024."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = OPEN_FILES if hard == resource.RLIM_INFINITY else min(OPEN_FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


class BodyRefused(Exception):
    """The body was not read to its end; the connection cannot be used again."""


class BodyTooLarge(BodyRefused):
    """By the length it announces, or by the bytes that came."""


class BodyTooSlow(BodyRefused):
    """Its time was over."""


class BodyCrowdedOut(BodyRefused):
    """It was the oldest of too many."""


class BodyBroken(BodyRefused):
    """The connection ended before the body did."""


@dataclass(slots=True, eq=False)
class _Incoming:
    time: anyio.CancelScope
    body: bytearray = field(default_factory=bytearray)
    gave_way: bool = False


class RequestBodies:
    """Of one event loop: not to be shared between threads."""

    def __init__(
        self, *, seconds: float = BODY_SECONDS, at_once: int = BODIES_MAX, bytes_at_once: int = BODY_BYTES_MAX
    ) -> None:
        self._seconds = seconds
        self._at_once = at_once
        self._bytes_at_once = bytes_at_once
        self._bytes = 0
        self._incoming: dict[_Incoming, None] = {}  # the oldest first

    async def read(self, headers: Mapping[str, str], receive: Receive, limit: int) -> bytes:
        """A Content-Length is trusted when it says too much, never when it says little. Raises BodyRefused."""
        announced = headers.get("content-length", "")
        if announced.isdecimal() and int(announced[:20]) > limit:
            raise BodyTooLarge
        incoming = _Incoming(time=anyio.CancelScope(deadline=anyio.current_time() + self._seconds))
        self._incoming[incoming] = None
        try:
            with incoming.time:
                self._make_room()
                while not self._add(incoming, await receive(), limit):
                    pass
                return bytes(incoming.body)
        finally:
            self._remove(incoming)
        raise BodyCrowdedOut if incoming.gave_way else BodyTooSlow

    def _add(self, incoming: _Incoming, event: Message, limit: int) -> bool:
        """Whether the body is complete. Only this function refers to a chunk: it is large, and must not stay in memory
        while `read` waits for the next.
        """
        if event["type"] == "http.disconnect":
            raise BodyBroken
        chunk: bytes = event.get("body", b"")
        if len(incoming.body) + len(chunk) > limit:
            raise BodyTooLarge
        if incoming in self._incoming:
            incoming.body += chunk
            self._bytes += len(chunk)
            self._make_room()
        return not event.get("more_body", False)

    def _make_room(self) -> None:
        while len(self._incoming) > self._at_once or self._bytes > self._bytes_at_once:
            oldest = next(iter(self._incoming))
            oldest.gave_way = True
            self._remove(oldest)
            oldest.time.cancel()

    def _remove(self, incoming: _Incoming) -> None:
        if incoming in self._incoming:
            del self._incoming[incoming]
            self._bytes -= len(incoming.body)


class TurnWaits:
    """Waits for turns, for a bounded number of callers at a time, and only while each caller is connected.

    A wait takes one of the server's threads, so waits get a share of them: one is always left for the next message.
    """

    def __init__(self, wait: Wait, waiters: int = WAITERS) -> None:
        self._wait = wait
        self._free = threading.BoundedSemaphore(waiters)
        self._stopping = threading.Event()

    def stop(self) -> None:
        """The server stops: end every wait."""
        self._stopping.set()

    async def until_done(self, request: Request, turn_id: str, seconds: float) -> TurnView | None:
        """The turn, if it is done in time. Its message is stored by now: no failure here changes that."""
        if not self._free.acquire(blocking=False):
            return None
        gone = threading.Event()
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(_watch_disconnect, request, gone)
                turn = await anyio.to_thread.run_sync(self._done_turn, turn_id, seconds, gone)
                tasks.cancel_scope.cancel()
        finally:
            gone.set()
            self._free.release()
        return turn

    def _done_turn(self, turn_id: str, seconds: float, gone: threading.Event) -> TurnView | None:
        try:
            turn = self._wait(turn_id, seconds, lambda: gone.is_set() or self._stopping.is_set())
        except Unavailable:
            return None
        return turn if turn.status is TurnStatus.DONE else None


async def _watch_disconnect(request: Request, gone: threading.Event) -> None:
    """The body has been read: the next event is the end of the connection."""
    while (await request.receive())["type"] != "http.disconnect":
        pass
    gone.set()
