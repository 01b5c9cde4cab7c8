"""Times: turns a second, lone turns, CPU, slow models, long histories, many rounds."""

from __future__ import annotations

import itertools
import os
import statistics
import time
import uuid
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from chordage.benchmarks.contenders import Conditions, Contender
from chordage.benchmarks.counting import Counts, count_work
from chordage.benchmarks.workload import SLOW

WARM_UP = 48
LONE_TURNS = 30
AT_ONCE = {1: 6, 10: 3, 50: 2}  # turns in flight with slow models, and how many of them each client sends
THREADS = 128  # of each worker with slow models, so that no turn waits for a slot
HISTORIES = (10, 100, 1000)
HISTORY_TURNS = 8
ROUNDS = {1: 15, 10: 5, 50: 3}  # rounds of a turn, and how many such turns are timed
PROC = Path("/proc")

Progress = Callable[[str], None]


@dataclass(frozen=True, kw_only=True, slots=True)
class Lap:
    """One repetition: how long it took, and each of its turns, in seconds."""

    seconds: float
    turns: tuple[float, ...]

    @property
    def rate(self) -> float:
        return len(self.turns) / self.seconds


def closed_loop(contender: Contender, *, turns: int, in_flight: int) -> Lap:
    """`in_flight` clients; each sends its next turn when its last one has ended."""
    numbers = itertools.count()

    def client(_: int) -> list[float]:
        times = []
        while next(numbers) < turns:
            times.append(time_turn(contender))
        return times

    with ThreadPoolExecutor(in_flight) as pool:
        start = time.perf_counter()
        times = list(pool.map(client, range(in_flight)))
        return Lap(seconds=time.perf_counter() - start, turns=tuple(itertools.chain(*times)))


def one_by_one(contender: Contender, *, turns: int) -> Lap:
    start = time.perf_counter()
    times = tuple(time_turn(contender) for _ in range(turns))
    return Lap(seconds=time.perf_counter() - start, turns=times)


def time_turn(contender: Contender, thread: str | None = None) -> float:
    start = time.perf_counter()
    contender.turn(thread or f"bench:{uuid.uuid4()}")
    return time.perf_counter() - start


def percentile(values: tuple[float, ...], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(len(values) * share))]


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


def speed(
    contenders: Sequence[Contender],
    pids: dict[str, list[int]],
    *,
    turns: int,
    repeat: int,
    in_flight: int,
    progress: Progress,
) -> dict[str, Speed]:
    """Contenders alternate, so that a busy minute hits them all. `pids` of the workers of each; under "" those of the
    servers.
    """
    for contender in contenders:
        closed_loop(contender, turns=WARM_UP, in_flight=min(in_flight, 8))
    repetitions: dict[str, list[Repetition]] = {contender.name: [] for contender in contenders}
    for number in range(repeat):
        for contender in contenders:
            progress(f"{contender.name}: repetition {number + 1} of {repeat}")
            roots = [*pids[contender.name], *pids[""]]
            repetitions[contender.name].append(_repetition(contender, roots, turns, in_flight))
    return {name: _medians(laps) for name, laps in repetitions.items()}


def _repetition(contender: Contender, roots: Sequence[int], turns: int, in_flight: int) -> Repetition:
    before = _cpu_with_client(roots)
    lap = closed_loop(contender, turns=turns, in_flight=in_flight)
    cpu = (_cpu_with_client(roots) - before) * 1000 / turns if cpu_is_known() else None
    return Repetition(lap=lap, lone=one_by_one(contender, turns=LONE_TURNS), cpu_ms=cpu)


def _medians(repetitions: Sequence[Repetition]) -> Speed:
    cpu = [repetition.cpu_ms for repetition in repetitions if repetition.cpu_ms is not None]
    return Speed(
        rate=statistics.median(repetition.lap.rate for repetition in repetitions),
        rates=tuple(repetition.lap.rate for repetition in repetitions),
        idle_p50=statistics.median(percentile(repetition.lone.turns, 0.5) for repetition in repetitions),
        idle_p95=statistics.median(percentile(repetition.lone.turns, 0.95) for repetition in repetitions),
        cpu_ms=statistics.median(cpu) if cpu else None,
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class Latency:
    """Seconds a turn takes over its ideal time, with a model of 200 ms and tools of 100 ms. `last` shows turns that
    got stuck.
    """

    p50: float
    p95: float
    last: float


def latency(contender: Contender, in_flight: int) -> Latency:
    lap = closed_loop(contender, turns=in_flight * AT_ONCE[in_flight], in_flight=in_flight)
    p50, p95, last = (percentile(lap.turns, share) - SLOW.ideal for share in (0.5, 0.95, 1.0))
    return Latency(p50=p50, p95=p95, last=last)


@dataclass(frozen=True, kw_only=True, slots=True)
class HistoryCost:
    """A turn on a thread with so many messages. Only the prompt should grow with it."""

    messages: int
    p50: float
    counts: Counts


def with_history(
    contender: Contender, conditions: Conditions, messages: int, turns: int = HISTORY_TURNS
) -> HistoryCost:
    thread = f"history:{uuid.uuid4()}"
    contender.remember(thread, messages)
    times: list[float] = []
    counts = count_work(contender, conditions, lambda: times.append(time_turn(contender, thread)), times=turns)
    return HistoryCost(messages=messages, p50=percentile(tuple(times), 0.5), counts=counts)


def seconds_per_round(contender: Contender, rounds: int) -> float:
    """In turns of so many rounds."""
    time_turn(contender)
    times = tuple(time_turn(contender) for _ in range(ROUNDS[rounds]))
    return percentile(times, 0.5) / rounds


def cpu_is_known() -> bool:
    return (PROC / "self" / "stat").exists()


def cpu_seconds(roots: Iterable[int]) -> float:
    """CPU time of these processes and all they started, ended ones included. On a machine that others use too it is
    steadier than the clock.
    """
    table = _processes()
    children: dict[int, list[int]] = {}
    for pid, (parent, _) in table.items():
        children.setdefault(parent, []).append(pid)
    ticks, todo = 0, list(roots)
    while todo:
        pid = todo.pop()
        ticks += table.get(pid, (0, 0))[1]
        todo += children.get(pid, ())
    return ticks / os.sysconf("SC_CLK_TCK")


def _cpu_with_client(roots: Sequence[int]) -> float:
    return cpu_seconds(roots) + time.process_time() if cpu_is_known() else 0.0


def _processes() -> dict[int, tuple[int, int]]:
    """Parent and clock ticks of every process, with the ticks of children it has waited for."""
    processes = {}
    for folder in PROC.iterdir():
        if folder.name.isdigit():
            try:
                fields = (folder / "stat").read_text().rpartition(")")[2].split()
            except OSError:  # it has just ended
                continue
            processes[int(folder.name)] = (int(fields[1]), sum(map(int, fields[11:15])))
    return processes
