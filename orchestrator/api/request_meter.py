"""How long the answers of one process of the server take to begin, and the event streams that it has open.

A route is named by its template, never by its path, so no caller can make up a label. What no route has is `other`.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from chordage.orchestrator.core.metrics import (
    HTTP_SECONDS,
    OTHER,
    STREAMS_OPEN,
    SumKey,
    Sums,
    observe,
    within_bounds,
)

API = "api"
FACES = {"v1": "openai", "agui": "agui", "ai": "ai-sdk", "mcp": "mcp", "console": "console"}
_STREAM = b"text/event-stream"


class RequestMeter:
    """The numbers of this process. Safe in any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._sums: Sums = Counter()
        self._series: dict[str, set[tuple[str, ...]]] = {HTTP_SECONDS.name: set()}
        self._streams: Counter[str] = Counter(dict.fromkeys((API, *FACES.values()), 0))

    def add(self, seconds: float, *, face: str, route: str, status: int) -> None:
        sums: Sums = Counter()
        observe(sums, HTTP_SECONDS, seconds, face, route, str(status))
        with self._lock:
            bounded = within_bounds(sums, self._series)
            self._series[HTTP_SECONDS.name].update(key.labels for key in bounded)
            self._sums.update(bounded)

    def begin_stream(self, face: str) -> None:
        with self._lock:
            self._streams[face] += 1

    def end_stream(self, face: str) -> None:
        with self._lock:
            self._streams[face] -= 1

    def read(self) -> Mapping[SumKey, float]:
        with self._lock:
            open_now = {SumKey(STREAMS_OPEN.name, (face,)): number for face, number in self._streams.items()}
            return {**self._sums, **open_now}


class MeteredRequests:
    def __init__(self, app: ASGIApp, meter: RequestMeter, clock: Callable[[], float] = time.monotonic) -> None:
        self._app = app
        self._meter = meter
        self._clock = clock

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started, face, is_stream = self._clock(), _face(scope), False

        async def metered(message: Message) -> None:
            nonlocal is_stream
            if message["type"] == "http.response.start":
                self._meter.add(self._clock() - started, face=face, route=_route(scope), status=message["status"])
                is_stream = any(
                    name == b"content-type" and value.startswith(_STREAM) for name, value in message["headers"]
                )
                if is_stream:
                    self._meter.begin_stream(face)
            await send(message)

        try:
            await self._app(scope, receive, metered)
        finally:
            if is_stream:
                self._meter.end_stream(face)


def _face(scope: Scope) -> str:
    path: str = scope["path"].removeprefix(scope.get("root_path", ""))
    return FACES.get(path.lstrip("/").partition("/")[0], API)


def _route(scope: Scope) -> str:
    """As the router that has answered left it."""
    return str(getattr(scope.get("route"), "path", OTHER))
