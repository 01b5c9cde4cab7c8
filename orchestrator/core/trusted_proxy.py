"""A proxy that lets people log in and names them in a header.

Anyone can write a header, so it counts only where the connection itself comes from a listed network: from the address
of the other end, not from one that a header names. A request of the proxy is never one of this machine, whatever
address it has: it carries a name, or a key, or is refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from ipaddress import IPv4Network, IPv6Network, ip_address

from chordage.orchestrator.core.callers import Caller, KeyScope, check_user
from chordage.orchestrator.core.errors import Unauthenticated

PREFIX = "sso:"  # of the ids of such callers: no key has a colon in its id


@dataclass(frozen=True, kw_only=True, slots=True)
class TrustedProxy:
    header: str  # in lower case
    networks: tuple[IPv4Network | IPv6Network, ...]
    scopes: frozenset[KeyScope]
    tenant: str | None = None

    def sent(self, peer: str | None) -> bool:
        """Whether the connection is one of the proxy's."""
        try:
            address = None if peer is None else ip_address(peer)
        except ValueError:  # a socket file has no address
            return False
        if address is None:
            return False
        plain = getattr(address, "ipv4_mapped", None) or address
        return any(plain in network for network in self.networks)

    def caller(self, headers: Mapping[str, str]) -> Caller:
        """Of a request that the proxy sent. Two headers, of which one came from the browser, are no name. Raises
        Unauthenticated and Forbidden.
        """
        user = headers.get(self.header)
        if user is None:
            raise Unauthenticated(f"the proxy sent no name: it has to send {self.header}, or the client a key")
        check_user(user)
        return self.caller_of(f"{PREFIX}{user}")

    def caller_of(self, caller_id: str) -> Caller:
        sees_all = self.tenant is None and KeyScope.OPERATE in self.scopes
        return Caller(id=caller_id, tenant=self.tenant, scopes=self.scopes, sees_all=sees_all)
