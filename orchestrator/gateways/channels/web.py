"""HTTP for channels: JSON there and back, a size that is bounded, and errors that name the host and never the URL.

The client of the library would write every URL into its log, and a token may be part of one. So its transport is used
without the client around it; a proxy of the environment is found as that client finds it. Its sockets are those of
model calls: the time limit is that of the whole exchange, however slowly its bytes come.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import httpx

from chordage.orchestrator.core import bounds
from chordage.orchestrator.core.errors import TryLater, Unavailable, Undeliverable
from chordage.orchestrator.core.retry import retry_after
from chordage.orchestrator.gateways.models.calls import Call, Calls
from chordage.orchestrator.gateways.models.transport import AbortableTransport

LARGEST = 16 * 1024 * 1024  # bytes of an answer
CONNECT = 10.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Answer:
    status: int
    headers: Mapping[str, str]
    body: bytes

    def json(self) -> Any:
        """None where it is none."""
        try:
            return bounds.loads_json(self.body)
        except ValueError:
            return None


class Web:
    """Safe to share between threads. `close` breaks off what waits."""

    def __init__(self, *, proxy: str | None = None) -> None:
        self._proxy = proxy
        self._lock = threading.Lock()
        self._calls = Calls()
        self._opened: Opened | None = None

    def ask(
        self,
        method: str,
        url: str,
        *,
        body: Any = None,
        params: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
        timeout: float = 20.0,
    ) -> Answer:
        """Raises Unavailable where nobody answers."""
        host = _host(url)
        opened = self._open()
        try:
            with self._calls.holding(Call(opened, timeout)):
                response = opened.transport.handle_request(_request(method, url, body, params, headers, timeout))
                try:
                    return Answer(status=response.status_code, headers=response.headers, body=_bounded(host, response))
                finally:
                    response.close()
        except httpx.TimeoutException:
            raise Unavailable(f"{host} did not answer within {timeout:g} s") from None
        except (httpx.HTTPError, RuntimeError, OSError) as error:  # RuntimeError: it was closed meanwhile
            raise Unavailable(f"{host} does not answer ({type(error).__name__})") from None

    def close(self) -> None:
        with self._lock:
            opened, self._opened = self._opened, None
        if opened is not None:
            opened.close()

    def _open(self) -> Opened:
        with self._lock:
            if self._opened is None:
                transport = AbortableTransport(self._calls, httpx.create_ssl_context(), self._proxy)
                self._opened = Opened(transport)
            return self._opened


class Opened:
    """A transport, and whether it was closed while somebody waits. Implements the Abort port."""

    def __init__(self, transport: httpx.HTTPTransport) -> None:
        self.transport = transport
        self._closed = threading.Event()

    def close(self) -> None:
        self._closed.set()
        self.transport.close()

    def check(self) -> None:
        if self._closed.is_set():
            raise Unavailable("the channel was closed")

    def wait(self, seconds: float) -> None:
        self._closed.wait(seconds)
        self.check()


def check_taken(host: str, answer: Answer) -> None:
    """Of a reply that was sent: Unavailable where another try may help, Undeliverable where it will not."""
    if 200 <= answer.status < 300:
        return
    why = f"{host} answered {answer.status}{_told(answer)}"
    if answer.status in {408, 425, 429} or answer.status >= 500:
        raise later(why, answer)
    raise Undeliverable(why)


def later(why: str, answer: Answer, seconds: float | None = None) -> TryLater:
    """`seconds`: how long to wait, where the body of the answer says it."""
    seconds = seconds or retry_after(answer.headers, datetime.now(UTC))
    return TryLater(f"{why}; try again after {seconds:g} s" if seconds else why, seconds)


def _told(answer: Answer) -> str:
    said = answer.body[:200].decode("utf-8", "replace").strip()
    return f": {said}" if said else ""


def _request(
    method: str,
    url: str,
    body: Any,
    params: Mapping[str, str] | None,
    headers: Mapping[str, str] | None,
    timeout: float,
) -> httpx.Request:
    limits = httpx.Timeout(timeout, connect=min(CONNECT, timeout))
    given = {"user-agent": "chordage", "accept": "application/json", **(headers or {})}
    request = httpx.Request(method, url, headers=given, json=body, extensions={"timeout": limits.as_dict()})
    if params:
        request.url = request.url.copy_merge_params(dict(params))
    return request


def _bounded(host: str, response: httpx.Response) -> bytes:
    found = bytearray()
    for chunk in response.iter_bytes():
        found += chunk
        if len(found) > LARGEST:
            raise Unavailable(f"{host} answered with more than {LARGEST} bytes")
    return bytes(found)


def _host(url: str) -> str:
    return httpx.URL(url).host or "the server"
