"""One web page fetched for a model: only from allowed addresses, only so long, only so much of it.

Each redirect is a new request and goes through the same check. Proxies from the environment are not used: behind one,
the address that is checked would not be the address that is reached.
"""

from __future__ import annotations

import http.client
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from urllib.parse import SplitResult, quote, urljoin, urlsplit

from chordage.orchestrator.gateways.tools import checked_connections
from chordage.orchestrator.gateways.tools.addresses import Guard, Refused
from chordage.orchestrator.gateways.tools.checked_connections import LATE, Patience

REDIRECTS = {301, 302, 303, 307, 308}
_CHUNK = 16_384
_HEADERS = {"User-Agent": "chordage", "Accept-Encoding": "identity", "Connection": "close"}
_TEXTUAL = ("text/", "application/json", "application/xml", "application/javascript", "application/x-ndjson")
_SAFE = "/%:@!$&'()*+,;=~-._?"  # what stays as it is in a path and a query


def _nobody_left() -> bool:
    return False


@dataclass(frozen=True, kw_only=True, slots=True)
class WebPage:
    url: str
    status: int
    content_type: str
    text: str
    truncated: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class WebGetter:
    guard: Guard = field(default_factory=Guard)
    size_limit: int = 1_000_000  # bytes
    timeout: float = 25.0  # seconds, for everything
    stall: float = 10.0  # seconds without a byte
    most_redirects: int = 5

    def get(self, url: str, *, gone: Callable[[], bool] = _nobody_left) -> WebPage:
        """Raises Refused for what is not to be fetched, TimeoutError, and OSError when no good answer comes."""
        deadline = time.monotonic() + self.timeout
        for _ in range(self.most_redirects + 1):
            found = self._one(url, deadline, gone)
            if isinstance(found, WebPage):
                return found
            url = urljoin(url, found)
        raise Refused(f"more than {self.most_redirects} redirects; the last one leads to {url}")

    def _one(self, url: str, deadline: float, gone: Callable[[], bool]) -> WebPage | str:
        """The page, or where a redirect leads."""
        parts = checked_url(url)
        patience = Patience(deadline=deadline, stall=self.stall)
        connection = connection_to(parts, self.guard, patience)
        with closing(connection, patience):
            connection.request("GET", target_of(parts), headers=_HEADERS)
            response = connection.getresponse()
            onward = response.getheader("Location")
            if response.status in REDIRECTS and onward:
                return onward
            return self._page(url, response, deadline, gone)

    def _page(self, url: str, response: http.client.HTTPResponse, deadline: float, gone: Callable[[], bool]) -> WebPage:
        kind = response.headers.get_content_type() if "Content-Type" in response.headers else "text/plain"
        if not kind.startswith(_TEXTUAL) and not kind.endswith(("+json", "+xml")):
            raise Refused(f"{url} is {kind}, and only text can be read")
        body = self._body(response, deadline, gone)
        return WebPage(
            url=url,
            status=response.status,
            content_type=kind,
            text=_decoded(body[: self.size_limit], response.headers.get_content_charset()),
            truncated=len(body) > self.size_limit or bool(response.length),
        )

    def _body(self, response: http.client.HTTPResponse, deadline: float, gone: Callable[[], bool]) -> bytes:
        body = bytearray()
        while len(body) <= self.size_limit and (chunk := response.read1(_CHUNK)):
            body += chunk
            if gone() or time.monotonic() > deadline:
                raise TimeoutError(LATE)
        return bytes(body)


def connection_to(parts: SplitResult, guard: Guard, patience: Patience) -> http.client.HTTPConnection:
    """To an address that may be reached. Raises Refused and TimeoutError."""
    secure = parts.scheme == "https"
    host, port = parts.hostname or "", parts.port or (443 if secure else 80)
    address = guard.address_of(host, port, patience.seconds())
    return checked_connections.to(address, host, port, secure=secure, patience=patience)


@contextmanager
def closing(connection: http.client.HTTPConnection, patience: Patience) -> Iterator[None]:
    try:
        yield
    except TimeoutError:
        patience.seconds()  # says that the time is up, where it is; else a single wait was too long
        raise
    except http.client.HTTPException as error:
        raise ConnectionError(f"{connection.host} did not answer in good HTTP: {error!r}") from error
    finally:
        connection.close()


def checked_url(url: str) -> SplitResult:
    try:
        parts = urlsplit(url.strip())
        host, _port = parts.hostname, parts.port
    except ValueError as error:
        raise Refused(f"{url!r} is not a URL: {error}") from error
    if parts.scheme not in {"http", "https"} or not host:
        raise Refused(f"{url!r} is not a web address; write http://host/path or https://host/path")
    if parts.username is not None:
        raise Refused("a URL with a user name or password in it is not fetched")
    return parts


def target_of(parts: SplitResult) -> str:
    path = quote(parts.path or "/", safe=_SAFE)
    return f"{path}?{quote(parts.query, safe=_SAFE)}" if parts.query else path


def _decoded(body: bytes, charset: str | None) -> str:
    try:
        return body.decode(charset or "utf-8", "replace")
    except LookupError:  # the server names a charset that nobody knows
        return body.decode("utf-8", "replace")
