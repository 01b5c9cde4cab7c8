"""HTTP connections to an address that was checked before, while Host header and certificate stay those of the name.

Each has a deadline for all that is done with it. A server that sends a byte now and then never runs into a time limit
for a single read, so what is left until the deadline is the time limit of every read and write.
"""

from __future__ import annotations

import http.client
import io
import socket
import ssl
import time
from dataclasses import dataclass
from typing import Any

LATE = "the answer did not end in time"
_PIECE = 65_536


@dataclass(frozen=True, kw_only=True, slots=True)
class Patience:
    """Until when everything has to be done (of time.monotonic()), and how long a single wait may take."""

    deadline: float
    stall: float

    def seconds(self) -> float:
        left = self.deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError(LATE)
        return min(left, self.stall)


def to(address: str, host: str, port: int, *, secure: bool, patience: Patience) -> http.client.HTTPConnection:
    if secure:
        return _HTTPS(address, host, port, patience)
    return _HTTP(address, host, port, patience)


class _HTTP(http.client.HTTPConnection):
    def __init__(self, address: str, host: str, port: int, patience: Patience) -> None:
        super().__init__(host, port)
        self._address = address
        self._patience = patience

    def connect(self) -> None:
        plain = socket.create_connection((self._address, self.port), self._patience.seconds())
        self.sock = _Line(plain, self._patience)  # has what http.client uses of a socket


class _HTTPS(http.client.HTTPSConnection):
    def __init__(self, address: str, host: str, port: int, patience: Patience) -> None:
        self._tls = ssl.create_default_context()
        super().__init__(host, port, context=self._tls)
        self._address = address
        self._patience = patience

    def connect(self) -> None:
        plain = socket.create_connection((self._address, self.port), self._patience.seconds())
        try:
            plain.settimeout(self._patience.seconds())  # of the handshake as a whole
            secured = self._tls.wrap_socket(plain, server_hostname=self.host)
            self.sock = _Line(secured, self._patience)  # has what http.client uses of a socket
        except BaseException:
            plain.close()
            raise


class _Line:
    """As much of a socket as http.client uses. It outlives the connection, which lets go of it at the headers of an
    answer that says `Connection: close`.
    """

    def __init__(self, sock: socket.socket, patience: Patience) -> None:
        self._sock = sock
        self._patience = patience

    def sendall(self, data: Any) -> None:
        left = memoryview(data)
        while left:
            self._sock.settimeout(self._patience.seconds())
            left = left[self._sock.send(left[:_PIECE]) :]

    def makefile(self, mode: str) -> io.BufferedReader:
        assert mode == "rb"
        return io.BufferedReader(_Reader(self._sock, self._patience))

    def close(self) -> None:
        self._sock.close()


class _Reader(io.RawIOBase):
    def __init__(self, sock: socket.socket, patience: Patience) -> None:
        self._sock = sock
        self._patience = patience
        self._raw = sock.makefile("rb", buffering=0)  # the socket stays open until this is closed

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        self._sock.settimeout(self._patience.seconds())
        return self._raw.readinto(buffer)

    def close(self) -> None:
        self._raw.close()
        super().close()
