"""A message and a turn request, and the rules each origin lays on them."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any

from chordage.orchestrator.core.errors import InvalidMessage
from chordage.orchestrator.core.groups import Group


class Origin(StrEnum):
    INVOKE = "invoke"
    CHAT = "chat"
    TASK = "task"
    CHORE = "chore"
    WILL = "will"


class Sender(StrEnum):
    OWNER = "owner"
    PEER = "peer"
    GUEST = "guest"
    SELF = "self"
    SERVICE = "service"


class WhenBusy(StrEnum):
    ENQUEUE = "enqueue"
    REJECT = "reject"


SELF_MADE = frozenset({Origin.TASK, Origin.CHORE, Origin.WILL})
THREAD_ID_MAX = 200

GROUP_OF = {
    Origin.INVOKE: Group.CHAT,
    Origin.CHAT: Group.CHAT,
    Origin.TASK: Group.TASK,
    Origin.CHORE: Group.CHORE,
    Origin.WILL: Group.WILL,
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Bounds:
    """How large a message may be. Over it is an error, never a truncation."""

    text_bytes: int = 256 * 1024
    meta_bytes: int = 64 * 1024


@dataclass(frozen=True, kw_only=True, slots=True)
class Message:
    origin: Origin
    channel: str | None
    sender: Sender
    thread_id: str | None
    text: str
    meta: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class TurnRequest:
    message: Message
    agent: str | None = None
    strategy: str | None = None
    control: str = "auto"
    group: Group | None = None
    tenant: str | None = None
    source: str = "api"
    dedupe_key: str | None = None
    reply_target: dict[str, Any] | None = None
    not_before: datetime | None = None
    deadline: datetime | None = None
    when_busy: WhenBusy = WhenBusy.ENQUEUE


def check(request: TurnRequest, bounds: Bounds, now: datetime) -> None:
    """Every rule of a turn request; the first that is broken is raised, with the field it is about."""
    message = request.message
    _check_origin(message)
    _check_thread_id(message.thread_id)
    _check_text(message, bounds)
    _check_group(request)
    if request.control != "auto":
        raise InvalidMessage(f"control is {request.control!r}: only 'auto' can be asked for", field="control")
    if request.deadline is not None and request.deadline <= now:
        raise InvalidMessage("deadline lies in the past: give a later one or leave it out", field="deadline")
    if request.deadline and request.not_before and request.not_before >= request.deadline:
        raise InvalidMessage("not_before is not before deadline: the turn could never start", field="not_before")
    if request.dedupe_key is not None and not 1 <= len(request.dedupe_key) <= THREAD_ID_MAX:
        raise InvalidMessage(f"dedupe_key must have 1 to {THREAD_ID_MAX} characters", field="dedupe_key")


def _check_origin(message: Message) -> None:
    if message.origin is Origin.CHAT:
        if not (message.channel or "").strip():
            raise InvalidMessage("origin 'chat' needs a channel, such as 'api' or 'telegram'", field="channel")
    elif message.channel is not None:
        raise InvalidMessage(f"origin {message.origin.value!r} takes no channel: leave it out", field="channel")
    if message.origin in SELF_MADE and message.sender is not Sender.SELF:
        raise InvalidMessage(
            f"origin {message.origin.value!r} needs sender 'self', not {message.sender.value!r}", field="sender"
        )


def _check_thread_id(thread_id: str | None) -> None:
    if thread_id is None:
        return
    if not 1 <= len(thread_id) <= THREAD_ID_MAX:
        raise InvalidMessage(
            f"thread_id must have 1 to {THREAD_ID_MAX} characters, not {len(thread_id)}", field="thread_id"
        )
    if not thread_id.isprintable() or thread_id.isspace():
        raise InvalidMessage(
            "thread_id must be visible characters: no control characters, not blank", field="thread_id"
        )


def _check_text(message: Message, bounds: Bounds) -> None:
    if not message.text.strip() and not message.meta.get("parts"):
        raise InvalidMessage("text is blank: say something, or give content parts in meta.parts", field="text")
    for name in ("text", "meta"):
        _check_storable(name, message.text if name == "text" else json.dumps(message.meta, ensure_ascii=False))
    if (size := len(message.text.encode())) > bounds.text_bytes:
        raise InvalidMessage(f"text has {size} bytes, the limit is {bounds.text_bytes}", field="text", too_large=True)
    if (size := len(json.dumps(message.meta, ensure_ascii=False).encode())) > bounds.meta_bytes:
        raise InvalidMessage(f"meta has {size} bytes, the limit is {bounds.meta_bytes}", field="meta", too_large=True)


def _check_storable(name: str, text: str) -> None:
    """PostgreSQL stores no NUL, and no half of a surrogate pair is UTF-8: refuse both before they are half stored."""
    if "\x00" in text or "\\u0000" in text:
        raise InvalidMessage(f"{name} holds a NUL character: remove it", field=name)
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InvalidMessage(f"{name} is no valid Unicode at character {error.start}", field=name) from error


def _check_group(request: TurnRequest) -> None:
    own = GROUP_OF[request.message.origin]
    if request.group is not None and request.group.rank < own.rank:
        raise InvalidMessage(
            f"group {request.group.value!r} ranks above {own.value!r}, the group of origin "
            f"{request.message.origin.value!r}: a turn may only be moved downwards",
            field="group",
        )


def group_of(request: TurnRequest) -> Group:
    return request.group or GROUP_OF[request.message.origin]
