"""A collector of traces: spans are posted to it as OTLP in JSON."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from chordage.orchestrator.core.errors import TryLater, Undeliverable
from chordage.orchestrator.core.retry import retry_after

if TYPE_CHECKING:
    from chordage.orchestrator.gateways.http_client import HttpClient

TIMEOUT = 10.0
REFUSED = frozenset({400, 413, 422})  # these spans, whenever they come
_READ = 500  # bytes of an answer, for the words of an error


class OtlpCollector:
    def __init__(self, url: str, *, headers: Mapping[str, str], timeout: float = TIMEOUT) -> None:
        self._url = url
        self._headers = {"User-Agent": "chordage", "Content-Type": "application/json", **headers}
        self._timeout = timeout
        self._client: HttpClient | None = None

    def send(self, body: bytes) -> None:
        import httpx  # heavy, and most processes send nothing

        from chordage.orchestrator.gateways.http_client import HttpClient

        self._client = self._client or HttpClient()
        request = httpx.Request("POST", self._url, headers=self._headers, content=body)
        try:
            with self._client.send(request, lambda: None, timeout=self._timeout) as exchange:
                text = exchange.read_raw(_READ)[0].decode("utf-8", "replace").replace("\x00", "")
                status, wait = exchange.status, retry_after(exchange.headers, datetime.now(UTC))
        except httpx.TransportError as error:
            problem = f"the collector {self._url} does not answer: {error or type(error).__name__}"
            raise TryLater(problem) from error
        if 200 <= status < 300:
            return
        words = " ".join(text.split())[:200]
        why = f"the collector {self._url} answered {status}{': ' + words if words else ''}"
        raise Undeliverable(why) if status in REFUSED else TryLater(why, wait)
