"""The one HTTP client of a process. Every model call of every thread goes through it, and each can be aborted."""

from __future__ import annotations

import os
import ssl
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from http.cookiejar import CookieJar, DefaultCookiePolicy

import httpcore
import httpx

from chordage.orchestrator.core.model import Fault
from chordage.orchestrator.gateways.models.attempt import AttemptFailed
from chordage.orchestrator.gateways.models.calls import Call, Calls
from chordage.orchestrator.gateways.models.connections import IDLE_SECONDS, KeptConnections
from chordage.orchestrator.gateways.models.proxies import proxy_by_pattern
from chordage.orchestrator.gateways.models.sockets import SlicedBackend
from chordage.orchestrator.gateways.ports import Abort

CONNECT_SECONDS = 10.0
REST_SECONDS = 0.25


@dataclass(frozen=True, kw_only=True, slots=True)
class Post:
    """`timeout` bounds the whole exchange, `silence` the wait for each next piece of the answer."""

    url: str
    headers: Mapping[str, str]
    body: bytes
    timeout: float
    silence: float


class Exchange:
    """A response that has begun to arrive."""

    def __init__(self, response: httpx.Response, call: Call) -> None:
        self._response = response
        self._call = call
        self.status = response.status_code
        self.headers = response.headers

    def chunks(self) -> Iterator[bytes]:
        return self._response.iter_bytes()

    def read(self, limit: int) -> bytes:
        """At most about `limit` bytes of the body."""
        body = bytearray()
        for chunk in self._response.iter_bytes():
            body += chunk
            if len(body) >= limit:
                break
        return bytes(body)

    def skip_rest(self, chunks: Iterator[object]) -> None:
        """Read what follows the last word of a stream, if it comes at once: only then can the connection be kept."""
        self._call.hurry(REST_SECONDS)
        with suppress(httpx.HTTPError, AttemptFailed):
            for _ in chunks:
                pass


class Transport:
    def __init__(self, *, environ: Mapping[str, str], tls: ssl.SSLContext | None = None) -> None:
        self._environ = environ
        self._tls = tls
        self._calls = Calls()
        self._clients: dict[int, httpx.Client] = {}  # by process: a connection used on both sides of a fork is garbage

    @contextmanager
    def exchange(self, post: Post, abort: Abort) -> Iterator[Exchange]:
        """Send, and hand out the response. Raises AttemptFailed, Aborted, HandedOver."""
        client = self._client()
        with self._calls.holding(Call(abort, post.timeout)) as call, _failures():
            response = client.send(_request(client, post), stream=True)
            try:
                yield Exchange(response, call)
            finally:
                response.close()

    def close(self) -> None:
        for client in list(self._clients.values()):
            client.close()
        self._clients.clear()

    def _client(self) -> httpx.Client:
        return self._clients.get(os.getpid()) or self._built(os.getpid())

    def _built(self, pid: int) -> httpx.Client:
        for other in [known for known in self._clients if known != pid]:
            # Closes our copies of the parent's sockets; nothing is sent, the parent goes on using its own.
            self._clients.pop(other).close()
        ours = self._new_client()
        kept = self._clients.setdefault(pid, ours)
        if kept is not ours:
            ours.close()
        return kept

    def _new_client(self) -> httpx.Client:
        tls = self._tls or httpx.create_ssl_context()
        patterns = proxy_by_pattern(self._environ)
        proxied = {url: AbortableTransport(self._calls, tls, url) for url in set(patterns.values()) if url}
        return httpx.Client(
            transport=AbortableTransport(self._calls, tls),
            mounts={pattern: proxied[url] if url else None for pattern, url in patterns.items()},
            cookies=CookieJar(DefaultCookiePolicy(allowed_domains=[])),  # calls have nothing to do with each other
            headers={"user-agent": "chordage"},
            trust_env=False,
        )


class AbortableTransport(httpx.HTTPTransport):
    """httpx's own transport (which tracing hooks into), over our sockets and our kept connections."""

    def __init__(self, calls: Calls, tls: ssl.SSLContext, proxy: str | None = None) -> None:
        super().__init__(verify=tls)
        # The one private name used here; httpx offers no other way to bring sockets along. A test notices its end.
        self._pool = KeptConnections(_factory(SlicedBackend(calls), tls, proxy))  # type: ignore[assignment]  # same use


def _factory(backend: SlicedBackend, tls: ssl.SSLContext, proxy: str | None) -> httpcore.ConnectionPool:
    if proxy is None:
        return httpcore.ConnectionPool(ssl_context=tls, keepalive_expiry=IDLE_SECONDS, network_backend=backend)
    via = httpx.Proxy(proxy)
    return httpcore.HTTPProxy(
        proxy_url=str(via.url),
        proxy_auth=via.raw_auth,
        ssl_context=tls,
        keepalive_expiry=IDLE_SECONDS,
        network_backend=backend,
    )


def _request(client: httpx.Client, post: Post) -> httpx.Request:
    timeout = httpx.Timeout(
        connect=min(CONNECT_SECONDS, post.timeout), read=post.silence, write=post.silence, pool=None
    )
    return client.build_request("POST", post.url, content=post.body, headers=post.headers, timeout=timeout)


@contextmanager
def _failures() -> Iterator[None]:
    try:
        yield
    except httpx.TimeoutException as error:
        raise AttemptFailed(Fault.TIMEOUT, str(error)) from error
    except httpx.DecodingError as error:
        raise AttemptFailed(Fault.MALFORMED, str(error)) from error
    except httpx.TransportError as error:
        raise AttemptFailed(Fault.CONNECTION, str(error) or type(error).__name__) from error
