"""Messages that come in from a channel, replies that go out, and the rules of polling.

What is stored in one transaction, the request that a message becomes, and the cursors with which reading continues.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from hashlib import sha256
from typing import Any

from chordage.orchestrator.core import text
from chordage.orchestrator.core.errors import Unavailable
from chordage.orchestrator.core.message import Message, Origin, Sender, TurnRequest
from chordage.orchestrator.core.retry import Backoff


@dataclass(frozen=True, kw_only=True, slots=True)
class Terms:
    """The settings of a binding that are not its plugin's."""

    plugin: str
    agent: str | None = None  # None: the room's default
    every: float = 5.0  # seconds between two polls that bring nothing


@dataclass(frozen=True, kw_only=True, slots=True)
class Incoming:
    """A message from a channel."""

    key: str  # the same each time the channel returns the same message
    text: str
    sender: Sender
    address: Mapping[str, Any]  # where a reply goes, in the channel's own terms
    thread: str  # of the channel: an address, and a topic where there is one
    meta: Mapping[str, Any] = field(default_factory=dict)
    cursor: str | None = None  # behind this message; None: only the one behind the last is known


@dataclass(frozen=True, kw_only=True, slots=True)
class Unreadable:
    """An item that cannot be a message, for example because it is too large to fetch. It is recorded."""

    key: str
    why: str
    excerpt: str = ""
    cursor: str | None = None  # as in Incoming


@dataclass(frozen=True, kw_only=True, slots=True)
class Polled:
    """The items of one poll, in the order in which they are stored."""

    messages: tuple[Incoming | Unreadable, ...]
    cursor: str | None  # where the next poll begins, once these are stored
    passed_over: int = 0  # items that are not for us


@dataclass(frozen=True, kw_only=True, slots=True)
class Outgoing:
    """The result of a turn, for its receiver."""

    key: str  # the same each time the same reply is sent
    thread_id: str
    turn_id: str
    text: str | None
    body: Mapping[str, Any]  # all of it: reason, code, detail, text


WIDEST = 50  # messages of one transaction, where each has a cursor
BACKOFF = Backoff(first=1.0, longest=60.0, jitter=0.5)  # of a channel that fails
EXCERPT = 200  # characters
LONGEST_CURSOR = 10_000  # characters


def batches(polled: Polled) -> Iterator[Polled]:
    """The parts that are stored in one transaction each. Several only where each message has a cursor."""
    messages, start = polled.messages, 0
    if all(message.cursor is not None for message in messages):
        while start + WIDEST < len(messages):
            part = messages[start : start + WIDEST]
            yield Polled(messages=part, cursor=part[-1].cursor)
            start += WIDEST
    yield replace(polled, messages=messages[start:])


def check_cursors(polled: Polled) -> None:
    """Raises Unavailable for a cursor that cannot be stored: that is a fault of the channel."""
    for cursor in (polled.cursor, *(message.cursor for message in polled.messages)):
        if cursor is not None and not can_be_cursor(cursor):
            raise Unavailable(
                f"it names a cursor that cannot be stored, {cursor[:50]!r}: at most {LONGEST_CURSOR} characters, "
                "without NUL and without half a character; what it has to say is read when it names another"
            )


def can_be_cursor(value: str) -> bool:
    return len(value) <= LONGEST_CURSOR and text.clean_text(value) == value


def cursor_before(batch: Polled, place: int, began: str | None) -> str | None:
    """The cursor in front of the message at that place, which cannot be stored for now."""
    behind = batch.messages[place - 1].cursor if place else began
    return behind if behind is not None else began


def source_of(binding: str) -> str:
    return f"poll:{binding}"


def request_of(binding: str, terms: Terms, message: Incoming) -> TurnRequest:
    return TurnRequest(
        message=Message(
            origin=Origin.CHAT, channel=binding, sender=message.sender, thread_id=f"{binding}:{message.thread}",
            text=message.text, meta=dict(message.meta),
        ),
        agent=terms.agent, source=source_of(binding), dedupe_key=message.key,
        reply_target={**message.address, "channel": binding},
    )  # fmt: skip


def refusal_key(message: Incoming | Unreadable) -> str:
    """The message's key, or a digest where that cannot be stored."""
    if 1 <= len(message.key) <= text.NAME_MAX and text.clean_text(message.key) == message.key:
        return message.key
    return "sha256:" + sha256(f"{message.key}\n{_content(message)}".encode("utf-8", "replace")).hexdigest()


def excerpt_of(message: Incoming | Unreadable) -> str:
    return text.clean_text(_content(message)[:EXCERPT])


def _content(message: Incoming | Unreadable) -> str:
    return message.text if isinstance(message, Incoming) else message.excerpt
