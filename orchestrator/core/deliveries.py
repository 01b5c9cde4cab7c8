"""Rules of delivery: where a reply may go, who its receiver is, and when it is tried again."""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from ipaddress import ip_address
from typing import Any
from urllib.parse import urlsplit

from chordage.orchestrator.core.errors import InvalidMessage
from chordage.orchestrator.core.retry import Backoff

FIELD = "reply_target"
RECEIVER_MAX = 300


class DeliveryStatus(StrEnum):
    PENDING = "pending"
    SENT = "sent"
    DEAD = "dead"  # a dead letter: given up until somebody has it sent again


@dataclass(frozen=True, kw_only=True, slots=True)
class DeliveryRules:
    attempts: int = 12
    first: float = 5.0  # seconds before the second attempt
    longest: float = 3600.0  # seconds between two attempts at most
    timeout: float = 10.0  # seconds an attempt may take
    at_once: int = 16  # attempts in hand in the whole fleet
    to_one: int = 4  # ... of them to one receiver

    @property
    def lease(self) -> float:
        """After this long nobody has it in hand any more: it is sent again, with the same key."""
        return 2 * self.timeout + 2.0

    def pause(self, attempts: int, chance: float, asked: float | None = None) -> float:
        """Seconds before the next attempt, when so many were made. `chance` is between 0 and 1; `asked`: what the
        receiver wants.
        """
        backoff = Backoff(first=self.first, longest=self.longest, jitter=0.5)
        return max(backoff.delay(attempts, chance), min(asked or 0.0, self.longest))


def check_target(target: Mapping[str, Any]) -> None:
    """Raises InvalidMessage for what nothing could ever be delivered to."""
    kinds = [name for name in ("url", "channel") if name in target]
    if len(kinds) != 1:
        raise InvalidMessage(
            f'{FIELD} must name either a web hook, {{"url": "https://…"}}, or a channel, {{"channel": "NAME", …}}',
            field=FIELD,
        )
    if kinds == ["url"]:
        _check_url(target)
        return
    name = target["channel"]
    if not isinstance(name, str) or not name.strip() or len(name) > RECEIVER_MAX // 2:
        raise InvalidMessage(f"{FIELD}.channel is {name!r}: give the name of a channel", field=f"{FIELD}.channel")


def _check_url(target: Mapping[str, Any]) -> None:
    url, field = target["url"], f"{FIELD}.url"
    if unknown := sorted(set(target) - {"url"}):
        raise InvalidMessage(f"{FIELD} with a url takes nothing else: remove {', '.join(unknown)}", field=FIELD)
    if not isinstance(url, str) or not url.isprintable() or " " in url:
        raise InvalidMessage(f"{field} is {url!r}: give an address such as https://host/path", field=field)
    try:
        parts = urlsplit(url)
        host, _port = parts.hostname, parts.port
    except ValueError as error:
        raise InvalidMessage(f"{field} is no address: {error}", field=field) from error
    if parts.scheme not in {"http", "https"} or not host:
        raise InvalidMessage(f"{field} is {url!r}: give an address with http:// or https://", field=field)
    if parts.username is not None:
        raise InvalidMessage(f"{field} has a user name or password in it: remove them", field=field)


def receiver_of(target: Mapping[str, Any]) -> str:
    """Who is spared when it is slow: a host, or a channel. Of any target, also of one that nobody knows."""
    if isinstance(url := target.get("url"), str):
        try:
            return f"host:{urlsplit(url).netloc.lower()}"[:RECEIVER_MAX]
        except ValueError:
            return "host:"
    return f"channel:{target.get('channel')}"[:RECEIVER_MAX]


def shown(target: Mapping[str, Any]) -> str:
    """A target in a few words."""
    if "url" in target:
        return _without_secrets(str(target["url"]))
    address = ", ".join(f"{name}={value}" for name, value in target.items() if name != "channel")
    return f"channel {target.get('channel')}" + (f" ({address})" if address else "")


def _without_secrets(url: str) -> str:
    """Where to, and the beginning of the path. A name and password, a query, and the rest of a path may be secrets."""
    parts = urlsplit(url)
    _, first, *rest = parts.path.split("/") if parts.path else ("", "")
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}/{first}{'/…' if rest else ''}".removesuffix("/")


# Where a caller may have its answer sent: what the room lists, and nothing else. And the secret of each receiver.
#
# A target is sent to by us, with our network, our channels and our signature. So one that a caller names has to be on a
# list of the operator's. Targets that the room itself names, in hooks.toml or by a channel that polls, are the
# operator's own already.

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


def receiver_of_url(url: str) -> str:
    """Who is to know one secret: a host and a port."""
    parts = urlsplit(url)
    return f"{(parts.hostname or '').lower()}:{parts.port or _USUAL.get(parts.scheme, 443)}"


def secret_for(master: bytes, receiver: str) -> bytes:
    """Of this receiver alone: it tells nothing of the secret it was made of, nor of those of others."""
    return hmac.new(master, _PURPOSE + receiver.encode(), hashlib.sha256).digest()


# By which names a server may be called, and from which pages. Pure.
#
# A browser carries out requests for every page it shows. One whose name was made to resolve to this machine (DNS
# rebinding) calls us by that name; another sends a form or a `no-cors` request, and says in `Origin` where it is from.

_HOST = re.compile(r"(?:\[(?P<v6>[0-9A-Fa-f:.]+)\]|(?P<name>[A-Za-z0-9._-]+))(?::(?P<port>[0-9]{1,5}))?")
ANY_ADDRESS = frozenset({"0.0.0.0", "::"})  # noqa: S104 - compared, not bound to
_USUAL_PORTS = {"http": "80", "https": "443"}


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
        usual = _USUAL_PORTS.get(parts.scheme)
        if usual is None or name is None:
            return False
        own = _HOST.fullmatch(host)
        asked = own and ((own["v6"] or own["name"]).lower(), own["port"] or usual)
        return asked == (name, str(port or usual)) or name in self.named
