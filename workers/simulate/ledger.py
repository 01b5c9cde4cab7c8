"""What a simulation counts: waits in virtual seconds, the engine's own work in real ones, and the rows it wears out."""

from __future__ import annotations

import time
from array import array
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from chordage.orchestrator.core.groups import Group
from chordage.orchestrator.store import statements as sql
from chordage.orchestrator.store.database import Tx


@dataclass(frozen=True, kw_only=True, slots=True)
class Spread:
    """Of many seconds."""

    count: int
    p50: float
    p95: float
    p99: float
    longest: float


def spread_of(seconds: array[float]) -> Spread:
    found = sorted(seconds)
    if not found:
        return Spread(count=0, p50=0.0, p95=0.0, p99=0.0, longest=0.0)
    at = [found[min(len(found) - 1, int(len(found) * part))] for part in (0.5, 0.95, 0.99)]
    return Spread(count=len(found), p50=at[0], p95=at[1], p99=at[2], longest=found[-1])


def _floats() -> array[float]:
    return array("d")


@dataclass(slots=True)
class Cost:
    """Real work of the engine, in the process that simulates."""

    times: int = 0
    seconds: float = 0.0
    statements: int = 0


@dataclass(slots=True)
class Ledger:
    until_started: dict[Group, array[float]] = field(default_factory=lambda: defaultdict(_floats))
    until_asked: dict[Group, array[float]] = field(default_factory=lambda: defaultdict(_floats))
    until_done: dict[Group, array[float]] = field(default_factory=lambda: defaultdict(_floats))
    of_tenant: dict[str, array[float]] = field(default_factory=lambda: defaultdict(_floats))
    came: Counter[Group] = field(default_factory=Counter)
    refused: Counter[Group] = field(default_factory=Counter)
    costs: dict[str, Cost] = field(default_factory=lambda: defaultdict(Cost))
    in_vain: int = 0  # wake-ups that started nothing
    locked: Counter[str] = field(default_factory=Counter)  # rows that whoever comes next must wait for
    row_waits: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    in_second: dict[str, tuple[int, int]] = field(default_factory=dict)
    busiest: Counter[str] = field(default_factory=Counter)  # locks of a row in its busiest second
    _statements: int = 0

    def lock(self, row: str, now: float, waited: float = 0.0) -> None:
        self.locked[row] += 1
        self.row_waits[row] += waited
        second, count = self.in_second.get(row, (-1, 0))
        count = count + 1 if second == int(now) else 1
        self.in_second[row] = (int(now), count)
        self.busiest[row] = max(self.busiest[row], count)

    @contextmanager
    def cost_of(self, what: str) -> Iterator[None]:
        cost, before, began = self.costs[what], self._statements, time.perf_counter()
        try:
            yield
        finally:
            cost.times += 1
            cost.seconds += time.perf_counter() - began
            cost.statements += self._statements - before

    @contextmanager
    def counting(self) -> Iterator[None]:
        def count(_tx: Tx, _sql: str) -> None:
            self._statements += 1

        sql.observers.append(count)
        try:
            yield
        finally:
            sql.observers.remove(count)
