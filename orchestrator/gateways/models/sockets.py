"""Sockets for httpcore that wait in slices, plain and TLS, so that a blocked model call can be aborted.

OpenSSL keeps its state when a read, a write or a handshake times out, as long as the same operation is tried again
with the same bytes: `_patiently` does exactly that.
"""

from __future__ import annotations

import errno
import os
import select
import selectors
import socket
import ssl
from collections.abc import Callable, Iterable
from concurrent import futures
from typing import Any, TypeVar

import httpcore

from chordage.orchestrator.gateways.models.calls import Calls
from chordage.orchestrator.gateways.name_lookup import NAMES

T = TypeVar("T")
PIECE = 65_536
_UNDER_WAY = {errno.EINPROGRESS, errno.EWOULDBLOCK, errno.EAGAIN}


class SlicedStream(httpcore.NetworkStream):
    def __init__(self, sock: socket.socket, calls: Calls) -> None:
        self._sock = sock
        self._calls = calls

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        return self._patiently(lambda: self._sock.recv(max_bytes), timeout, httpcore.ReadTimeout, httpcore.ReadError)

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        left = memoryview(buffer)
        while left:
            piece = left[:PIECE]
            sent = self._patiently(
                lambda piece=piece: self._sock.send(piece),  # type: ignore[misc]  # bound now, not when called
                timeout,
                httpcore.WriteTimeout,
                httpcore.WriteError,
            )
            left = left[sent:]

    def close(self) -> None:
        self._sock.close()

    def start_tls(
        self, ssl_context: ssl.SSLContext, server_hostname: str | None = None, timeout: float | None = None
    ) -> SlicedStream:
        try:
            wrapped = ssl_context.wrap_socket(
                self._sock, server_hostname=server_hostname, do_handshake_on_connect=False
            )
        except (OSError, ValueError) as error:
            self.close()
            raise httpcore.ConnectError(str(error)) from error
        stream = SlicedStream(wrapped, self._calls)
        try:
            stream._patiently(wrapped.do_handshake, timeout, httpcore.ConnectTimeout, httpcore.ConnectError)
        except BaseException:
            stream.close()
            raise
        return stream

    def get_extra_info(self, info: str) -> Any:
        match info:
            case "ssl_object":
                return self._sock if isinstance(self._sock, ssl.SSLSocket) else None
            case "client_addr":
                return self._sock.getsockname()
            case "server_addr":
                return self._sock.getpeername()
            case "socket":
                return self._sock
            case "is_readable":
                return _is_readable(self._sock)
            case _:
                return None

    def _patiently(
        self,
        operation: Callable[[], T],
        timeout: float | None,
        too_late: type[Exception],
        broken: type[Exception],
    ) -> T:
        for seconds in self._calls.slices(timeout, too_late):
            try:
                self._sock.settimeout(seconds)
                return operation()
            except TimeoutError:
                continue
            except OSError as error:
                raise broken(str(error)) from error
        raise AssertionError("slices end by raising")


class SlicedBackend(httpcore.NetworkBackend):
    def __init__(self, calls: Calls) -> None:
        self._calls = calls

    def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[httpcore.SOCKET_OPTION] | None = None,
    ) -> SlicedStream:
        del local_address, socket_options  # never given: the connections are made in this package
        addresses = self._look_up(host, port, timeout)
        return SlicedStream(self._first_that_answers(addresses, timeout), self._calls)

    def _look_up(self, host: str, port: int, timeout: float | None) -> list[Any]:
        try:
            answer = NAMES.ask(host, port)
            for seconds in self._calls.slices(timeout, httpcore.ConnectTimeout):
                if futures.wait([answer], seconds).done:
                    return answer.result()
        except (OSError, UnicodeError) as error:
            raise httpcore.ConnectError(f"{host}: {error}") from error
        raise AssertionError("slices end by raising")

    def _first_that_answers(self, addresses: list[Any], timeout: float | None) -> socket.socket:
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
                return sock
        raise failure

    def _connect(self, sock: socket.socket, address: Any, timeout: float | None) -> None:
        sock.setblocking(False)
        code = sock.connect_ex(address)
        if code in _UNDER_WAY:
            self._wait_writable(sock, timeout)
            code = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if code:
            raise httpcore.ConnectError(f"{address[0]} port {address[1]}: {os.strerror(code)}")
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def _wait_writable(self, sock: socket.socket, timeout: float | None) -> None:
        with selectors.DefaultSelector() as selector:
            selector.register(sock, selectors.EVENT_WRITE)
            for seconds in self._calls.slices(timeout, httpcore.ConnectTimeout):
                if selector.select(seconds):
                    return


def _is_readable(sock: socket.socket) -> bool:
    """Whether an idle connection has something to say, which can only be that it was closed."""
    if sock.fileno() < 0:
        return True
    if not hasattr(select, "poll"):
        return bool(select.select([sock], [], [], 0)[0])
    poll = select.poll()
    poll.register(sock, select.POLLIN)
    return bool(poll.poll(0))
