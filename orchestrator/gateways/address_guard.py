"""Which URLs, and which addresses behind them, may be reached on behalf of a model or a stranger.

Allowed are public addresses, and those of networks that a setting names. The guard is part of the connection: it checks
the very addresses that the connection is about to try, so a name that answers with something else the next time gains
nothing by it. Host header and certificate stay those of the name.
"""

from __future__ import annotations

import socket
from collections.abc import Iterable
from concurrent.futures import Future
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from urllib.parse import urlsplit

from chordage.orchestrator.gateways.name_lookup import AddressInfo

_NAT64 = ip_network("64:ff9b::/96")  # carries an IPv4 address in its last four bytes


class AddressRefused(Exception):
    """The URL is not one to fetch."""


class NotPublic(AddressRefused):
    """The address is private, and no setting allows its network."""


class AddressGuard:
    def __init__(self, allow: Iterable[str] = ()) -> None:
        """`allow`: networks such as "10.1.2.0/24" that may be reached although they are private."""
        self._allowed = [ip_network(network) for network in allow]

    def addresses_of(self, host: str, answer: Future[list[AddressInfo]]) -> list[AddressInfo]:
        """The addresses in the answer to a name lookup. Raises AddressRefused if any of them is forbidden."""
        try:
            addresses = answer.result()
        except (socket.gaierror, UnicodeError) as error:
            raise AddressRefused(f"{host} cannot be found: {error}") from error
        self.check(host, [str(address[4][0]) for address in addresses])
        return addresses

    def check(self, host: str, addresses: Iterable[str]) -> None:
        """Raises AddressRefused."""
        checked = [ip_address(text) for text in addresses]
        if not checked:
            raise AddressRefused(f"{host} has no address")
        for address in checked:
            if not self._is_allowed(address):
                where = host if host == str(address) else f"{host} is at {address}, which"
                raise NotPublic(f"{where} is not a public address")

    def _is_allowed(self, address: IPv4Address | IPv6Address) -> bool:
        inner = _unwrapped(address)
        return _is_public(inner) or any(inner in network for network in self._allowed)


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


def checked_url(url: str) -> str:
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
    return parts.geturl()
