"""What passes between a channel and us: messages that came in, where to go on reading, and replies that go out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from chordage.orchestrator.core.message import Sender


@dataclass(frozen=True, kw_only=True, slots=True)
class Terms:
    """What a binding says beside what its plugin is told."""

    plugin: str
    agent: str | None = None  # None: the room's default
    every: float = 5.0  # seconds between two looks that bring nothing


@dataclass(frozen=True, kw_only=True, slots=True)
class Incoming:
    """A message as a channel has it."""

    key: str  # the same whenever the channel hands out the same message again
    text: str
    sender: Sender
    address: Mapping[str, Any]  # where a reply to it goes, in the channel's own words
    thread: str  # of the channel: an address, and a topic where there is one
    meta: Mapping[str, Any] = field(default_factory=dict)
    cursor: str | None = None  # where to go on once this and all before it are stored; None: only behind the last


@dataclass(frozen=True, kw_only=True, slots=True)
class Unreadable:
    """What was there, and can be no message: too large to be fetched, say. It is put on record with what is known."""

    key: str
    why: str
    excerpt: str = ""
    cursor: str | None = None  # as of Incoming


@dataclass(frozen=True, kw_only=True, slots=True)
class Polled:
    """What one look at a channel has brought, in the order in which it shall be stored."""

    messages: tuple[Incoming | Unreadable, ...]
    cursor: str | None  # where the next look begins, once these are stored
    passed_over: int = 0  # what was there and is no message for us


@dataclass(frozen=True, kw_only=True, slots=True)
class Outgoing:
    """What a turn came to, for whoever is told of it."""

    key: str  # the same each time the same reply is sent
    thread_id: str
    turn_id: str
    text: str | None
    body: Mapping[str, Any]  # the whole of it: reason, code, detail, text
