"""Sockets for httpcore that wait in slices, plain and TLS, so that a blocked call can be aborted.

A thread that waits in a socket cannot be interrupted. So no wait is longer than a slice, and between two slices the
thread checks its deadline and whether it was aborted. This covers the name look-up, the connection attempts and the TLS
handshake too, which happen before httpx's `trace` extension hands out a socket that another thread could shut down.

OpenSSL keeps its state when a read, a write or a handshake times out, as long as the same operation is tried again with
the same bytes: `_retry` does exactly that.
"""

from __future__ import annotations

import errno
import math
import os
import select
import selectors
import socket
import ssl
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent import futures
from typing import Any, TypeVar

import httpcore

from chordage.orchestrator.gateways.address_guard import AddressGuard
from chordage.orchestrator.gateways.name_lookup import NAMES

T = TypeVar("T")
SLICE = 0.6  # together with CHECK_EVERY below the second within which an abort is noticed
CHECK_EVERY = 0.1  # a stream that flows has hundreds of reads a second; not each of them checks
PIECE = 65_536
_CONNECTING = {errno.EINPROGRESS, errno.EWOULDBLOCK, errno.EAGAIN}


class CallLimits:
    """One exchange: when it must end, and what may abort it: `check` raises where it should."""

    def __init__(self, check: Callable[[], None], timeout: float) -> None:
        self._check = check
        self._timeout = timeout
        self._deadline = time.monotonic() + timeout
        self._next_check = 0.0

    def hurry(self, seconds: float) -> None:
        self._deadline = min(self._deadline, time.monotonic() + seconds)

    def slices(self, timeout: float | None, too_late: type[Exception]) -> Iterator[float]:
        """How long to wait next, until the caller has what it waits for. Raises `too_late`, or as the abort does."""
        silent_until = math.inf if timeout is None else time.monotonic() + timeout
        while True:
            now = time.monotonic()
            if now >= self._next_check:
                self._next_check = now + CHECK_EVERY
                self._check()
            if now >= self._deadline:
                raise too_late(f"not finished within {self._timeout:g} s")
            if now >= silent_until:
                raise too_late(f"nothing happened for {timeout:g} s")
            yield min(SLICE, silent_until - now, self._deadline - now)


class Backend(httpcore.NetworkBackend):
    """Opens the sockets of one connection. `limits` are those of the exchange that uses it now.

    With a guard, only the addresses that it allows are tried.
    """

    limits: CallLimits

    def __init__(self, guard: AddressGuard | None = None) -> None:
        self._guard = guard

    def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[httpcore.SOCKET_OPTION] | None = None,
    ) -> Stream:
        del local_address, socket_options  # the transport sets neither
        addresses = self._look_up(host, port, timeout)
        # Each address gets an equal share, or a dead IPv6 route would use up the time of the IPv4 one behind it.
        share = None if timeout is None else timeout / max(1, len(addresses))
        failure: Exception = httpcore.ConnectError("the name of the host has no address")
        for family, kind, protocol, _, address in addresses:
            sock = socket.socket(family, kind, protocol)
            try:
                self._connect(sock, address, share)
            except (httpcore.ConnectError, httpcore.ConnectTimeout) as error:
                sock.close()
                failure = error
            except BaseException:
                sock.close()
                raise
            else:
                return Stream(sock, self)
        raise failure

    def _look_up(self, host: str, port: int, timeout: float | None) -> list[Any]:
        try:
            answer = NAMES.ask(host, port)
        except OSError as error:
            raise httpcore.ConnectError(str(error)) from error
        try:
            for seconds in self.limits.slices(timeout, httpcore.ConnectTimeout):
                if futures.wait([answer], seconds).done:
                    break
        except httpcore.ConnectTimeout as error:
            raise httpcore.ConnectTimeout(f"{host} was not found: {error}") from error
        try:
            return self._guard.addresses_of(host, answer) if self._guard else answer.result()
        except (OSError, UnicodeError) as error:
            raise httpcore.ConnectError(f"{host}: {error}") from error

    def _connect(self, sock: socket.socket, address: Any, timeout: float | None) -> None:
        sock.setblocking(False)
        code = sock.connect_ex(address)
        if code in _CONNECTING:
            with selectors.DefaultSelector() as selector:
                selector.register(sock, selectors.EVENT_WRITE)
                for seconds in self.limits.slices(timeout, httpcore.ConnectTimeout):
                    if selector.select(seconds):
                        break
            code = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if code:
            raise httpcore.ConnectError(f"{address[0]} port {address[1]}: {os.strerror(code)}")
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


class Stream(httpcore.NetworkStream):
    def __init__(self, sock: socket.socket, backend: Backend) -> None:
        self._sock = sock
        self._backend = backend

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        return self._retry(lambda: self._sock.recv(max_bytes), timeout, httpcore.ReadTimeout, httpcore.ReadError)

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        rest = memoryview(buffer)
        while rest:
            piece = rest[:PIECE]
            sent = self._retry(
                lambda piece=piece: self._sock.send(piece),  # type: ignore[misc]  # bound now, not when called
                timeout,
                httpcore.WriteTimeout,
                httpcore.WriteError,
            )
            rest = rest[sent:]

    def close(self) -> None:
        self._sock.close()

    def start_tls(
        self, ssl_context: ssl.SSLContext, server_hostname: str | None = None, timeout: float | None = None
    ) -> Stream:
        try:
            self._sock = wrapped = ssl_context.wrap_socket(
                self._sock, server_hostname=server_hostname, do_handshake_on_connect=False
            )
            self._retry(wrapped.do_handshake, timeout, httpcore.ConnectTimeout, httpcore.ConnectError)
        except BaseException as error:
            self.close()
            if isinstance(error, (OSError, ValueError)):
                raise httpcore.ConnectError(str(error)) from error
            raise
        return self

    def get_extra_info(self, info: str) -> Any:
        match info:
            case "socket":
                return self._sock
            case "ssl_object":
                return self._sock if isinstance(self._sock, ssl.SSLSocket) else None
            case "client_addr":
                return self._sock.getsockname()
            case "server_addr":
                return self._sock.getpeername()
            case "is_readable":
                return _is_readable(self._sock)
            case _:
                return None

    def _retry(
        self, operation: Callable[[], T], timeout: float | None, too_late: type[Exception], broken: type[Exception]
    ) -> T:
        for seconds in self._backend.limits.slices(timeout, too_late):
            try:
                self._sock.settimeout(seconds)
                return operation()
            except TimeoutError:
                continue
            except OSError as error:
                raise broken(str(error)) from error
        raise AssertionError("slices end by raising")


def _is_readable(sock: socket.socket) -> bool:
    """Whether an idle connection has something to read, which can only be that the server closed it."""
    if sock.fileno() < 0:
        return True
    if not hasattr(select, "poll"):
        return bool(select.select([sock], [], [], 0)[0])
    poll = select.poll()
    poll.register(sock, select.POLLIN)
    return bool(poll.poll(0))
