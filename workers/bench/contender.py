"""What the bench asks of a contender: to bring its workers, and to carry one turn out while the caller waits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from chordage.workers.bench.shape import Shape
from chordage.workers.fleet.member import Role


@dataclass(frozen=True, kw_only=True, slots=True)
class Ground:
    """What contenders stand on. Each has a Redis database of its own, and each fleet of ours a database in SQL."""

    redis_url: str
    database_url: str
    folder: Path
    shape: Shape
    in_flight: int
    threads: int = 0  # of each worker; 0: processes, four a worker


class Contender(Protocol):
    name: str
    redis_number: int

    @property
    def database_url(self) -> str:
        """In which it stores what it stores."""

    def prepare(self) -> Sequence[Role]:
        """Make what workers need, and say which to start."""

    def environment(self) -> dict[str, str]:
        """What its workers are started with."""

    def turn(self, thread: str) -> None:
        """One turn on that thread, from the message to the end as a client sees it. Callable from many threads."""

    def remember(self, thread: str, messages: int) -> None:
        """Give a new thread that many messages of history."""

    def close(self) -> None:
        """Let go of the client's connections."""
