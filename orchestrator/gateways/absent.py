"""The ports of what a process does without: Redis (then SQL decides everything, and there are no watchers), plugins,
channels and webhooks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, NoReturn

from chordage.orchestrator.core.channels import Outgoing, Polled
from chordage.orchestrator.core.errors import NotFound, RoomError, TryLater
from chordage.orchestrator.core.phases import Hook, Moment
from chordage.orchestrator.gateways.ports import WorkMark


class NoLocks:
    def take(self, thread_id: str, owner: str, *, instead_of: str | None = None) -> str | None:  # noqa: ARG002
        return None

    def extend(self, thread_id: str, owner: str) -> None: ...
    def release(self, thread_id: str, owner: str, *, more: bool = False) -> None: ...
    def once(self, key: str) -> bool:  # noqa: ARG002
        return True

    def mark(self, key: str) -> None: ...
    def forget(self, key: str) -> None: ...
    def holder(self, key: str) -> str | None:  # noqa: ARG002
        return None

    def pause(self, key: str, until: datetime) -> None: ...
    def marks(self, keys: list[str]) -> dict[str, WorkMark]:  # noqa: ARG002
        return {}

    def alive(self, keys: list[str]) -> dict[str, str]:  # noqa: ARG002
        return {}

    def begun(self, keys: list[str]) -> set[str]:  # noqa: ARG002
        return set()

    def renew(self, holders: Mapping[str, str]) -> bool:  # noqa: ARG002
        return True


class NoQueues:
    def is_empty(self, queue: str) -> bool:  # noqa: ARG002
        return False

    def lengths(self, queues: Sequence[str]) -> Mapping[str, int]:  # noqa: ARG002
        return {}


class NoEvents:
    def emit(self, run_id: str, kind: str, **data: Any) -> None: ...
    def turn_done(self, turn_id: str) -> None: ...


class NoPlugins:
    ids: tuple[str, ...] = ()

    def listens(self, hook: Hook) -> bool:  # noqa: ARG002
        return False

    def ask(self, hook: Hook, context: Moment) -> list[tuple[str, Any]]:  # noqa: ARG002
        return []


class NoChannels:
    def names(self) -> list[str]:
        return []

    def get(self, name: str) -> NoReturn:
        raise NotFound(f"there is no channel {name!r}: write a binding into channels.toml")

    def terms(self, name: str) -> NoReturn:
        raise NotFound(f"there is no channel {name!r}: write a binding into channels.toml")

    def faults(self) -> list[RoomError]:
        return []

    def close(self) -> None:
        """Nothing is open."""


class NoWebHooks:
    """Another process sends the replies to URLs."""

    def poll(self, cursor: str | None) -> Polled:
        return Polled(messages=(), cursor=cursor)

    def deliver(self, address: Mapping[str, Any], reply: Outgoing) -> None:
        raise TryLater(f"this process sends no webhooks, so reply {reply.key} to {address.get('url')} waits")

    def close(self) -> None:
        """Nothing is open."""
