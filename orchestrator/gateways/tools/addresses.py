"""Which internet addresses a tool may talk to: public ones, and those of networks that were allowed by name.

A model chooses the URL, so whoever writes to the agent chooses it too. Names are looked up once and the connection goes
to the very address that was checked; a name that answers with something else the second time gains nothing by it.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterable
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network

from chordage.orchestrator.gateways.name_lookup import NAMES

Address = IPv4Address | IPv6Address
Resolve = Callable[[str, int], list[str]]

PATIENCE = 10.0  # seconds for the lookup of a name
_NAT64 = ip_network("64:ff9b::/96")  # carries an IPv4 address in its last four bytes


class Refused(Exception):
    """The address is not one to talk to."""


class NotPublic(Refused):
    """The address is private, and no setting allows its network."""


class Guard:
    def __init__(self, allow: Iterable[str] = (), resolve: Resolve | None = None) -> None:
        """`allow`: networks such as "10.1.2.0/24" that may be reached although they are private."""
        self._allowed = [ip_network(network) for network in allow]
        self._resolve = resolve

    def address_of(self, host: str, port: int, seconds: float = PATIENCE) -> str:
        """An address to connect to. Raises Refused if any address of that name is one to stay away from, and
        TimeoutError.
        """
        texts = self._resolve(host, port) if self._resolve else look_up(host, port, seconds)
        found = [ip_address(text) for text in texts]
        if not found:
            raise Refused(f"{host} has no address")
        for address in found:
            if not self._is_allowed(address):
                where = host if host == str(address) else f"{host} is at {address}, which"
                raise NotPublic(f"{where} is not a public address")
        return str(found[0])

    def _is_allowed(self, address: Address) -> bool:
        inner = _unwrapped(address)
        return _is_public(inner) or any(inner in network for network in self._allowed)


def look_up(host: str, port: int, seconds: float) -> list[str]:
    try:
        answers = NAMES.look_up(host, port, seconds)
    except TimeoutError:
        raise
    except (socket.gaierror, UnicodeError) as error:
        raise Refused(f"{host} cannot be found: {error}") from error
    return [str(answer[4][0]) for answer in answers]


def _is_public(address: Address) -> bool:
    """fec0::/10 counts as global in Python; QEMU gives the host an address there."""
    is_of_site = isinstance(address, IPv6Address) and address.is_site_local
    return address.is_global and not (is_of_site or address.is_multicast or address.is_reserved)


def _unwrapped(address: Address) -> Address:
    """The IPv4 address inside an IPv6 one, where a network would deliver to that."""
    if isinstance(address, IPv4Address):
        return address
    if address in _NAT64:
        return IPv4Address(address.packed[-4:])
    return address.ipv4_mapped or address.sixtofour or address
