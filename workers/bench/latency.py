"""What a turn takes over what its model and tools take, when those are as slow as real ones: 200 ms and 100 ms."""

from __future__ import annotations

from chordage.workers.bench.contender import Contender
from chordage.workers.bench.load import closed_loop, percentile
from chordage.workers.bench.shape import SLOW

AT_ONCE = (1, 10, 50)
THREADS = 128  # of each worker: whoever waits must not keep others waiting
TIMES = {1: 6, 10: 3, 50: 2}  # turns a client


def over_the_ideal(contender: Contender, in_flight: int) -> float:
    """Seconds, the middle one."""
    lap = closed_loop(contender, turns=in_flight * TIMES[in_flight], in_flight=in_flight)
    return percentile(lap.turns, 0.5) - SLOW.ideal
