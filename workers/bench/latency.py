"""What a turn takes over what its model and tools take, when those are as slow as real ones: 200 ms and 100 ms."""

from __future__ import annotations

from dataclasses import dataclass

from chordage.workers.bench.contender import Contender
from chordage.workers.bench.load import closed_loop, percentile
from chordage.workers.bench.shape import SLOW

AT_ONCE = (1, 10, 50)
THREADS = 128  # of each worker: whoever waits must not keep others waiting
TIMES = {1: 6, 10: 3, 50: 2}  # turns a client


@dataclass(frozen=True, kw_only=True, slots=True)
class Over:
    """Seconds over the ideal. The last one tells of turns that got stuck."""

    p50: float
    p95: float
    last: float


def warm_up(contender: Contender) -> None:
    closed_loop(contender, turns=10, in_flight=10)


def over_the_ideal(contender: Contender, in_flight: int) -> Over:
    lap = closed_loop(contender, turns=in_flight * TIMES[in_flight], in_flight=in_flight)
    p50, p95, last = (percentile(lap.turns, share) - SLOW.ideal for share in (0.5, 0.95, 1.0))
    return Over(p50=p50, p95=p95, last=last)
