"""One bench from its servers to its results."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from chordage.workers.bench import arena, growth, latency, machine, speed
from chordage.workers.bench.contender import Contender, Ground
from chordage.workers.bench.counts import count
from chordage.workers.bench.line_up import contenders
from chordage.workers.bench.results import Results
from chordage.workers.bench.services import Services, services
from chordage.workers.bench.shape import SLOW, Shape


@dataclass(frozen=True, kw_only=True, slots=True)
class Order:
    names: Sequence[str]
    turns: int
    repeat: int
    in_flight: int
    database: str | None
    redis_url: str | None
    latency: bool
    growth: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class Bench:
    order: Order
    on: Services
    results: Results
    say: Callable[[str], None]

    @contextmanager
    def _field(
        self, shape: Shape, *, threads: int = 0
    ) -> Iterator[tuple[list[Contender], dict[str, list[int]], Ground]]:
        folder = self.on.folder / f"rooms-{shape.rounds}-{threads}"
        ground = Ground(
            redis_url=self.on.redis_url,
            database_url=self.on.database_url,
            folder=folder,
            shape=shape,
            in_flight=self.order.in_flight,
            threads=threads,
        )
        self.say("workers start")
        taking_part = contenders(self.order.names, ground)
        with arena.running(taking_part, self.on) as pids:
            yield taking_part, pids, ground

    def speed_and_counts(self) -> None:
        with self._field(Shape()) as (taking_part, pids, ground):
            order = self.order
            self.results.speed = speed.measure(
                taking_part,
                {**pids, "": list(self.on.pids)},
                turns=order.turns,
                repeat=order.repeat,
                in_flight=order.in_flight,
                say=self.say,
            )
            for one in taking_part:
                self.say(f"{one.name}: counts")
                self.results.counts[one.name] = count(one, ground)
                if order.growth:
                    self.results.histories[one.name] = growth.with_histories(one, ground, self.say)

    def rounds(self) -> None:
        for rounds in growth.ROUNDS:
            with self._field(replace(Shape(), rounds=rounds)) as (taking_part, _, _ground):
                for one in taking_part:
                    self.say(f"{one.name}: turns of {rounds} rounds")
                    self.results.per_round.setdefault(one.name, {})[rounds] = growth.per_round(one, rounds)

    def latency(self) -> None:
        with self._field(SLOW, threads=latency.THREADS) as (taking_part, _, _ground):
            for one in taking_part:
                latency.warm_up(one)
            for in_flight in latency.AT_ONCE:
                for one in taking_part:
                    self.say(f"{one.name}: slow model and tools, {in_flight} turns at once")
                    found = latency.over_the_ideal(one, in_flight)
                    self.results.over_ideal.setdefault(one.name, {})[in_flight] = found


def run(order: Order, say: Callable[[str], None]) -> Results:
    about = machine.describe()
    with services(database=order.database, redis_url=order.redis_url) as on:
        setup = {"turns": order.turns, "repeat": order.repeat, "in_flight": order.in_flight}
        results = Results(machine=about, database=on.kind, setup=setup)
        bench = Bench(order=order, on=on, results=results, say=say)
        bench.speed_and_counts()
        if order.growth:
            bench.rounds()
        if order.latency:
            bench.latency()
    return results
