"""Telegram: messages by long poll, replies by sendMessage. Only chats that are listed may write.

The offset of the next poll confirms what was fetched, and it comes from the database. So Telegram sends again whatever
was not stored.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Collection, Mapping
from typing import Any

import structlog
from pydantic import Field

from chordage.orchestrator.core.channels import Incoming, Outgoing, Polled
from chordage.orchestrator.core.errors import Unavailable, Undeliverable
from chordage.orchestrator.core.message import Sender
from chordage.orchestrator.gateways.channels import json_client
from chordage.orchestrator.gateways.channels.ids import ChannelWriters, Id, Ids
from chordage.orchestrator.gateways.channels.json_client import JsonClient, JsonResponse
from chordage.orchestrator.gateways.channels.replies import split, text_of
from chordage.orchestrator.gateways.room.tables import Complain, Count, Text, Texts, TomlTable, Url

log = structlog.get_logger()

LIMIT = 100  # updates of one poll
LONGEST = 4096  # of a message, in UTF-16 units as Telegram counts
PATIENCE = 5.0  # seconds beyond those of the long poll
REMEMBERED = 1000  # replies whose sent parts are known


class TelegramTable(TomlTable):
    token: Text = Field(repr=False, examples=["123:abc"], description="Of the bot, from BotFather")
    api_base: Url = Field("https://api.telegram.org", description="The address of the Bot API")
    poll_timeout_sec: Count = Field(20, description="Seconds of one long poll, at most 50")
    owner_chat_id: Id | None = Field(None, description="The chat that speaks as owner")
    peer_chat_ids: Ids = Field(frozenset(), description="Chats that speak as peers")
    allowed_chat_ids: Ids = Field(frozenset(), description="Chats that speak as guests")
    allowed_updates: Texts = Field(("message",), description="Kinds of updates to ask for")
    proxy: Text | None = Field(None, description="The address of an HTTP proxy")


TABLE = TelegramTable


def make(name: str, table: TelegramTable, complain: Complain) -> Telegram:
    if table.poll_timeout_sec > 50:
        complain("poll_timeout_sec", f"must be at most 50, or leave it out; got {table.poll_timeout_sec}")
    return Telegram(name, table)


class Telegram:
    def __init__(self, name: str, table: TelegramTable) -> None:
        self._name = name
        self._table = table
        self._base = f"{table.api_base.rstrip('/')}/bot{table.token}"  # never to be shown
        self._writers = ChannelWriters(
            owners=frozenset([table.owner_chat_id] if table.owner_chat_id is not None else []),
            peers=table.peer_chat_ids,
            guests=table.allowed_chat_ids,
        )
        self._polling = JsonClient(proxy=table.proxy)
        self._sending = JsonClient(proxy=table.proxy)  # a reply does not wait for a connection of the long poll
        self._strangers: set[str] = set()
        self._sent: OrderedDict[str, int] = OrderedDict()  # parts of a reply, by its key
        self._lock = threading.Lock()

    def poll(self, cursor: str | None) -> Polled:
        seconds, kinds = self._table.poll_timeout_sec, self._table.allowed_updates
        parameters: dict[str, Any] = {"timeout": seconds, "limit": LIMIT, "allowed_updates": list(kinds)}
        if cursor is not None:
            parameters["offset"] = int(cursor)
        updates = self._call(self._polling, "getUpdates", parameters, seconds + PATIENCE)
        if not isinstance(updates, list):
            raise Unavailable("Telegram answered getUpdates with no list of updates")
        polled, strangers = read_updates(updates, cursor, kinds, self._writers)
        for chat in sorted(strangers - self._strangers):
            log.warning("a message was passed over: its chat is not in allowed_chat_ids", channel=self._name, chat=chat)
        self._strangers |= strangers
        return polled

    def deliver(self, address: Mapping[str, Any], reply: Outgoing) -> None:
        if "chat" not in address:
            raise Undeliverable("the address names no chat")
        parts = split(text_of(reply), LONGEST)
        for number in range(self._sent.get(reply.key, 0), len(parts)):
            parameters: dict[str, Any] = {"chat_id": address["chat"], "text": parts[number]}
            if address.get("topic") is not None:
                parameters["message_thread_id"] = address["topic"]
            self._call(self._sending, "sendMessage", parameters, 10.0)
            self._remember(reply.key, number + 1)

    def close(self) -> None:
        self._polling.close()
        self._sending.close()

    def _remember(self, key: str, parts: int) -> None:
        """When a later part of a reply fails, this process does not send the earlier ones again."""
        with self._lock:
            self._sent[key] = parts
            while len(self._sent) > REMEMBERED:
                self._sent.popitem(last=False)

    def _call(self, client: JsonClient, method: str, parameters: Any, timeout: float) -> Any:
        answer = client.request("POST", f"{self._base}/{method}", body=parameters, timeout=timeout)
        content = answer.json()
        if isinstance(content, dict) and content.get("ok") is True:
            return content.get("result")
        raise _refusal(method, answer, content if isinstance(content, dict) else {})


def _refusal(method: str, answer: JsonResponse, content: dict[str, Any]) -> Unavailable | Undeliverable:
    why = f"Telegram answered {method} with {answer.status}: {content.get('description') or 'no reason given'}"
    parameters = content.get("parameters")
    again = parameters.get("retry_after") if isinstance(parameters, dict) else None
    match answer.status:
        case 401 | 404:
            return Unavailable(f"{why}; is the token right?")
        case 409:
            return Unavailable(f"{why}; another program polls with this token, or a webhook is set")
        case 429:
            return json_client.later(why, answer, again if isinstance(again, (int, float)) else None)
        case status if 400 <= status < 500:
            return Undeliverable(why)
        case _:
            return Unavailable(why)


def read_updates(
    updates: list[Any], cursor: str | None, kinds: Collection[str], writers: ChannelWriters
) -> tuple[Polled, set[str]]:
    """The messages in the order of their numbers, each once, and the chats that may not write.

    The cursor is behind all updates, also those that are no messages.
    """
    by_number = {number: update for update in updates if (number := _number(update)) is not None}
    messages: list[Incoming] = []
    strangers: set[str] = set()
    for number, update in sorted(by_number.items()):
        content = _content(update, kinds)
        if content is None:
            continue
        sender = writers.sender(_chat(content))
        if sender is None:
            strangers.add(_chat(content))
        elif text := content.get("text") or content.get("caption"):
            messages.append(_message(number, content, sender, str(text)))
    behind = str(max(by_number) + 1) if by_number else cursor
    passed_over = len(by_number) - len(messages)
    return Polled(messages=tuple(messages), cursor=behind, passed_over=passed_over), strangers


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
