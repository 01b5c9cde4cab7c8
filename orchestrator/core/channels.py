"""What passes between a channel and us: messages that came in, where to go on reading, and replies that go out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any

from chordage.orchestrator.core import text
from chordage.orchestrator.core.errors import Unavailable
from chordage.orchestrator.core.message import NAME_MAX, Message, Origin, Sender, TurnRequest
from chordage.orchestrator.core.retry import Backoff


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


# Rules of polling: what is stored in one transaction, what a message asks for, how long a channel that fails rests.

WIDEST = 50  # messages of one transaction, where the channel says how far each takes us
BACKOFF = Backoff(first=1.0, longest=60.0, jitter=0.5)  # of a channel that fails
EXCERPT = 200  # characters
LONGEST_CURSOR = 10_000  # characters


@dataclass(frozen=True, kw_only=True, slots=True)
class Batch:
    """What is stored in one transaction, with the cursor behind it."""

    messages: tuple[Incoming | Unreadable, ...]
    cursor: str | None
    passed_over: int = 0


def batches(polled: Polled) -> Iterator[Batch]:
    """At least one. Several only where each message says how far it takes us."""
    found = polled.messages
    wide = WIDEST if all(message.cursor is not None for message in found) else len(found)
    cuts = list(range(wide, len(found), wide)) if wide else []
    for start, end in zip([0, *cuts], [*cuts, len(found)], strict=True):
        if end < len(found):
            yield Batch(messages=found[start:end], cursor=found[end - 1].cursor)
        else:
            yield Batch(messages=found[start:], cursor=polled.cursor, passed_over=polled.passed_over)


def check_cursors(polled: Polled) -> None:
    """One that cannot be stored is a fault of the channel, whatever the database would make of it."""
    for cursor in (polled.cursor, *(message.cursor for message in polled.messages)):
        if cursor is not None and not can_be_cursor(cursor):
            raise Unavailable(
                f"it names a cursor that cannot be stored, {cursor[:50]!r}: at most {LONGEST_CURSOR} characters, "
                "without NUL and without half a character; what it has to say is read when it names another"
            )


def can_be_cursor(told: str) -> bool:
    return len(told) <= LONGEST_CURSOR and text.clean_text(told) == told


def cursor_before(batch: Batch, place: int, began: str | None) -> str | None:
    """How far the messages in front of that one take us, when it cannot be stored for now."""
    behind = batch.messages[place - 1].cursor if place else began
    return behind if behind is not None else began


def source_of(binding: str) -> str:
    return f"poll:{binding}"


def request_of(binding: str, terms: Terms, message: Incoming) -> TurnRequest:
    return TurnRequest(
        message=Message(
            origin=Origin.CHAT,
            channel=binding,
            sender=message.sender,
            thread_id=f"{binding}:{message.thread}",
            text=message.text,
            meta=dict(message.meta),
        ),
        agent=terms.agent,
        source=source_of(binding),
        dedupe_key=message.key,
        reply_target={**message.address, "channel": binding},
    )


def refusal_key(message: Incoming | Unreadable) -> str:
    """Its own key where that can be stored; or else one that is as much its own."""
    if 1 <= len(message.key) <= NAME_MAX and text.clean_text(message.key) == message.key:
        return message.key
    told = message.text if isinstance(message, Incoming) else message.excerpt
    return "sha256:" + sha256(f"{message.key}\n{told}".encode("utf-8", "replace")).hexdigest()


def excerpt_of(message: Incoming | Unreadable) -> str:
    told = message.text if isinstance(message, Incoming) else message.excerpt
    return text.clean_text(told[:EXCERPT])
