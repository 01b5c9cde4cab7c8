"""Telegram: messages by long poll, replies by sendMessage. Nobody is let in who is not listed.

What was fetched is confirmed by the offset of the next look, and that comes out of the database: so Telegram hands out
again whatever was not stored.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import structlog
from pydantic import Field

from chordage.orchestrator.core.channels import Outgoing, Polled
from chordage.orchestrator.core.errors import Unavailable, Undeliverable
from chordage.orchestrator.gateways.channels import telegram_updates, web
from chordage.orchestrator.gateways.channels.ids import Id, Ids
from chordage.orchestrator.gateways.channels.replies import text_of
from chordage.orchestrator.gateways.channels.splitting import split
from chordage.orchestrator.gateways.channels.telegram_updates import Access
from chordage.orchestrator.gateways.channels.web import Answer, Web
from chordage.orchestrator.gateways.room.tables import Complain, Count, Text, Texts, TomlTable, Url

log = structlog.get_logger()

LIMIT = 100  # updates of one look
LONGEST = 4096  # of a message, in UTF-16 units as Telegram counts
PATIENCE = 5.0  # seconds beyond those of the long poll
REMEMBERED = 1000  # replies of which the parts are known that were sent


@dataclass(frozen=True, kw_only=True, slots=True)
class Bot:
    base: str  # with the token in it: never to be shown
    timeout: int
    kinds: tuple[str, ...]
    proxy: str | None


class TelegramTable(TomlTable):
    token: Text = Field(examples=["123:abc"], description="Of the bot, from BotFather")
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
    access = Access(owner=table.owner_chat_id, peers=table.peer_chat_ids, allowed=table.allowed_chat_ids)
    bot = Bot(
        base=f"{table.api_base.rstrip('/')}/bot{table.token}",
        timeout=table.poll_timeout_sec,
        kinds=table.allowed_updates,
        proxy=table.proxy,
    )
    return Telegram(name, bot, access)


class Telegram:
    def __init__(self, name: str, bot: Bot, access: Access) -> None:
        self._name = name
        self._bot = bot
        self._access = access
        self._polling, self._sending = (
            Web(proxy=bot.proxy),
            Web(proxy=bot.proxy),
        )  # a reply does not wait for a connection of the long poll
        self._strangers: set[str] = set()
        self._sent: OrderedDict[str, int] = OrderedDict()  # parts of a reply, by its key
        self._lock = threading.Lock()

    def poll(self, cursor: str | None) -> Polled:
        asked: dict[str, Any] = {
            "timeout": self._bot.timeout, "limit": LIMIT, "allowed_updates": list(self._bot.kinds)
        }  # fmt: skip
        if cursor is not None:
            asked["offset"] = int(cursor)
        found = self._ask(self._polling, "getUpdates", asked, self._bot.timeout + PATIENCE)
        if not isinstance(found, list):
            raise Unavailable("Telegram answered getUpdates with no list of updates")
        read = telegram_updates.read(found, cursor, self._bot.kinds, self._access)
        for chat in sorted(read.strangers - self._strangers):
            log.warning("a message was passed over: its chat is not in allowed_chat_ids", channel=self._name, chat=chat)
        self._strangers |= read.strangers
        return read.polled

    def deliver(self, address: Mapping[str, Any], reply: Outgoing) -> None:
        if "chat" not in address:
            raise Undeliverable("the address names no chat")
        parts = split(text_of(reply), LONGEST)
        for number in range(self._sent.get(reply.key, 0), len(parts)):
            sent: dict[str, Any] = {"chat_id": address["chat"], "text": parts[number]}
            if address.get("topic") is not None:
                sent["message_thread_id"] = address["topic"]
            self._ask(self._sending, "sendMessage", sent, 10.0)
            self._remember(reply.key, number + 1)

    def close(self) -> None:
        self._polling.close()
        self._sending.close()

    def _remember(self, key: str, parts: int) -> None:
        """What was sent of a reply is not sent again by this process, when a later part of it fails."""
        with self._lock:
            self._sent[key] = parts
            while len(self._sent) > REMEMBERED:
                self._sent.popitem(last=False)

    def _ask(self, over: Web, method: str, body: Any, timeout: float) -> Any:
        answer = over.ask("POST", f"{self._bot.base}/{method}", body=body, timeout=timeout)
        said = answer.json()
        if isinstance(said, dict) and said.get("ok") is True:
            return said.get("result")
        raise _refusal(method, answer, said if isinstance(said, dict) else {})


def _refusal(method: str, answer: Answer, said: dict[str, Any]) -> Unavailable | Undeliverable:
    why = f"Telegram answered {method} with {answer.status}: {said.get('description') or 'no reason given'}"
    given = said.get("parameters")
    again = given.get("retry_after") if isinstance(given, dict) else None
    match answer.status:
        case 401 | 404:
            return Unavailable(f"{why}; is the token right?")
        case 409:
            return Unavailable(f"{why}; another program polls with this token, or a webhook is set")
        case 429:
            return web.later(why, answer, again if isinstance(again, (int, float)) else None)
        case status if 400 <= status < 500:
            return Undeliverable(why)
        case _:
            return Unavailable(why)
