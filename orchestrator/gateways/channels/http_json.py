"""Any service that lists messages as JSON: one GET a poll, with a cursor; replies by POST.

Lists of writers say who may write, or one word for everything that this URL returns. A file without either is refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import AfterValidator, Field

from chordage.orchestrator.core.channels import Incoming, Outgoing, Polled, Unreadable, can_be_cursor
from chordage.orchestrator.core.errors import Unavailable, Undeliverable
from chordage.orchestrator.core.message import Sender
from chordage.orchestrator.gateways.channels import json_client
from chordage.orchestrator.gateways.channels.ids import ChannelWriters, Ids
from chordage.orchestrator.gateways.channels.json_client import JsonClient
from chordage.orchestrator.gateways.room.tables import Complain, Flag, OneOf, PairsTable, Seconds, Text, TomlTable

ANYBODY = "*"
WHOLE = "."


def _address(url: str) -> str:
    if not url.startswith(("http://", "https://")):
        raise ValueError("must start with http:// or https://")  # it may hold a secret
    return url


SecretUrl = Annotated[Text, AfterValidator(_address)]


class HttpJsonTable(TomlTable):
    url: SecretUrl = Field(
        repr=False, examples=["https://example.org/messages"], description="Answers with a list of messages"
    )
    params: PairsTable = Field({}, repr=False, description="Query parameters")
    headers: PairsTable = Field({}, repr=False, description="HTTP headers")
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
    deliver_url: SecretUrl | None = Field(None, repr=False, description="Where replies are posted")
    deliver_headers: PairsTable = Field({}, repr=False, description="HTTP headers of replies")
    proxy: Text | None = Field(None, description="The address of an HTTP proxy")


TABLE = HttpJsonTable


def make(_name: str, table: HttpJsonTable, complain: Complain) -> HttpJson:
    listed = ChannelWriters(owners=table.owners, peers=table.peers, guests=table.guests)
    if table.everybody is None and not listed:
        complain("guests", 'no writer is allowed: list owners, peers or guests, or say everybody = "service"')
    if table.everybody is None and listed and table.sender_path is None:
        complain("sender_path", "is missing: say where a message names its writer, whom the lists are about")
    return HttpJson(table, listed)


class HttpJson:
    def __init__(self, table: HttpJsonTable, listed: ChannelWriters) -> None:
        self._table = table
        self._listed = listed
        self._polling, self._sending = JsonClient(proxy=table.proxy), JsonClient(proxy=table.proxy)

    def poll(self, cursor: str | None) -> Polled:
        table = self._table
        params = {**table.params, **({table.cursor_param: cursor} if cursor is not None else {})}
        answer = self._polling.request("GET", table.url, params=params, headers=table.headers, timeout=table.timeout)
        if not 200 <= answer.status < 300:
            raise json_client.later(f"the URL answered {answer.status}", answer)
        content = answer.json()
        members = value_at(content, table.messages_path)
        if not isinstance(members, list):
            raise Unavailable(f"there is no list at {table.messages_path!r} (messages_path) in the answer")
        return self._polled(content, members[::-1] if table.newest_first else members, cursor)

    def _polled(self, content: Any, members: list[Any], cursor: str | None) -> Polled:
        """The cursor is the one that the service names, or else the id of the last message whose id can be stored."""
        messages = tuple(message for member in members if (message := self._message(member)) is not None)
        if self._table.next_cursor_path is not None:
            behind = text_at(content, self._table.next_cursor_path) or cursor
        else:
            ids = [text_at(member, self._table.id_path) for member in members]
            behind = next((id_ for id_ in reversed(ids) if id_ is not None and can_be_cursor(id_)), cursor)
        return Polled(messages=messages, cursor=behind, passed_over=len(members) - len(messages))

    def _message(self, member: Any) -> Incoming | Unreadable | None:
        """None: its writer may not write."""
        table = self._table
        writer = text_at(member, table.sender_path) if table.sender_path else None
        sender = self._sender(writer)
        if sender is None:
            return None
        key = text_at(member, table.id_path)
        text = text_at(member, table.text_path)
        if key is None or text is None:
            missing = (
                f"no id at {table.id_path!r} (id_path)"
                if key is None
                else f"no text at {table.text_path!r} (text_path)"
            )
            return Unreadable(key=key or "", why=f"there is {missing}", excerpt=str(member)[:1000])
        thread = (text_at(member, table.thread_path) if table.thread_path else None) or writer or "all"
        behind = key if table.next_cursor_path is None and can_be_cursor(key) else None
        address = {"thread": thread, "id": key, **({"to": writer} if writer is not None else {})}
        meta = {"writer": writer} if writer is not None else {}
        return Incoming(key=key, text=text, sender=sender, address=address, thread=thread, meta=meta, cursor=behind)

    def _sender(self, writer: str | None) -> Sender | None:
        if self._table.everybody is not None or writer is None:
            return self._table.everybody
        return self._listed.sender(writer) or (Sender.GUEST if ANYBODY in self._listed.guests else None)

    def deliver(self, address: Mapping[str, Any], reply: Outgoing) -> None:
        if self._table.deliver_url is None:
            raise Undeliverable("there is no deliver_url; give one to have replies sent")
        body = {
            "key": reply.key, "thread_id": reply.thread_id, "turn_id": reply.turn_id, "text": reply.text,
            "address": dict(address), "body": dict(reply.body),
        }  # fmt: skip
        headers = {**self._table.deliver_headers, "idempotency-key": reply.key}
        answer = self._sending.request("POST", self._table.deliver_url, body=body, headers=headers)
        json_client.check_accepted("deliver_url", answer)

    def close(self) -> None:
        self._polling.close()
        self._sending.close()


def value_at(value: Any, path: str) -> Any:
    """What is at `data.items` or `choices.0.text`; a single dot is the whole. None where there is nothing."""
    if path == WHOLE:
        return value
    for step in path.split("."):
        match value:
            case dict():
                value = value.get(step)
            case list() if step.isdecimal() and int(step) < len(value):
                value = value[int(step)]
            case _:
                return None
    return value


def text_at(value: Any, path: str) -> str | None:
    """A text or a number, as text."""
    member = value_at(value, path)
    return str(member) if isinstance(member, str | int | float) and not isinstance(member, bool) else None
