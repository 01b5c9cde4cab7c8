"""Any service that lists messages as JSON: one GET a poll, with a cursor; replies by POST.

Lists of writers say who may write, or one word for everything that this URL returns. A file without either is refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

from pydantic import AfterValidator, Field

from chordage.orchestrator.core.channels import Incoming, Outgoing, Polled, Unreadable, can_be_cursor
from chordage.orchestrator.core.errors import Unavailable, Undeliverable
from chordage.orchestrator.core.message import Sender
from chordage.orchestrator.gateways.channels import json_client
from chordage.orchestrator.gateways.channels.ids import Ids
from chordage.orchestrator.gateways.channels.json_client import JsonClient
from chordage.orchestrator.gateways.room.tables import Complain, Flag, OneOf, PairsTable, Seconds, Text, TomlTable

ANYBODY = "*"
WHOLE = "."


@dataclass(frozen=True, kw_only=True, slots=True)
class PollRequest:
    url: str = field(repr=False)
    params: Mapping[str, str] = field(repr=False)
    headers: Mapping[str, str] = field(repr=False)
    cursor_param: str
    timeout: float
    newest_first: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class Paths:
    """Paths into the answer, and into each of its messages."""

    messages: str
    next_cursor: str | None
    id: str
    text: str
    sender: str | None
    thread: str | None


@dataclass(frozen=True, kw_only=True, slots=True)
class WriterAccess:
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
class ReplyTarget:
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
    request = PollRequest(
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
    access = WriterAccess(everybody=table.everybody, owners=table.owners, peers=table.peers, guests=table.guests)
    listed = access.owners or access.peers or access.guests
    if access.everybody is None and not listed:
        complain("guests", 'no writer is allowed: list owners, peers or guests, or say everybody = "service"')
    if access.everybody is None and listed and paths.sender is None:
        complain("sender_path", "is missing: say where a message names its writer, whom the lists are about")
    target = ReplyTarget(url=table.deliver_url, headers=table.deliver_headers)
    return HttpJson(request, paths, access, target, table.proxy)


class HttpJson:
    def __init__(
        self, request: PollRequest, paths: Paths, access: WriterAccess, target: ReplyTarget, proxy: str | None
    ) -> None:
        self._request = request
        self._paths = paths
        self._access = access
        self._target = target
        self._polling, self._sending = JsonClient(proxy=proxy), JsonClient(proxy=proxy)

    def poll(self, cursor: str | None) -> Polled:
        request = self._request
        params = {**request.params, **({request.cursor_param: cursor} if cursor is not None else {})}
        answer = self._polling.request(
            "GET", request.url, params=params, headers=request.headers, timeout=request.timeout
        )
        if not 200 <= answer.status < 300:
            raise json_client.later(f"the URL answered {answer.status}", answer)
        content = answer.json()
        members = value_at(content, self._paths.messages)
        if not isinstance(members, list):
            raise Unavailable(f"there is no list at {self._paths.messages!r} (messages_path) in the answer")
        return self._polled(content, members[::-1] if request.newest_first else members, cursor)

    def _polled(self, content: Any, members: list[Any], cursor: str | None) -> Polled:
        """The cursor is the one that the service names, or else the id of the last message whose id can be stored."""
        messages = tuple(message for member in members if (message := self._message(member)) is not None)
        if self._paths.next_cursor is not None:
            behind = text_at(content, self._paths.next_cursor) or cursor
        else:
            ids = [text_at(member, self._paths.id) for member in members]
            behind = next((id_ for id_ in reversed(ids) if id_ is not None and can_be_cursor(id_)), cursor)
        return Polled(messages=messages, cursor=behind, passed_over=len(members) - len(messages))

    def _message(self, member: Any) -> Incoming | Unreadable | None:
        """None: its writer may not write."""
        paths = self._paths
        writer = text_at(member, paths.sender) if paths.sender else None
        sender = self._access.sender(writer)
        if sender is None:
            return None
        key = text_at(member, paths.id)
        text = text_at(member, paths.text)
        if key is None or text is None:
            missing = f"no id at {paths.id!r} (id_path)" if key is None else f"no text at {paths.text!r} (text_path)"
            return Unreadable(key=key or "", why=f"there is {missing}", excerpt=str(member)[:1000])
        thread = (text_at(member, paths.thread) if paths.thread else None) or writer or "all"
        behind = key if paths.next_cursor is None and can_be_cursor(key) else None
        address = {"thread": thread, "id": key, **({"to": writer} if writer is not None else {})}
        meta = {"writer": writer} if writer is not None else {}
        return Incoming(key=key, text=text, sender=sender, address=address, thread=thread, meta=meta, cursor=behind)

    def deliver(self, address: Mapping[str, Any], reply: Outgoing) -> None:
        if self._target.url is None:
            raise Undeliverable("there is no deliver_url; give one to have replies sent")
        body = {
            "key": reply.key, "thread_id": reply.thread_id, "turn_id": reply.turn_id, "text": reply.text,
            "address": dict(address), "body": dict(reply.body),
        }  # fmt: skip
        headers = {**self._target.headers, "idempotency-key": reply.key}
        answer = self._sending.request("POST", self._target.url, body=body, headers=headers)
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
