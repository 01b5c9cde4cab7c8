"""Connections to the HTTP server on which nothing is asked, or nothing is read: bounded in time and in number.

Whoever connects can send no headers, or send them slowly, or go on sending a body that was refused. uvicorn waits for
them without end, and when all files are open it accepts nobody: asyncio then logs some thousand tracebacks a second.
So each has so many seconds for the whole headers of its next request, and when there are too many, the one that has
asked for nothing longest is cut off. So is whoever asks and does not read the answer. Bodies have a bound of their own
(`orchestrator/loops/coming.py`).
"""

from __future__ import annotations

import asyncio
import resource
from typing import ClassVar

from uvicorn.protocols.http.h11_impl import H11Protocol

SECONDS = 10.0  # for the headers of a request, from the end of the one before
READ_SECONDS = 60.0  # for so much of an answer as the system does not hold for its reader
AT_ONCE = 512
BACKLOG = 512  # accepted at a time, and so that many more are open before the first of them is looked at
OPEN_FILES = 8192


class Connection(H11Protocol):
    """uvicorn makes one for each connection. Its parser bounds the size of headers; that of `httptools` does not."""

    _idle: ClassVar[dict[Connection, asyncio.TimerHandle]] = {}  # of this process, in the order in which they became so
    _unread: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn has it
        super().connection_made(transport)
        self._look()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._look()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._look()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._unread = self.loop.call_later(READ_SECONDS, self._cut_off)

    def resume_writing(self) -> None:
        self._read()
        super().resume_writing()
        self._look()

    def connection_lost(self, exc: Exception | None) -> None:
        self._read()
        self._forget()
        super().connection_lost(exc)

    def _look(self) -> None:
        asks = self.cycle is not None and not self.cycle.response_complete
        if asks or self._unread is not None or self.transport.is_closing():
            self._forget()
        elif self not in self._idle:
            self._idle[self] = self.loop.call_later(SECONDS, self._cut_off)
            if len(self._idle) > AT_ONCE:
                next(iter(self._idle))._cut_off()  # noqa: SLF001 - another of our own

    def _read(self) -> None:
        if self._unread is not None:
            self._unread.cancel()
            self._unread = None

    def _cut_off(self) -> None:
        """Also where it does not read what it was answered."""
        self._forget()
        self.transport.abort()

    def _forget(self) -> None:
        if (timer := self._idle.pop(self, None)) is not None:
            timer.cancel()


def allow_open_files() -> None:
    """As many as connections, threads and the database may need: the usual limit of a shell or of systemd is 1024."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = OPEN_FILES if hard == resource.RLIM_INFINITY else min(OPEN_FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
