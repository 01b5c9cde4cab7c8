"""The names under which a server may be called, and the pages that may call it.

A browser carries out requests for every page it shows. A page whose name was made to resolve to this machine (DNS
rebinding) calls the server by that name; another sends a form or a `no-cors` request, and names itself in `Origin`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from ipaddress import ip_address
from urllib.parse import urlsplit

_HOST = re.compile(r"(?:\[(?P<v6>[0-9A-Fa-f:.]+)\]|(?P<name>[A-Za-z0-9._-]+))(?::(?P<port>[0-9]{1,5}))?")
_ANY_ADDRESS = frozenset({"0.0.0.0", "::"})  # noqa: S104 - compared, not bound to
_USUAL_PORTS = {"http": "80", "https": "443"}


def is_loopback(name: str) -> bool:
    """Whether a server there can be reached from this machine alone."""
    try:
        return ip_address(name).is_loopback
    except ValueError:
        return name.lower() == "localhost"


@dataclass(frozen=True, kw_only=True, slots=True)
class Hosts:
    """`named`: the operator's names for it, in lower case; those of loopback are always valid. `address`: where it
    listens; that is one of its names, but gives no page the right to call it.
    """

    named: frozenset[str] = frozenset()
    address: str = "127.0.0.1"

    def takes(self, host: str) -> bool:
        """`host`: the value of the header."""
        parts = _HOST.fullmatch(host)
        if parts is None:
            return False
        name = (parts["v6"] or parts["name"]).lower()
        return name in self.named or is_loopback(name) or (name == self.address.lower() and name not in _ANY_ADDRESS)

    def takes_page(self, origin: str, host: str) -> bool:
        """Whether a page from this origin may send requests to this host: its own page, or one the operator names."""
        try:
            parts = urlsplit(origin)
            name, port = parts.hostname, parts.port
        except ValueError:
            return False
        usual = _USUAL_PORTS.get(parts.scheme)
        if usual is None or name is None:
            return False
        own = _HOST.fullmatch(host)
        is_own = own and ((own["v6"] or own["name"]).lower(), own["port"] or usual) == (name, str(port or usual))
        return bool(is_own) or name in self.named
