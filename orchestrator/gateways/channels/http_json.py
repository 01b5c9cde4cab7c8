"""Any service that lists messages as JSON: one GET a look, with a cursor; replies by POST.

Who may speak is said by lists of writers, or by one word for all that this URL hands out. Without either nobody is
heard, and that is a fault of the file.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

from pydantic import AfterValidator, Field

from chordage.orchestrator.core.channels import Incoming, Outgoing, Polled, Unreadable, can_be_cursor
from chordage.orchestrator.core.errors import Unavailable, Undeliverable
from chordage.orchestrator.core.message import Sender
from chordage.orchestrator.gateways.channels import json_paths, web
from chordage.orchestrator.gateways.channels.ids import Ids
from chordage.orchestrator.gateways.channels.web import Web
from chordage.orchestrator.gateways.room.tables import Complain, Flag, OneOf, PairsTable, Seconds, Text, TomlTable

ANYBODY = "*"


@dataclass(frozen=True, kw_only=True, slots=True)
class Asked:
    url: str = field(repr=False)
    params: Mapping[str, str] = field(repr=False)
    headers: Mapping[str, str] = field(repr=False)
    cursor_param: str
    timeout: float
    newest_first: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class Paths:
    """Where things stand: in the answer, and in each of its messages."""

    messages: str
    next_cursor: str | None
    id: str
    text: str
    sender: str | None
    thread: str | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Access:
    everybody: Sender | None
    owners: frozenset[str]
    peers: frozenset[str]
    guests: frozenset[str]

    def sender(self, writer: str | None) -> Sender | None:
        if self.everybody is not None:
            return self.everybody
        if writer is None:
            return None
        for listed, sender in ((self.owners, Sender.OWNER), (self.peers, Sender.PEER)):
            if writer in listed:
                return sender
        return Sender.GUEST if {writer, ANYBODY} & self.guests else None


@dataclass(frozen=True, kw_only=True, slots=True)
class Told:
    url: str | None = field(repr=False)
    headers: Mapping[str, str] = field(repr=False)


def _address(url: str) -> str:
    if not url.startswith(("http://", "https://")):
        raise ValueError("must start with http:// or https://")  # it may hold a secret
    return url


SecretUrl = Annotated[Text, AfterValidator(_address)]


class HttpJsonTable(TomlTable):
    url: SecretUrl = Field(examples=["https://example.org/messages"], description="Answers with a list of messages")
    params: PairsTable = Field({}, description="Query parameters")
    headers: PairsTable = Field({}, description="HTTP headers")
    cursor_param: Text = Field("cursor", description="The query parameter with the cursor")
    timeout: Seconds = Field(20.0, description="Seconds for one request")
    newest_first: Flag = Field(False, description="Whether the newest message comes first")
    messages_path: Text = Field("messages", description="Where the answer has its messages")
    next_cursor_path: Text | None = Field(None, description="Where the answer has the next cursor")
    id_path: Text = Field("id", description="Where a message has its id")
    text_path: Text = Field("text", description="Where a message has its text")
    sender_path: Text | None = Field(None, description="Where a message names its writer")
    thread_path: Text | None = Field(None, description="Where a message names its thread")
    everybody: Annotated[Sender, OneOf()] | None = Field(None, description="What every writer speaks as")
    owners: Ids = Field(frozenset(), description="Writers that speak as owner")
    peers: Ids = Field(frozenset(), description="Writers that speak as peers")
    guests: Ids = Field(frozenset(), description='Writers that speak as guests; "*" for all')
    deliver_url: SecretUrl | None = Field(None, description="Where replies are posted")
    deliver_headers: PairsTable = Field({}, description="HTTP headers of replies")
    proxy: Text | None = Field(None, description="The address of an HTTP proxy")


TABLE = HttpJsonTable


def make(_name: str, table: HttpJsonTable, complain: Complain) -> HttpJson:
    asked = Asked(
        url=table.url,
        params=table.params,
        headers=table.headers,
        cursor_param=table.cursor_param,
        timeout=table.timeout,
        newest_first=table.newest_first,
    )
    paths = Paths(
        messages=table.messages_path,
        next_cursor=table.next_cursor_path,
        id=table.id_path,
        text=table.text_path,
        sender=table.sender_path,
        thread=table.thread_path,
    )
    access = Access(everybody=table.everybody, owners=table.owners, peers=table.peers, guests=table.guests)
    listed = access.owners or access.peers or access.guests
    if access.everybody is None and not listed:
        complain("guests", 'no writer is allowed: list owners, peers or guests, or say everybody = "service"')
    if access.everybody is None and listed and paths.sender is None:
        complain("sender_path", "is missing: say where a message names its writer, whom the lists are about")
    told = Told(url=table.deliver_url, headers=table.deliver_headers)
    return HttpJson(asked, paths, access, told, table.proxy)


class HttpJson:
    def __init__(self, asked: Asked, paths: Paths, access: Access, told: Told, proxy: str | None) -> None:
        self._asked = asked
        self._paths = paths
        self._access = access
        self._told = told
        self._polling, self._sending = Web(proxy=proxy), Web(proxy=proxy)

    def poll(self, cursor: str | None) -> Polled:
        asked = self._asked
        params = {**asked.params, **({asked.cursor_param: cursor} if cursor is not None else {})}
        answer = self._polling.ask("GET", asked.url, params=params, headers=asked.headers, timeout=asked.timeout)
        if not 200 <= answer.status < 300:
            raise web.later(f"the URL answered {answer.status}", answer)
        said = answer.json()
        listed = json_paths.found(said, self._paths.messages)
        if not isinstance(listed, list):
            raise Unavailable(f"there is no list at {self._paths.messages!r} (messages_path) in the answer")
        return self._polled(said, listed[::-1] if asked.newest_first else listed, cursor)

    def _polled(self, said: Any, listed: list[Any], cursor: str | None) -> Polled:
        """Behind each message by its id; or, where the service names a cursor, behind the whole answer alone. An id
        that cannot be stored takes us nowhere: the one before or behind it does.
        """
        messages = tuple(found for each in listed if (found := self._message(each)) is not None)
        if self._paths.next_cursor is not None:
            behind = json_paths.text(said, self._paths.next_cursor) or cursor
        else:
            ids = [one for each in listed if (one := json_paths.text(each, self._paths.id)) is not None]
            behind = next((one for one in reversed(ids) if can_be_cursor(one)), cursor)
        return Polled(messages=messages, cursor=behind, passed_over=len(listed) - len(messages))

    def _message(self, each: Any) -> Incoming | Unreadable | None:
        paths = self._paths
        writer = json_paths.text(each, paths.sender) if paths.sender else None
        sender = self._access.sender(writer)
        if sender is None:
            return None
        key = json_paths.text(each, paths.id)
        text = json_paths.text(each, paths.text)
        if key is None or text is None:
            missing = f"no id at {paths.id!r} (id_path)" if key is None else f"no text at {paths.text!r} (text_path)"
            return Unreadable(key=key or "", why=f"there is {missing}", excerpt=str(each)[:1000])
        thread = (json_paths.text(each, paths.thread) if paths.thread else None) or writer or "all"
        behind = key if paths.next_cursor is None and can_be_cursor(key) else None
        address = {"thread": thread, "id": key, **({"to": writer} if writer is not None else {})}
        meta = {"writer": writer} if writer is not None else {}
        return Incoming(key=key, text=text, sender=sender, address=address, thread=thread, meta=meta, cursor=behind)

    def deliver(self, address: Mapping[str, Any], reply: Outgoing) -> None:
        if self._told.url is None:
            raise Undeliverable("there is no deliver_url; give one to have replies sent")
        sent = {
            "key": reply.key, "thread_id": reply.thread_id, "turn_id": reply.turn_id, "text": reply.text,
            "address": dict(address), "body": dict(reply.body),
        }  # fmt: skip
        headers = {**self._told.headers, "idempotency-key": reply.key}
        web.check_taken("deliver_url", self._sending.ask("POST", self._told.url, body=sent, headers=headers))

    def close(self) -> None:
        self._polling.close()
        self._sending.close()
