"""One web page fetched for a model: only from allowed addresses, within a time, and up to a size.

Each redirect is a new request and is checked in the same way. Proxies from the environment are not used: behind one,
the address that is checked would not be the address that is reached.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from email.message import Message
from urllib.parse import urljoin

from chordage.orchestrator.gateways.address_guard import AddressGuard, AddressRefused

REDIRECTS = {301, 302, 303, 307, 308}
_HEADERS = {"User-Agent": "chordage", "Accept-Encoding": "identity"}
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

        def check() -> None:
            if cancelled():
                raise TimeoutError("the call was cancelled")

        deadline = time.monotonic() + self.timeout
        for _ in range(self.most_redirects + 1):
            page = self._request(url, deadline - time.monotonic(), check)
            if isinstance(page, WebPage):
                return page
            url = urljoin(url, page)
        raise AddressRefused(f"more than {self.most_redirects} redirects; the last one leads to {url}")

    def _request(self, url: str, timeout: float, check: Callable[[], None]) -> WebPage | str:
        """The page, or where a redirect leads."""
        from chordage.orchestrator.gateways.http_client import guarded  # httpx is heavy

        with guarded(
            "GET", url, self.guard, headers=_HEADERS, timeout=timeout, silence=self.stall, check=check
        ) as exchange:
            location = exchange.headers.get("location")
            if exchange.status in REDIRECTS and location:
                return location
            content_type = Message()
            content_type["Content-Type"] = exchange.headers.get("content-type", "text/plain")
            kind = content_type.get_content_type()
            if not kind.startswith(_TEXTUAL) and not kind.endswith(("+json", "+xml")):
                raise AddressRefused(f"{url} is {kind}, and only text can be read")
            body, is_whole = exchange.read_raw(self.size_limit)
            return WebPage(
                url=url,
                status=exchange.status,
                content_type=kind,
                text=_decoded(body, content_type.get_content_charset()),
                truncated=not is_whole,
            )


def _decoded(body: bytes, charset: str | None) -> str:
    try:
        return body.decode(charset or "utf-8", "replace")
    except LookupError:  # the server names an unknown charset
        return body.decode("utf-8", "replace")
