"""The ports that Redis serves, for a process without Redis: SQL decides everything, and there are no watchers."""

from __future__ import annotations

from typing import Any


class NoLocks:
    def take(self, thread_id: str, owner: str) -> str | None:  # noqa: ARG002
        return None

    def extend(self, thread_id: str, owner: str) -> bool:  # noqa: ARG002
        return True

    def release(self, thread_id: str, owner: str) -> None: ...
    def once(self, key: str) -> bool:  # noqa: ARG002
        return True

    def forget(self, key: str) -> None: ...
    def alive(self, keys: list[str]) -> set[str]:  # noqa: ARG002
        return set()

    def begun(self, keys: list[str]) -> set[str]:  # noqa: ARG002
        return set()

    def renew(self, keys: list[str]) -> bool:  # noqa: ARG002
        return True


class NoQueues:
    def is_empty(self, queue: str) -> bool:  # noqa: ARG002
        return False


class NoEvents:
    def emit(self, run_id: str, kind: str, **data: Any) -> None: ...
    def turn_done(self, turn_id: str) -> None: ...
