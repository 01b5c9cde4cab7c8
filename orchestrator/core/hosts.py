"""By which names a server may be called, and from which pages. Pure.

A browser carries out requests for every page it shows. One whose name was made to resolve to this machine (DNS
rebinding) calls us by that name; another sends a form or a `no-cors` request, and says in `Origin` where it is from.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from ipaddress import ip_address
from urllib.parse import urlsplit

_HOST = re.compile(r"(?:\[(?P<v6>[0-9A-Fa-f:.]+)\]|(?P<name>[A-Za-z0-9._-]+))(?::(?P<port>[0-9]{1,5}))?")
ANY_ADDRESS = frozenset({"0.0.0.0", "::"})  # noqa: S104 - compared, not bound to
_USUAL = {"http": "80", "https": "443"}


def is_loopback(name: str) -> bool:
    """Whether only this machine can reach what listens there."""
    try:
        return ip_address(name).is_loopback
    except ValueError:
        return name.lower() == "localhost"


@dataclass(frozen=True, kw_only=True, slots=True)
class Hosts:
    """`named`: what the operator says it is called, in small letters; loopback names need not be said. `address`: what
    it listens on; it is one of its names, and says nothing of pages.
    """

    named: frozenset[str] = frozenset()
    address: str = "127.0.0.1"

    def takes(self, host: str) -> bool:
        """`host`: as the header has it."""
        found = _HOST.fullmatch(host)
        if found is None:
            return False
        name = (found["v6"] or found["name"]).lower()
        return name in self.named or is_loopback(name) or (name == self.address.lower() and name not in ANY_ADDRESS)

    def takes_page(self, origin: str, host: str) -> bool:
        """Whether a page from this origin may send requests to this host: its own page, or one the operator names."""
        try:
            parts = urlsplit(origin)
            name, port = parts.hostname, parts.port
        except ValueError:
            return False
        usual = _USUAL.get(parts.scheme)
        if usual is None or name is None:
            return False
        own = _HOST.fullmatch(host)
        asked = own and ((own["v6"] or own["name"]).lower(), own["port"] or usual)
        return asked == (name, str(port or usual)) or name in self.named
