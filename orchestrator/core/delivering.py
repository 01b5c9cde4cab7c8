"""Rules of delivery: where a reply may go, who its receiver is, and when it is tried again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
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
