"""Channels for flow tests: a list of messages that hands out from a cursor on, as often as it is asked."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from chordage.orchestrator.core.channels import Incoming, Outgoing, Polled, Terms, Unreadable
from chordage.orchestrator.core.errors import NotFound, RoomError
from chordage.orchestrator.core.message import Sender
from chordage.orchestrator.loops.poll import PollResult, poll_once
from support.world import World


def incoming(number: int, text: str | None = None, **given: Any) -> Incoming:
    """Messages are numbered from 1; three people write."""
    usual: dict[str, Any] = {
        "key": str(number), "text": text if text is not None else f"message {number}", "sender": Sender.GUEST,
        "address": {"chat": number % 3}, "thread": str(number % 3), "cursor": str(number + 1),
    }  # fmt: skip
    return Incoming(**{**usual, **given})


@dataclass
class ListChannel:
    """`shuffle` is what a look does with what it hands out: double it, say, or send it in another order."""

    messages: list[Incoming | Unreadable] = field(default_factory=list)
    shuffle: Callable[[list[Incoming | Unreadable]], list[Incoming | Unreadable]] = lambda found: found
    fails: list[Exception] = field(default_factory=list)
    before: Callable[[], object] = lambda: None
    asked: list[str | None] = field(default_factory=list)
    sent: list[tuple[Mapping[str, Any], Outgoing]] = field(default_factory=list)

    def poll(self, cursor: str | None) -> Polled:
        self.asked.append(cursor)
        if self.fails:
            raise self.fails.pop(0)
        start = int(cursor or 1) - 1
        found = tuple(self.shuffle(self.messages[start:]))
        self.before()
        return Polled(messages=found, cursor=str(len(self.messages) + 1))

    def deliver(self, address: Mapping[str, Any], reply: Outgoing) -> None:
        self.sent.append((address, reply))

    def close(self) -> None:
        pass


@dataclass
class FakeChannels:
    channels: dict[str, ListChannel | RoomError]
    agent: str | None = None

    def names(self) -> list[str]:
        return sorted(self.channels)

    def get(self, name: str) -> ListChannel:
        found = self.channels.get(name)
        if found is None:
            raise NotFound(f"no channel {name}")
        if isinstance(found, RoomError):
            raise found
        return found

    def terms(self, name: str) -> Terms:
        return Terms(plugin="list", agent=self.agent, every=7.0)

    def faults(self) -> list[RoomError]:
        return [found for found in self.channels.values() if isinstance(found, RoomError)]

    def close(self) -> None:
        pass


def bind(world: World, channel: ListChannel, name: str = "list", *, agent: str | None = None) -> ListChannel:
    object.__setattr__(world.runtime, "channels", FakeChannels({name: channel}, agent))
    return channel


def look(world: World, name: str = "list") -> PollResult:
    world.revive()
    return poll_once(world.runtime, name, world.pending.extend)


def poll_row(world: World, name: str = "list") -> dict[str, Any]:
    return world.row("polls", name=name)


def keys(world: World) -> list[str]:
    return sorted((str(row["dedupe_key"]) for row in world.rows("turns")), key=int)
