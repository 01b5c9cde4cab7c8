"""Times: bursts, lone turns, CPU, slow models, and what follows when a worker is killed.

Contenders alternate, and each repetition has a ratio of its own: a busy minute of the machine hits both.
"""

from __future__ import annotations

import os
import signal
import statistics
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from redis import Redis

from chordage.benchmarks.contenders import Contender, Engine
from chordage.benchmarks.workload import SLOW
from chordage.orchestrator.core.errors import Unavailable

SENDERS = 4  # threads of a client
WARM_UP = 40
LONE_TURNS = 30
PAUSE = 0.01  # seconds between lone turns
AT_ONCE = {1: 6, 10: 3, 50: 3}  # turns at once with slow models, and how often
THREADS = 128  # of each worker with slow models, so that no turn waits for a slot
KILLED_UNDER = 24  # turns
PATIENCE = 180.0
PROC = Path("/proc")

Progress = Callable[[str], None]


@dataclass(frozen=True, kw_only=True, slots=True)
class Figure:
    """The median of the repetitions, and their range."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Iterable[float]) -> Self:
        ordered = sorted(values)
        low, median, high = (round(value, 3) for value in (ordered[0], statistics.median(ordered), ordered[-1]))
        return cls(median=median, low=low, high=high)


class NotEnded(Unavailable):
    """Turns of a burst. The scenario has no figures; the others have."""


class Client:
    """Sends turns, and receives their ends. Each end counts once, however often it is published."""

    def __init__(self, contender: Contender, redis_url: str) -> None:
        self.contender = contender
        self._redis = Redis.from_url(redis_url)
        self._heard: dict[bytes, float] = {}
        self._changed = threading.Condition()
        self._over = threading.Event()
        self._words = self._redis.pubsub(ignore_subscribe_messages=True)  # type: ignore[no-untyped-call]  # redis-py left it without annotations
        self._senders = ThreadPoolExecutor(SENDERS)

    def __enter__(self) -> Self:
        self._words.psubscribe(self.contender.ends)
        self._words.get_message(timeout=1.0)
        self._ear = threading.Thread(target=self._hear, name="bench-ends", daemon=True)
        self._ear.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._ear.join()
        self._words.close()
        self._redis.close()
        self._senders.shutdown()

    def _hear(self) -> None:
        while not self._over.is_set():
            word = self._words.get_message(timeout=0.5)
            now = time.perf_counter()
            if word is not None:
                with self._changed:
                    self._heard.setdefault(word["channel"], now)
                    self._changed.notify()

    def burst(self, turns: int) -> list[float]:
        """All at once. When each ended, in seconds since the first was sent, in order."""
        start = self.send(turns)
        with self._changed:
            if not self._changed.wait_for(lambda: len(self._heard) >= turns, PATIENCE):
                raise NotEnded(f"{turns - len(self._heard)} of {turns} turns did not end within {PATIENCE:g} s")
            return sorted(at - start for at in self._heard.values())

    def send(self, turns: int) -> float:
        with self._changed:
            self._heard.clear()
        start = time.perf_counter()
        for sent in [self._senders.submit(self.contender.send) for _ in range(turns)]:
            sent.result()
        return start

    def lone(self) -> float:
        return self.burst(1)[0]


@contextmanager
def clients(contenders: Sequence[Contender], redis_url: str) -> Iterator[list[Client]]:
    """In the order of the contenders, and warm."""
    made = [Client(contender, redis_url) for contender in contenders]
    for client in made:
        client.__enter__()
    try:
        for client in made:
            client.burst(SENDERS)
            client.burst(WARM_UP)
        yield made
    finally:
        for client in made:
            client.__exit__()


@dataclass(frozen=True, kw_only=True, slots=True)
class Lap:
    """What one contender did in one repetition. `cpu_ms`: of workers and servers for each turn, without the client."""

    rate: float
    idle_ms: float
    cpu_ms: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Speed:
    """Turns a second of a burst, milliseconds of a lone turn (the median of `LONE_TURNS`), CPU; and each ÷ chord."""

    turns: int
    rate: Figure
    idle_ms: Figure
    cpu_ms: Figure
    rate_ratio: Figure
    idle_ratio: Figure
    cpu_ratio: Figure
    chord_rate: Figure


def speed(
    chord: Client, engine: Client, pids: dict[str, list[int]], *, turns: int, repeat: int, progress: Progress
) -> Speed:
    """`pids` of the workers of each; under "" those of the servers."""
    pairs = []
    for number in range(repeat):
        progress(f"{engine.contender.name}: repetition {number + 1} of {repeat}")
        order = (chord, engine) if number % 2 else (engine, chord)
        laps = {client: _lap(client, [*pids[client.contender.name], *pids[""]], turns) for client in order}
        pairs.append((laps[chord], laps[engine]))
    return Speed(
        turns=turns,
        rate=Figure.of(own.rate for _, own in pairs),
        idle_ms=Figure.of(own.idle_ms for _, own in pairs),
        cpu_ms=Figure.of(own.cpu_ms for _, own in pairs),
        rate_ratio=Figure.of(own.rate / base.rate for base, own in pairs),
        idle_ratio=Figure.of(own.idle_ms / base.idle_ms for base, own in pairs),
        cpu_ratio=Figure.of(own.cpu_ms / base.cpu_ms if base.cpu_ms else 0.0 for base, own in pairs),
        chord_rate=Figure.of(base.rate for base, _ in pairs),
    )


def _lap(client: Client, roots: Sequence[int], turns: int) -> Lap:
    before = cpu_seconds(roots)
    ends = client.burst(turns)
    cpu = cpu_seconds(roots) - before
    lone = []
    for _ in range(LONE_TURNS):
        time.sleep(PAUSE)
        lone.append(client.lone())
    return Lap(rate=turns / ends[-1], idle_ms=statistics.median(lone) * 1000, cpu_ms=cpu * 1000 / turns)


@dataclass(frozen=True, kw_only=True, slots=True)
class Overhead:
    """Milliseconds over the ideal turn, with a model of 200 ms and tools of 100 ms: the median of the turns of a burst,
    from when the first was sent.
    """

    own_ms: Figure
    chord_ms: Figure
    ratio: Figure


def overhead(chord: Client, engine: Client, at_once: int) -> Overhead:
    pairs = [tuple(_over_ideal(client, at_once) for client in (chord, engine)) for _ in range(AT_ONCE[at_once])]
    return Overhead(
        own_ms=Figure.of(own for _, own in pairs),
        chord_ms=Figure.of(base for base, _ in pairs),
        ratio=Figure.of(own / base for base, own in pairs),
    )


def _over_ideal(client: Client, at_once: int) -> float:
    return (statistics.median(client.burst(at_once)) - SLOW.ideal) * 1000


@dataclass(frozen=True, kw_only=True, slots=True)
class Recovery:
    """One of two workers and its processes were killed under so many turns, and not started again."""

    turns: int
    ended: int
    last_s: float  # after the kill


def recovery(client: Client, engine: Engine, workers: Sequence[int]) -> Recovery:
    """The ends are read in the database: one whose process died behind the commit is not published."""
    before = _ended(engine)
    client.send(KILLED_UNDER)
    time.sleep(SLOW.ideal)
    for pid in family(workers[:1]):
        os.kill(pid, signal.SIGKILL)
    killed, ended, last = time.perf_counter(), 0, 0.0
    while ended < KILLED_UNDER and time.perf_counter() - killed < PATIENCE:
        time.sleep(0.05)
        if (now := _ended(engine) - before) > ended:
            ended, last = now, time.perf_counter() - killed
    return Recovery(turns=KILLED_UNDER, ended=ended, last_s=round(last, 2))


def _ended(engine: Engine) -> int:
    with engine.runtime.store.read() as tx:
        return int(tx.exec_driver_sql("SELECT count(*) FROM turns WHERE status = 'done'").scalar() or 0)


def cpu_is_known() -> bool:
    return (PROC / "self" / "stat").exists()


def cpu_seconds(roots: Iterable[int]) -> float:
    """CPU time of these processes and all they started, ended ones included. On a machine that others use too it is
    steadier than the clock.
    """
    table = _processes()
    return sum(table[pid][1] for pid in family(roots, table)) / os.sysconf("SC_CLK_TCK")


def family(roots: Iterable[int], table: dict[int, tuple[int, int]] | None = None) -> list[int]:
    """These processes and all they started, as far as they run."""
    table = _processes() if table is None else table
    found, todo = [], list(roots)
    while todo:
        pid = todo.pop()
        found += [pid] if pid in table else []
        todo += [child for child, (parent, _) in table.items() if parent == pid]
    return found


def _processes() -> dict[int, tuple[int, int]]:
    """Parent and clock ticks of every process, with the ticks of children it has waited for."""
    processes: dict[int, tuple[int, int]] = {}
    for folder in PROC.iterdir() if cpu_is_known() else ():
        if folder.name.isdigit():
            try:
                fields = (folder / "stat").read_text().rpartition(")")[2].split()
            except OSError:  # it has just ended
                continue
            processes[int(folder.name)] = (int(fields[1]), sum(map(int, fields[11:15])))
    return processes
