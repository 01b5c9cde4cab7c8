"""HTTP connections to an address that was checked before, while Host header and certificate stay those of the name."""

from __future__ import annotations

import contextlib
import http.client
import socket
import ssl


def to(address: str, host: str, port: int, *, secure: bool, timeout: float) -> http.client.HTTPConnection:
    if secure:
        return _HTTPS(address, host, port, timeout)
    return _HTTP(address, host, port, timeout)


def cut(connection: http.client.HTTPConnection) -> None:
    """End it from another thread; whoever reads from it notices at once."""
    sock: socket.socket | None = connection.sock
    if sock is not None:
        with contextlib.suppress(OSError):  # it is closed already
            sock.shutdown(socket.SHUT_RDWR)


class _HTTP(http.client.HTTPConnection):
    def __init__(self, address: str, host: str, port: int, timeout: float) -> None:
        super().__init__(host, port, timeout=timeout)
        self._address = address

    def connect(self) -> None:
        self.sock = socket.create_connection((self._address, self.port), self.timeout)


class _HTTPS(http.client.HTTPSConnection):
    def __init__(self, address: str, host: str, port: int, timeout: float) -> None:
        self._tls = ssl.create_default_context()
        super().__init__(host, port, timeout=timeout, context=self._tls)
        self._address = address

    def connect(self) -> None:
        plain = socket.create_connection((self._address, self.port), self.timeout)
        try:
            self.sock = self._tls.wrap_socket(plain, server_hostname=self.host)
        except BaseException:
            plain.close()
            raise
