"""Rules of delivery: where a reply may go, who its receiver is, and when it is tried again.

We send to a target with our network, our channels and our signature. So a target that a caller names has to be on the
operator's list, `ReplyBounds`. Targets that the room names, in hooks.toml or through a polled channel, are the
operator's already.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any
from urllib.parse import urlsplit

from chordage.orchestrator.core.errors import InvalidMessage
from chordage.orchestrator.core.retry import Backoff

FIELD = "reply_target"
RECEIVER_MAX = 300
_USUAL_PORTS = {"http": 80, "https": 443}
_PURPOSE = b"chordage receiver 1\n"

Address = Mapping[str, str]


class DeliveryStatus(StrEnum):
    PENDING = "pending"
    SENT = "sent"
    DEAD = "dead"  # given up, until an operator has it sent again


@dataclass(frozen=True, kw_only=True, slots=True)
class DeliveryRules:
    attempts: int = 12
    first: float = 5.0  # seconds before the second attempt
    longest: float = 3600.0  # seconds between two attempts at most
    timeout: float = 10.0  # seconds an attempt may take
    at_once: int = 16  # attempts at the same time in the whole fleet
    to_one: int = 4  # ... of them to one receiver

    @property
    def lease(self) -> float:
        """Seconds after which an attempt counts as lost: the delivery is sent again, with the same key."""
        return 2 * self.timeout + 2.0

    def pause(self, attempts: int, chance: float, asked: float | None = None) -> float:
        """Seconds before the next attempt, after so many. `chance` is between 0 and 1; `asked`: the receiver's wish."""
        backoff = Backoff(first=self.first, longest=self.longest, jitter=0.5)
        return max(backoff.delay(attempts, chance), min(asked or 0.0, self.longest))


def check_target(target: Mapping[str, Any]) -> None:
    """Raises InvalidMessage for a target that is none of the two forms."""
    kinds = [name for name in ("url", "channel") if name in target]
    if len(kinds) != 1:
        raise InvalidMessage(
            f'{FIELD} must name either a webhook, {{"url": "https://…"}}, or a channel, {{"channel": "NAME", …}}',
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
    """The host or channel whose deliveries are limited together. Also of a target that is not valid."""
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
    """The host and the beginning of the path. A user, a query, and the rest of a path may be secrets."""
    parts = urlsplit(url)
    _, first, *rest = parts.path.split("/") if parts.path else ("", "")
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}/{first}{'/…' if rest else ''}".removesuffix("/")


@dataclass(frozen=True, kw_only=True, slots=True)
class ReplyBounds:
    """Where a caller may have its answer sent. `hosts`: each as `host`, with the usual ports, or as `host:port`.
    `channels`: the addresses allowed in each, as texts; None among them: any address.
    """

    hosts: frozenset[str] = frozenset()
    channels: Mapping[str, tuple[Address | None, ...]] = field(default_factory=dict)

    def check(self, target: Mapping[str, Any]) -> None:
        """Of a target that `check_target` accepts. Raises InvalidMessage."""
        if "url" in target:
            self._check_host(str(target["url"]))
        else:
            self._check_channel(target)

    def _check_host(self, url: str) -> None:
        parts = urlsplit(url)
        usual = _USUAL_PORTS[parts.scheme]
        names = {f"{parts.hostname}:{parts.port or usual}"}
        if parts.port in {None, usual}:
            names.add(str(parts.hostname))
        if not names & self.hosts:
            raise InvalidMessage(
                f"{FIELD}.url: no answer may be sent to host {parts.netloc!r:.200}: the operator lists it in "
                "CHORDAGE_REPLY_HOSTS, or binds it as a channel",
                field=f"{FIELD}.url",
            )

    def _check_channel(self, target: Mapping[str, Any]) -> None:
        name = str(target["channel"])
        address = {key: str(value) for key, value in target.items() if key != "channel"}
        allowed = self.channels.get(name, ())
        if None not in allowed and address not in allowed:
            what = "this address" if allowed else "any address"
            raise InvalidMessage(
                f"{FIELD}: no answer may be sent to {what} of channel {name!r:.200}: the operator lists it in "
                "CHORDAGE_REPLY_CHANNELS",
                field=f"{FIELD}.channel",
            )


def receiver_of_url(url: str) -> str:
    """The host and port that share a secret."""
    parts = urlsplit(url)
    return f"{(parts.hostname or '').lower()}:{parts.port or _USUAL_PORTS.get(parts.scheme, 443)}"


def secret_for(master: bytes, receiver: str) -> bytes:
    """The receiver's own secret: neither the master secret nor that of another receiver can be derived from it."""
    return hmac.new(master, _PURPOSE + receiver.encode(), hashlib.sha256).digest()
