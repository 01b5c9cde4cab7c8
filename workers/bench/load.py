"""Turns in a closed loop: so many in flight, each client starts the next when its last has ended."""

from __future__ import annotations

import itertools
import statistics
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from chordage.workers.bench.contender import Contender


@dataclass(frozen=True, kw_only=True, slots=True)
class Lap:
    """One repetition: how long it took, and each of its turns, in seconds."""

    seconds: float
    turns: tuple[float, ...]

    @property
    def rate(self) -> float:
        return len(self.turns) / self.seconds


def closed_loop(contender: Contender, *, turns: int, in_flight: int) -> Lap:
    numbers = itertools.count()

    def client(_: int) -> list[float]:
        mine = []
        while next(numbers) < turns:
            mine.append(one_turn(contender))
        return mine

    with ThreadPoolExecutor(in_flight) as pool:
        began = time.perf_counter()
        took = list(pool.map(client, range(in_flight)))
        return Lap(seconds=time.perf_counter() - began, turns=tuple(itertools.chain(*took)))


def one_by_one(contender: Contender, *, turns: int) -> Lap:
    began = time.perf_counter()
    took = tuple(one_turn(contender) for _ in range(turns))
    return Lap(seconds=time.perf_counter() - began, turns=took)


def one_turn(contender: Contender, thread: str | None = None) -> float:
    began = time.perf_counter()
    contender.turn(thread or f"bench:{uuid.uuid4()}")
    return time.perf_counter() - began


def percentile(values: tuple[float, ...], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(len(values) * share))]


def middle(values: list[float]) -> float:
    return statistics.median(values)
