"""HTTP for channels: JSON in both directions, answers of bounded size, and errors that name the host, never the URL.

httpx.Client would write every URL into its log, and a token may be part of one; HttpClient does without it. The time
limit is that of the whole exchange, however slowly its bytes come.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import httpx

from chordage.orchestrator.core import bounds
from chordage.orchestrator.core.errors import TryLater, Unavailable, Undeliverable
from chordage.orchestrator.core.retry import retry_after
from chordage.orchestrator.gateways.http_client import HttpClient

LARGEST = 16 * 1024 * 1024  # bytes of an answer


@dataclass(frozen=True, kw_only=True, slots=True)
class JsonResponse:
    status: int
    headers: Mapping[str, str]
    body: bytes

    def json(self) -> Any:
        """None where the body is not JSON."""
        try:
            return bounds.loads_json(self.body)
        except ValueError:
            return None


class JsonClient:
    """Safe to share between threads. `close` interrupts requests under way."""

    def __init__(self, *, proxy: str | None = None) -> None:
        self._http = HttpClient(proxy=lambda _url: proxy)
        self._closed = threading.Event()

    def request(
        self,
        method: str,
        url: str,
        *,
        body: Any = None,
        params: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
        timeout: float = 20.0,
    ) -> JsonResponse:
        """Raises Unavailable where the server does not answer."""
        host = httpx.URL(url).host or "the server"
        sent = {"user-agent": "chordage", "accept": "application/json", **(headers or {})}
        request = httpx.Request(method, url, headers=sent, json=body)
        if params:
            request.url = request.url.copy_merge_params(dict(params))
        try:
            with self._http.send(request, self._check(), timeout=timeout) as exchange:
                content = exchange.read(LARGEST + 1)
                if len(content) > LARGEST:
                    raise Unavailable(f"{host} answered with more than {LARGEST} bytes")
                return JsonResponse(status=exchange.status, headers=exchange.headers, body=content)
        except httpx.TimeoutException:
            raise Unavailable(f"{host} did not answer within {timeout:g} s") from None
        except (httpx.HTTPError, OSError) as error:
            raise Unavailable(f"{host} does not answer ({type(error).__name__})") from None

    def close(self) -> None:
        closed, self._closed = self._closed, threading.Event()
        closed.set()
        self._http.close()

    def _check(self) -> Callable[[], None]:
        closed = self._closed

        def check() -> None:
            if closed.is_set():
                raise Unavailable("the channel was closed")

        return check


def check_accepted(host: str, answer: JsonResponse) -> None:
    """Raises Unavailable where another try may help, Undeliverable where it will not."""
    if 200 <= answer.status < 300:
        return
    why = f"{host} answered {answer.status}{_excerpt(answer)}"
    if answer.status in {408, 425, 429} or answer.status >= 500:
        raise later(why, answer)
    raise Undeliverable(why)


def later(why: str, answer: JsonResponse, seconds: float | None = None) -> TryLater:
    """`seconds`: the pause that the body of the answer asks for."""
    seconds = seconds or retry_after(answer.headers, datetime.now(UTC))
    return TryLater(f"{why}; try again after {seconds:g} s" if seconds else why, seconds)


def _excerpt(answer: JsonResponse) -> str:
    text = answer.body[:200].decode("utf-8", "replace").strip()
    return f": {text}" if text else ""
