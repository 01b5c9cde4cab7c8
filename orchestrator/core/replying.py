"""Where a caller may have its answer sent: what the room lists, and nothing else. And the secret of each receiver.

A target is sent to by us, with our network, our channels and our signature. So one that a caller names has to be on a
list of the operator's. Targets that the room itself names, in hooks.toml or by a channel that polls, are the operator's
own already.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from chordage.orchestrator.core.delivering import FIELD
from chordage.orchestrator.core.errors import InvalidMessage

_USUAL = {"http": 80, "https": 443}
_PURPOSE = b"chordage receiver 1\n"

Address = Mapping[str, str]


@dataclass(frozen=True, kw_only=True, slots=True)
class ReplyBounds:
    """`hosts`: each as `host`, with the usual ports, or as `host:port`. `channels`: of each the addresses that may be
    named, as texts; None among them: any address.
    """

    hosts: frozenset[str] = frozenset()
    channels: Mapping[str, tuple[Address | None, ...]] = field(default_factory=dict)

    def check(self, target: Mapping[str, Any]) -> None:
        """Of a target whose form is right. Raises InvalidMessage."""
        if "url" in target:
            self._check_host(str(target["url"]))
        else:
            self._check_channel(target)

    def _check_host(self, url: str) -> None:
        parts = urlsplit(url)
        usual = _USUAL[parts.scheme]
        names = {f"{parts.hostname}:{parts.port or usual}"}
        if parts.port in {None, usual}:
            names.add(str(parts.hostname))
        if not names & self.hosts:
            told = f"{FIELD}.url: no answer may be sent to host {parts.netloc!r:.200}: the operator lists it in "
            raise InvalidMessage(f"{told}CHORDAGE_REPLY_HOSTS, or binds it as a channel", field=f"{FIELD}.url")

    def _check_channel(self, target: Mapping[str, Any]) -> None:
        name = str(target["channel"])
        address = {key: str(value) for key, value in target.items() if key != "channel"}
        allowed = self.channels.get(name, ())
        if None not in allowed and address not in allowed:
            what = "this address" if allowed else "any address"
            told = f"{FIELD}: no answer may be sent to {what} of channel {name!r:.200}: the operator lists it in "
            raise InvalidMessage(f"{told}CHORDAGE_REPLY_CHANNELS", field=f"{FIELD}.channel")


def receiver_of(url: str) -> str:
    """Who is to know one secret: a host and a port."""
    parts = urlsplit(url)
    return f"{(parts.hostname or '').lower()}:{parts.port or _USUAL.get(parts.scheme, 443)}"


def secret_for(master: bytes, receiver: str) -> bytes:
    """Of this receiver alone: it tells nothing of the secret it was made of, nor of those of others."""
    return hmac.new(master, _PURPOSE + receiver.encode(), hashlib.sha256).digest()
