"""What a bench found: all of `--json`."""

from __future__ import annotations

from dataclasses import dataclass, field

from chordage.workers.bench.counts import Counts
from chordage.workers.bench.growth import History
from chordage.workers.bench.latency import Over
from chordage.workers.bench.speed import Speed


@dataclass(kw_only=True, slots=True)
class Results:
    machine: dict[str, str]
    database: str
    setup: dict[str, int]
    speed: dict[str, Speed] = field(default_factory=dict)
    counts: dict[str, Counts] = field(default_factory=dict)
    over_ideal: dict[str, dict[int, Over]] = field(default_factory=dict)  # by turns in flight
    histories: dict[str, list[History]] = field(default_factory=dict)
    per_round: dict[str, dict[int, float]] = field(default_factory=dict)  # seconds, by rounds of the turn
