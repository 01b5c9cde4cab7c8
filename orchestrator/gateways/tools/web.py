"""One web page fetched for a model: only from allowed addresses, within a time, and up to a size.

Each redirect is a new request and is checked in the same way. Proxies from the environment are not used: behind one,
the address that is checked would not be the address that is reached.
"""

from __future__ import annotations

import http.client
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from urllib.parse import urljoin

from chordage.orchestrator.gateways.tools.safe_http import (
    LATE,
    AddressGuard,
    AddressRefused,
    RequestDeadline,
    checked_url,
    connection_to,
    target_of,
)

REDIRECTS = {301, 302, 303, 307, 308}
_CHUNK = 16_384
_HEADERS = {"User-Agent": "chordage", "Accept-Encoding": "identity", "Connection": "close"}
_TEXTUAL = ("text/", "application/json", "application/xml", "application/javascript", "application/x-ndjson")


@dataclass(frozen=True, kw_only=True, slots=True)
class WebPage:
    url: str
    status: int
    content_type: str
    text: str
    truncated: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class WebGetter:
    guard: AddressGuard = field(default_factory=AddressGuard)
    size_limit: int = 1_000_000  # bytes
    timeout: float = 25.0  # seconds, for everything
    stall: float = 10.0  # seconds without a byte
    most_redirects: int = 5

    def get(self, url: str, *, cancelled: Callable[[], bool] = lambda: False) -> WebPage:
        """Raises AddressRefused for what is not to be fetched, TimeoutError, and OSError when no good answer comes."""
        deadline = RequestDeadline(at=time.monotonic() + self.timeout, stall=self.stall)
        for _ in range(self.most_redirects + 1):
            page = self._request(url, deadline, cancelled)
            if isinstance(page, WebPage):
                return page
            url = urljoin(url, page)
        raise AddressRefused(f"more than {self.most_redirects} redirects; the last one leads to {url}")

    def _request(self, url: str, deadline: RequestDeadline, cancelled: Callable[[], bool]) -> WebPage | str:
        """The page, or where a redirect leads."""
        parts = checked_url(url)
        with connection_to(parts, self.guard, deadline) as connection:
            connection.request("GET", target_of(parts), headers=_HEADERS)
            response = connection.getresponse()
            location = response.getheader("Location")
            if response.status in REDIRECTS and location:
                return location
            headers = response.headers
            kind = headers.get_content_type() if "Content-Type" in headers else "text/plain"
            if not kind.startswith(_TEXTUAL) and not kind.endswith(("+json", "+xml")):
                raise AddressRefused(f"{url} is {kind}, and only text can be read")
            body = self._body(response, deadline, cancelled)
            return WebPage(
                url=url,
                status=response.status,
                content_type=kind,
                text=_decoded(body[: self.size_limit], headers.get_content_charset()),
                truncated=len(body) > self.size_limit or bool(response.length),
            )

    def _body(
        self, response: http.client.HTTPResponse, deadline: RequestDeadline, cancelled: Callable[[], bool]
    ) -> bytes:
        body = bytearray()
        while len(body) <= self.size_limit and (chunk := response.read1(_CHUNK)):
            body += chunk
            if cancelled() or time.monotonic() > deadline.at:
                raise TimeoutError(LATE)
        return bytes(body)


def _decoded(body: bytes, charset: str | None) -> str:
    try:
        return body.decode(charset or "utf-8", "replace")
    except LookupError:  # the server names an unknown charset
        return body.decode("utf-8", "replace")
