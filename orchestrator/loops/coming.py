"""Bodies on their way in, of senders that nobody knows yet: bounded in size, in time, in number and all together.

Whoever connects can announce a body and send it slowly, or not at all. Each has so many seconds for the whole of it.
When there are too many, or they hold too much, the one that came first is cut off: a body that is sent in one go is
whole long before that, while those that are kept open pay for the newcomer. Connections whose headers have not come
yet are bounded where they are made (`workers/http_connections.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import anyio
from starlette.types import Message, Receive

SECONDS = 10.0  # for a whole body
AT_ONCE = 128
BYTES_AT_ONCE = 64 * 1024 * 1024


class Refused(Exception):
    """The body was not read to its end; the connection is of no more use."""


class TooLarge(Refused):
    """By what it announces, or by what has come."""


class TooSlow(Refused):
    """Its time was over."""


class Crowded(Refused):
    """It gave way to others."""


class Broken(Refused):
    """The connection ended before the body did."""


@dataclass(slots=True, eq=False)
class _Coming:
    time: anyio.CancelScope
    body: bytearray = field(default_factory=bytearray)
    gave_way: bool = False


class Bodies:
    """Of one event loop: not to be shared between threads."""

    def __init__(self, *, seconds: float = SECONDS, at_once: int = AT_ONCE, bytes_at_once: int = BYTES_AT_ONCE) -> None:
        self._seconds = seconds
        self._at_once = at_once
        self._bytes_at_once = bytes_at_once
        self._held = 0  # bytes
        self._coming: dict[_Coming, None] = {}  # in the order in which they came

    async def read(self, headers: Mapping[str, str], receive: Receive, limit: int) -> bytes:
        """What a length announces is believed when it is too much, and never when it is little. Raises Refused."""
        announced = headers.get("content-length", "")
        if announced.isdecimal() and int(announced[:20]) > limit:
            raise TooLarge
        one = _Coming(time=anyio.CancelScope(deadline=anyio.current_time() + self._seconds))
        self._coming[one] = None
        try:
            with one.time:
                return await self._read(one, receive, limit)
        finally:
            self._let_go(one)
        raise Crowded if one.gave_way else TooSlow

    async def _read(self, one: _Coming, receive: Receive, limit: int) -> bytes:
        self._make_room()
        while True:
            if self._is_whole(one, await receive(), limit):
                return bytes(one.body)

    def _is_whole(self, one: _Coming, event: Message, limit: int) -> bool:
        """A piece of it is kept here and nowhere else: it is large, and whoever waits for the next must not hold it."""
        if event["type"] == "http.disconnect":
            raise Broken
        chunk: bytes = event.get("body", b"")
        if len(one.body) + len(chunk) > limit:
            raise TooLarge
        if one in self._coming:
            one.body += chunk
            self._held += len(chunk)
            self._make_room()
        return not event.get("more_body", False)

    def _make_room(self) -> None:
        while len(self._coming) > self._at_once or self._held > self._bytes_at_once:
            first = next(iter(self._coming))
            first.gave_way = True
            self._let_go(first)
            first.time.cancel()

    def _let_go(self, one: _Coming) -> None:
        if one in self._coming:
            del self._coming[one]
            self._held -= len(one.body)
