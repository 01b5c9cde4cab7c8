"""Stand-ins for what a process shares with others: the clock, ids, the locks in Redis, and live events."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import count
from typing import Any

from chordage.orchestrator.gateways.ports import WorkMark


class StoppedClock:
    """Time stands still until it is moved."""

    def __init__(self) -> None:
        self.now = datetime(2026, 1, 1, tzinfo=UTC)

    def __call__(self) -> datetime:
        return self.now

    def pass_by(self, seconds: float) -> None:
        self.now += timedelta(seconds=seconds)


class CountedIds:
    """Ids that grow, and read well when a test fails."""

    def __init__(self) -> None:
        self._numbers = count(1)

    def __call__(self) -> str:
        return f"id{next(self._numbers):06d}"


class MemoryLocks:
    """The locks port as Redis keeps it while all is well; `wipe` is what FLUSHALL does."""

    def __init__(self) -> None:
        self.threads: dict[str, str] = {}
        self.work: dict[str, str] = {}  # the process that holds each
        self.worker = "world"
        self.paused: dict[str, datetime] = {}  # until when each waits before it is tried again
        self.taken: set[str] = set()  # what was begun and not released
        self.dead = False  # the calling process was killed: nothing reaches Redis
        self.before_take: Callable[[], None] = lambda: None  # what other workers do before a dispatcher starts a turn

    def take(self, thread_id: str, owner: str, *, instead_of: str | None = None) -> str | None:
        self.before_take()
        if instead_of is not None:
            self.release(thread_id, instead_of)
        holder = self.threads.setdefault(thread_id, owner)
        return None if holder == owner else holder

    def extend(self, thread_id: str, owner: str) -> None:
        self.threads.setdefault(thread_id, owner)

    def release(self, thread_id: str, owner: str, *, more: bool = False) -> None:  # noqa: ARG002 - all is sent at once
        if self.threads.get(thread_id) == owner and not self.dead:
            del self.threads[thread_id]

    def once(self, key: str) -> bool:
        self.taken.add(key)
        if key in self.work:
            return False
        self.work[key] = self.worker
        return True

    def mark(self, key: str) -> None:
        if not self.dead:
            self.taken.add(key)
            self.work[key] = self.worker

    def forget(self, key: str) -> None:
        if not self.dead:
            self.work.pop(key, None)
            self.taken.discard(key)

    def holder(self, key: str) -> str | None:
        return self.work.get(key)

    def pause(self, key: str, until: datetime) -> None:
        if not self.dead:
            self.paused[key] = until

    def marks(self, keys: list[str]) -> dict[str, WorkMark]:
        known = [key for key in keys if key in self.work or key in self.paused]
        return {key: WorkMark(self.work.get(key), self.paused.get(key)) for key in known}

    def alive(self, keys: list[str]) -> dict[str, str]:
        return {key: self.work[key] for key in keys if key in self.work}

    def begun(self, keys: list[str]) -> set[str]:
        return self.taken.intersection(keys)

    def renew(self, holders: Mapping[str, str]) -> bool:
        self.work.update(holders)
        return True

    def lapse(self) -> None:
        """What is held for those who are gone runs out."""
        self.threads.clear()
        self.work.clear()

    def wipe(self) -> None:
        self.lapse()
        self.taken.clear()


@dataclass
class RecordingEvents:
    seen: list[tuple[str, str, dict[str, Any]]] = field(default_factory=list)
    done: list[str] = field(default_factory=list)

    def emit(self, run_id: str, kind: str, **data: Any) -> None:
        self.seen.append((run_id, kind, data))

    def turn_done(self, turn_id: str) -> None:
        self.done.append(turn_id)
