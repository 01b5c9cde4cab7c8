"""HTTP calls from many threads, each of which can be aborted, with connections kept for the next call.

Each call has a time limit for the whole exchange, and one for each wait within it: a server that sends a byte now and
then never runs into a limit for a single read. Calls share nothing but connections: no cookies, and redirects are not
followed. `guarded` is for URLs that a model or a stranger chose.
"""

from __future__ import annotations

import os
import ssl
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import TypeAlias

import httpcore
import httpx

from chordage.orchestrator.gateways.abortable_sockets import Backend, CallLimits
from chordage.orchestrator.gateways.address_guard import AddressGuard, AddressRefused, checked_url

CONNECT_SECONDS = 10.0
IDLE_SECONDS = 30.0
IDLE_LIMIT = 512

_Origin: TypeAlias = tuple[str, str, int | None]


class Exchange:
    """A response that has begun to arrive."""

    def __init__(self, response: httpx.Response, limits: CallLimits) -> None:
        self._response = response
        self._limits = limits
        self.status = response.status_code
        self.headers: Mapping[str, str] = response.headers

    def chunks(self) -> Iterator[bytes]:
        return self._response.iter_bytes()

    def hurry(self, seconds: float) -> None:
        """Shorten what is left of the time limit."""
        self._limits.hurry(seconds)

    def read(self, limit: int) -> bytes:
        """The body, cut off soon after `limit` bytes."""
        body = bytearray()
        for chunk in self.chunks():
            body += chunk
            if len(body) >= limit:
                break
        return bytes(body)

    def read_raw(self, limit: int) -> tuple[bytes, bool]:
        """At most `limit` bytes of the body, not unpacked, and whether that is all: a server may break off."""
        body = bytearray()
        with suppress(httpx.RemoteProtocolError):
            for chunk in self._response.iter_raw():
                body += chunk
                if len(body) > limit:
                    break
            else:
                return bytes(body), True
        return bytes(body[:limit]), False


class HttpClient:
    """Safe to share between threads, and usable on both sides of a fork.

    A connection is used by one call at a time, and taken and given back without a lock. httpcore's own pool looks at
    every connection for every other one, under a lock: 36 ms at each end of a request with 500 idle connections (2
    cores, CPython 3.11), so 500 threads would wait for each other and not for the server.
    """

    def __init__(
        self,
        *,
        proxy: Callable[[str], str | None] = lambda _url: None,
        tls: Callable[[], ssl.SSLContext] = httpx.create_ssl_context,
        guard: AddressGuard | None = None,
    ) -> None:
        """A guard checks what is connected to, so it goes with no proxy."""
        self._proxy = proxy
        self._new_tls = tls
        self._tls: ssl.SSLContext | None = None
        self._guard = guard
        self._pid = os.getpid()
        self._idle: defaultdict[_Origin, deque[_Connection]] = defaultdict(deque)

    @contextmanager
    def send(
        self, request: httpx.Request, check: Callable[[], None], *, timeout: float, silence: float | None = None
    ) -> Iterator[Exchange]:
        """`timeout` bounds the exchange, `silence` each wait for the next bytes. Raises httpx.TransportError, and what
        `check` raises to abort the call.
        """
        silence = timeout if silence is None else min(silence, timeout)
        waits = httpx.Timeout(connect=min(CONNECT_SECONDS, timeout), read=silence, write=silence, pool=None)
        request.extensions["timeout"] = waits.as_dict()
        origin = (request.url.scheme, request.url.host, request.url.port)
        connection = self._take(origin, request.url)
        connection.backend.limits = limits = CallLimits(check, timeout)
        try:
            response = connection.handle_request(request)
        except BaseException:
            connection.close()
            raise
        try:
            yield Exchange(response, limits)
        finally:
            response.close()
            self._give_back(origin, connection)

    def close(self) -> None:
        """Closes what is idle. Calls under way end as they would."""
        self._close(self._idle)

    def _take(self, origin: _Origin, url: httpx.URL) -> _Connection:
        if self._pid != os.getpid():
            # Bytes of both sides of a fork on one connection would be garbage. Closes our copies of the parent's
            # sockets; nothing is sent, and the parent keeps using its own.
            inherited, self._idle, self._pid = self._idle, defaultdict(deque), os.getpid()
            self._close(inherited)
        try:
            return self._idle[origin].pop()
        except IndexError:
            return _Connection(self._tls_for(url), self._proxy(str(url)), self._guard)

    def _tls_for(self, url: httpx.URL) -> ssl.SSLContext:
        if url.scheme != "https":
            return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # not used; to load the authorities takes long
        self._tls = self._tls or self._new_tls()
        return self._tls

    def _give_back(self, origin: _Origin, connection: _Connection) -> None:
        if not connection.is_open:
            return
        idle = self._idle[origin]
        connection.idle_since = time.monotonic()
        idle.append(connection)
        # The newest is taken first, so the oldest one is looked at only here.
        if len(idle) == 1:
            return
        with suppress(IndexError):  # other threads may have taken them
            oldest = idle.popleft()
            if len(idle) >= IDLE_LIMIT or connection.idle_since - oldest.idle_since > IDLE_SECONDS:
                oldest.close()
            else:
                idle.appendleft(oldest)

    @staticmethod
    def _close(idle: Mapping[_Origin, deque[_Connection]]) -> None:
        for connections in list(idle.values()):
            with suppress(IndexError):
                while True:
                    connections.pop().close()


class _Connection(httpx.HTTPTransport):
    """httpx's own transport, which tracing hooks into, with one connection over our sockets."""

    def __init__(self, tls: ssl.SSLContext, proxy: str | None, guard: AddressGuard | None) -> None:
        super().__init__(verify=tls)
        self.backend = Backend(guard)
        self.idle_since = 0.0
        # The one private name used here; httpx offers no other way to bring sockets along. A test notices its end.
        self._pool = _pool(self.backend, tls, proxy)

    @property
    def is_open(self) -> bool:
        return bool(self._pool.connections)


def _pool(backend: Backend, tls: ssl.SSLContext, proxy: str | None) -> httpcore.ConnectionPool:
    if proxy is None:
        return httpcore.ConnectionPool(
            ssl_context=tls, max_connections=1, keepalive_expiry=IDLE_SECONDS, network_backend=backend
        )
    via = httpx.Proxy(proxy)
    return httpcore.HTTPProxy(
        proxy_url=str(via.url),
        proxy_auth=via.raw_auth,
        ssl_context=tls,
        max_connections=1,
        keepalive_expiry=IDLE_SECONDS,
        network_backend=backend,
    )


@contextmanager
def guarded(
    method: str,
    url: str,
    guard: AddressGuard,
    *,
    headers: Mapping[str, str],
    content: bytes | None = None,
    timeout: float,
    silence: float | None = None,
    check: Callable[[], None] = lambda: None,
) -> Iterator[Exchange]:
    """One request on a connection of its own, to an address that the guard allows. Redirects are the caller's.

    Raises AddressRefused, TimeoutError, OSError where no good HTTP comes back, and what `check` raises.
    """
    sent = httpx.Headers(dict(headers), encoding="latin-1")
    sent["Connection"] = "close"
    try:
        request = httpx.Request(method, checked_url(url), headers=sent, content=content)
    except httpx.InvalidURL as error:
        raise AddressRefused(f"{url!r} is not a URL: {error}") from error
    client = HttpClient(tls=ssl.create_default_context, guard=guard)
    try:
        with client.send(request, check, timeout=timeout, silence=silence) as exchange:
            yield exchange
    except httpx.TimeoutException as error:
        raise TimeoutError(f"the answer did not end in time: {error}") from error
    except httpx.RemoteProtocolError as error:
        raise ConnectionError(f"{request.url.host} did not answer in good HTTP: {error}") from error
    except httpx.TransportError as error:
        raise ConnectionError(f"{error or type(error).__name__}") from error
    finally:
        client.close()
