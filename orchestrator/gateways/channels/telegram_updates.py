"""What Telegram calls updates, made messages of: who speaks, where, and which of them are none for us."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from chordage.orchestrator.core.channels import Incoming, Polled
from chordage.orchestrator.core.message import Sender


@dataclass(frozen=True, kw_only=True, slots=True)
class Access:
    """Closed: whoever is in none of these is not heard."""

    owner: str | None
    peers: frozenset[str]
    allowed: frozenset[str]

    def sender(self, chat: str) -> Sender | None:
        if chat == self.owner:
            return Sender.OWNER
        if chat in self.peers:
            return Sender.PEER
        return Sender.GUEST if chat in self.allowed else None


@dataclass(frozen=True, kw_only=True, slots=True)
class Read:
    polled: Polled
    strangers: frozenset[str]  # chats that were not let in


def read(updates: list[Any], cursor: str | None, kinds: Collection[str], access: Access) -> Read:
    """In order of their numbers, each once. The cursor goes behind all of them, those that are no message too."""
    by_number = {number: update for update in updates if (number := _number(update)) is not None}
    messages: list[Incoming] = []
    strangers: set[str] = set()
    for number, update in sorted(by_number.items()):
        content = _content(update, kinds)
        if content is None:
            continue
        sender = access.sender(_chat(content))
        if sender is None:
            strangers.add(_chat(content))
        elif text := content.get("text") or content.get("caption"):
            messages.append(_message(number, content, sender, str(text)))
    behind = str(max(by_number) + 1) if by_number else cursor
    passed_over = len(by_number) - len(messages)
    polled = Polled(messages=tuple(messages), cursor=behind, passed_over=passed_over)
    return Read(polled=polled, strangers=frozenset(strangers))


def _number(update: Any) -> int | None:
    number = update.get("update_id") if isinstance(update, dict) else None
    return number if isinstance(number, int) else None


def _content(update: dict[str, Any], kinds: Collection[str]) -> dict[str, Any] | None:
    for kind in kinds:
        content = update.get(kind)
        if isinstance(content, dict) and isinstance(content.get("chat"), dict) and "id" in content["chat"]:
            return content
    return None


def _chat(content: dict[str, Any]) -> str:
    return str(content["chat"]["id"])


def _message(number: int, content: dict[str, Any], sender: Sender, text: str) -> Incoming:
    chat = _chat(content)
    topic = content.get("message_thread_id") if content.get("is_topic_message") else None
    address: dict[str, Any] = {"chat": chat} if topic is None else {"chat": chat, "topic": topic}
    return Incoming(
        key=str(number),
        text=text,
        sender=sender,
        address=address,
        thread=chat if topic is None else f"{chat}:{topic}",
        meta={"message_id": content.get("message_id"), **_writer(content)},
        cursor=str(number + 1),
    )


def _writer(content: dict[str, Any]) -> dict[str, Any]:
    writer = content.get("from")
    if not isinstance(writer, dict):
        return {}
    return {"from": {key: writer[key] for key in ("id", "username", "first_name") if key in writer}}
