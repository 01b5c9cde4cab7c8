"""Open connections kept for the next call, as many as threads call at once.

httpcore's own pool looks at every connection for every other one, under a lock: 36 ms at each end of a request with
500 idle connections (2 cores, CPython 3.11), so 500 threads would wait for each other and not for the model. Here
taking and giving back touch two connections and no lock, which also leaves nothing locked in a child after a fork.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import TypeAlias

import httpcore

IDLE_SECONDS = 30.0
IDLE_LIMIT = 512

_Key: TypeAlias = tuple[bytes, bytes, int]


class KeptConnections:
    def __init__(self, factory: httpcore.ConnectionPool) -> None:
        self._factory = factory  # makes connections, through a proxy or not; keeps none
        self._idle: defaultdict[_Key, deque[httpcore.ConnectionInterface]] = defaultdict(deque)

    def handle_request(self, request: httpcore.Request) -> httpcore.Response:
        origin = request.url.origin
        while True:
            connection = self._take(origin)
            try:
                response = connection.handle_request(request)
            except httpcore.ConnectionNotAvailable:
                connection.close()
            except BaseException:
                connection.close()
                raise
            else:
                break
        return httpcore.Response(
            status=response.status,
            headers=response.headers,
            content=_Lent(response, lambda: self._give_back(connection, _key(origin))),
            extensions=response.extensions,
        )

    def close(self) -> None:
        for idle in list(self._idle.values()):
            while (connection := _popped(idle)) is not None:
                connection.close()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _take(self, origin: httpcore.Origin) -> httpcore.ConnectionInterface:
        idle = self._idle[_key(origin)]
        while (connection := _popped(idle)) is not None:
            if connection.is_available() and not connection.has_expired():
                return connection
            connection.close()
        return self._factory.create_connection(origin)

    def _give_back(self, connection: httpcore.ConnectionInterface, origin: _Key) -> None:
        idle = self._idle[origin]
        if not connection.is_idle() or len(idle) >= IDLE_LIMIT:
            connection.close()
            return
        idle.append(connection)
        self._drop_oldest_if_expired(idle)

    @staticmethod
    def _drop_oldest_if_expired(idle: deque[httpcore.ConnectionInterface]) -> None:
        # The newest is taken first, so those at the other end are met only here.
        oldest = idle.popleft() if len(idle) > 1 else None
        if oldest is None:
            return
        if oldest.has_expired():
            oldest.close()
        else:
            idle.appendleft(oldest)


class _Lent:
    """The body of a response; closing it brings the connection home."""

    def __init__(self, response: httpcore.Response, give_back: Callable[[], None]) -> None:
        self._response = response
        self._give_back: Callable[[], None] | None = give_back

    def __iter__(self) -> Iterator[bytes]:
        yield from self._response.iter_stream()

    def close(self) -> None:
        self._response.close()
        give_back, self._give_back = self._give_back, None
        if give_back is not None:
            give_back()


def _key(origin: httpcore.Origin) -> _Key:
    return origin.scheme, origin.host, origin.port


def _popped(idle: deque[httpcore.ConnectionInterface]) -> httpcore.ConnectionInterface | None:
    try:
        return idle.pop()
    except IndexError:
        return None
