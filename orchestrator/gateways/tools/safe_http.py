"""HTTP requests to URLs that a model or a stranger chose: only to allowed addresses, and within a deadline.

Allowed are public addresses, and those of networks that a setting names. A name is looked up once, and the connection
goes to the very address that was checked, while Host header and certificate stay those of the name; a name that answers
with something else the second time gains nothing by it.

A server that sends a byte now and then never runs into a time limit for a single read. So each connection has a
deadline for all that is done with it, and what is left of it is the time limit of every read and write.
"""

from __future__ import annotations

import http.client
import io
import socket
import ssl
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from typing import Any
from urllib.parse import SplitResult, quote, urlsplit

from chordage.orchestrator.gateways.name_lookup import NAMES

Resolve = Callable[[str, int], list[str]]

LATE = "the answer did not end in time"
LOOKUP_SECONDS = 10.0
_PIECE = 65_536
_SAFE = "/%:@!$&'()*+,;=~-._?"  # what stays as it is in a path and a query
_NAT64 = ip_network("64:ff9b::/96")  # carries an IPv4 address in its last four bytes


class AddressRefused(Exception):
    """The URL is not one to fetch."""


class NotPublic(AddressRefused):
    """The address is private, and no setting allows its network."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RequestDeadline:
    """Until when everything has to be done (of time.monotonic()), and how long a single wait may take."""

    at: float
    stall: float

    def seconds(self) -> float:
        left = self.at - time.monotonic()
        if left <= 0:
            raise TimeoutError(LATE)
        return min(left, self.stall)


class AddressGuard:
    def __init__(self, allow: Iterable[str] = (), resolve: Resolve | None = None) -> None:
        """`allow`: networks such as "10.1.2.0/24" that may be reached although they are private."""
        self._allowed = [ip_network(network) for network in allow]
        self._resolve = resolve

    def address_of(self, host: str, port: int, seconds: float = LOOKUP_SECONDS) -> str:
        """An address to connect to. Raises AddressRefused if any address of the name is forbidden, and TimeoutError."""
        texts = self._resolve(host, port) if self._resolve else _look_up(host, port, seconds)
        addresses = [ip_address(text) for text in texts]
        if not addresses:
            raise AddressRefused(f"{host} has no address")
        for address in addresses:
            if not self._is_allowed(address):
                where = host if host == str(address) else f"{host} is at {address}, which"
                raise NotPublic(f"{where} is not a public address")
        return str(addresses[0])

    def _is_allowed(self, address: IPv4Address | IPv6Address) -> bool:
        inner = _unwrapped(address)
        return _is_public(inner) or any(inner in network for network in self._allowed)


def _look_up(host: str, port: int, seconds: float) -> list[str]:
    try:
        answers = NAMES.look_up(host, port, seconds)
    except TimeoutError:
        raise
    except (socket.gaierror, UnicodeError) as error:
        raise AddressRefused(f"{host} cannot be found: {error}") from error
    return [str(answer[4][0]) for answer in answers]


def _is_public(address: IPv4Address | IPv6Address) -> bool:
    """fec0::/10 counts as global in Python; QEMU gives the host an address there."""
    is_of_site = isinstance(address, IPv6Address) and address.is_site_local
    return address.is_global and not (is_of_site or address.is_multicast or address.is_reserved)


def _unwrapped(address: IPv4Address | IPv6Address) -> IPv4Address | IPv6Address:
    """The IPv4 address inside an IPv6 one, where a network would deliver to that."""
    if isinstance(address, IPv4Address):
        return address
    if address in _NAT64:
        return IPv4Address(address.packed[-4:])
    return address.ipv4_mapped or address.sixtofour or address


def checked_url(url: str) -> SplitResult:
    """Raises AddressRefused."""
    try:
        parts = urlsplit(url.strip())
        host, _port = parts.hostname, parts.port
    except ValueError as error:
        raise AddressRefused(f"{url!r} is not a URL: {error}") from error
    if parts.scheme not in {"http", "https"} or not host:
        raise AddressRefused(f"{url!r} is not a web address; write http://host/path or https://host/path")
    if parts.username is not None:
        raise AddressRefused("a URL with a user name or password in it is not fetched")
    return parts


def target_of(parts: SplitResult) -> str:
    path = quote(parts.path or "/", safe=_SAFE)
    return f"{path}?{quote(parts.query, safe=_SAFE)}" if parts.query else path


@contextmanager
def connection_to(
    parts: SplitResult, guard: AddressGuard, deadline: RequestDeadline
) -> Iterator[http.client.HTTPConnection]:
    """Raises AddressRefused, TimeoutError, and OSError where no good HTTP comes back. Closed afterwards."""
    secure = parts.scheme == "https"
    host, port = parts.hostname or "", parts.port or (443 if secure else 80)
    address = guard.address_of(host, port, deadline.seconds())
    connection = (_HTTPS if secure else _HTTP)(address, host, port, deadline)
    try:
        yield connection
    except TimeoutError:
        deadline.seconds()  # says that the time is up, where it is; else a single wait was too long
        raise
    except http.client.HTTPException as error:
        raise ConnectionError(f"{connection.host} did not answer in good HTTP: {error!r}") from error
    finally:
        connection.close()


class _HTTP(http.client.HTTPConnection):
    def __init__(self, address: str, host: str, port: int, deadline: RequestDeadline) -> None:
        super().__init__(host, port)
        self._address = address
        self._deadline = deadline

    def connect(self) -> None:
        plain = socket.create_connection((self._address, self.port), self._deadline.seconds())
        self.sock = _TimedSocket(plain, self._deadline)  # has what http.client uses of a socket


class _HTTPS(http.client.HTTPSConnection):
    def __init__(self, address: str, host: str, port: int, deadline: RequestDeadline) -> None:
        self._tls = ssl.create_default_context()
        super().__init__(host, port, context=self._tls)
        self._address = address
        self._deadline = deadline

    def connect(self) -> None:
        plain = socket.create_connection((self._address, self.port), self._deadline.seconds())
        try:
            plain.settimeout(self._deadline.seconds())  # of the handshake as a whole
            secured = self._tls.wrap_socket(plain, server_hostname=self.host)
            self.sock = _TimedSocket(secured, self._deadline)
        except BaseException:
            plain.close()
            raise


class _TimedSocket:
    """As much of a socket as http.client uses. It outlives the connection, which drops it after the headers of an
    answer that says `Connection: close`.
    """

    def __init__(self, sock: socket.socket, deadline: RequestDeadline) -> None:
        self._sock = sock
        self._deadline = deadline

    def sendall(self, data: Any) -> None:
        left = memoryview(data)
        while left:
            self._sock.settimeout(self._deadline.seconds())
            left = left[self._sock.send(left[:_PIECE]) :]

    def makefile(self, mode: str) -> io.BufferedReader:
        assert mode == "rb"
        return io.BufferedReader(_TimedReader(self._sock, self._deadline))

    def close(self) -> None:
        self._sock.close()


class _TimedReader(io.RawIOBase):
    def __init__(self, sock: socket.socket, deadline: RequestDeadline) -> None:
        self._sock = sock
        self._deadline = deadline
        self._raw = sock.makefile("rb", buffering=0)  # the socket stays open until this is closed

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        self._sock.settimeout(self._deadline.seconds())
        return self._raw.readinto(buffer)

    def close(self) -> None:
        self._raw.close()
        super().close()
