"""Turns a second, time of a lone turn, CPU per turn: contenders take turns, so that a busy minute hits them all."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from chordage.workers.bench import cpu
from chordage.workers.bench.contender import Contender
from chordage.workers.bench.load import Lap, closed_loop, middle, one_by_one, percentile

WARM_UP = 48
LONE_TURNS = 30


@dataclass(frozen=True, kw_only=True, slots=True)
class Speed:
    """Medians over the repetitions. CPU is that of workers, servers and client."""

    rate: float
    rates: tuple[float, ...]
    idle_p50: float
    idle_p95: float
    cpu_ms: float | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Repetition:
    lap: Lap
    lone: Lap
    cpu_ms: float | None


def measure(
    contenders: Sequence[Contender],
    pids: dict[str, list[int]],
    *,
    turns: int,
    repeat: int,
    in_flight: int,
    say: Callable[[str], None],
) -> dict[str, Speed]:
    """`pids` of the workers of each; under "" those of the servers."""
    for contender in contenders:
        closed_loop(contender, turns=WARM_UP, in_flight=min(in_flight, 8))
    taken: dict[str, list[Repetition]] = {contender.name: [] for contender in contenders}
    for number in range(repeat):
        for contender in contenders:
            say(f"{contender.name}: repetition {number + 1} of {repeat}")
            roots = [*pids[contender.name], *pids[""]]
            taken[contender.name].append(_repetition(contender, roots, turns, in_flight))
    return {name: _speed(several) for name, several in taken.items()}


def _repetition(contender: Contender, roots: Sequence[int], turns: int, in_flight: int) -> Repetition:
    before = _cpu(roots)
    lap = closed_loop(contender, turns=turns, in_flight=in_flight)
    used = (_cpu(roots) - before) * 1000 / turns if cpu.available() else None
    return Repetition(lap=lap, lone=one_by_one(contender, turns=LONE_TURNS), cpu_ms=used)


def _cpu(roots: Sequence[int]) -> float:
    return cpu.seconds(roots) + time.process_time() if cpu.available() else 0.0


def _speed(several: Sequence[Repetition]) -> Speed:
    used = [one.cpu_ms for one in several if one.cpu_ms is not None]
    return Speed(
        rate=middle([one.lap.rate for one in several]),
        rates=tuple(one.lap.rate for one in several),
        idle_p50=middle([percentile(one.lone.turns, 0.5) for one in several]),
        idle_p95=middle([percentile(one.lone.turns, 0.95) for one in several]),
        cpu_ms=middle(used) if used else None,
    )
