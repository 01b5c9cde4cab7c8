"""The results: all of `--json`, and tables for people, ratios first."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field

from rich.table import Table

from chordage.benchmarks.counting import Counts
from chordage.benchmarks.measuring import HistoryCost, Latency, Speed
from chordage.workers.cli.output import console

WIDE = 120  # columns, where the output is no terminal


@dataclass(kw_only=True, slots=True)
class Results:
    machine: dict[str, str]
    database: str
    setup: dict[str, int]
    speed: dict[str, Speed] = field(default_factory=dict)
    counts: dict[str, Counts] = field(default_factory=dict)
    over_ideal: dict[str, dict[int, Latency]] = field(default_factory=dict)  # by turns in flight
    histories: dict[str, list[HistoryCost]] = field(default_factory=dict)
    per_round: dict[str, dict[int, float]] = field(default_factory=dict)  # seconds, by rounds of the turn


def show(results: Results) -> None:
    for table in (_speed(results), _counts(results), _latency(results), _histories(results), _rounds(results)):
        if table is not None:
            _print(table)
    about = ", ".join(f"{name} {value}" for name, value in results.machine.items())
    setup = ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in results.setup.items())
    out = console()
    out.print(f"A turn: message, model, 4 tools of 1 KB, model, text. {setup}. Database: {results.database}.")
    out.print(about)


def _print(table: Table) -> None:
    out = console()
    if not sys.stdout.isatty():
        out.width = WIDE
    out.print(table)
    out.print()


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold", box=None, pad_edge=False, header_style="bold")
    for number, column in enumerate(columns):
        table.add_column(column, justify="left" if number == 0 else "right", no_wrap=number == 0)
    return table


def _speed(results: Results) -> Table:
    base = next(iter(results.speed))
    table = _table(
        "Speed", "contender", f"turns/s ÷ {base}", f"idle p50 ÷ {base}", f"CPU ÷ {base}",
        "turns/s", "range", "idle p50 ms", "p95 ms", "CPU ms/turn",
    )  # fmt: skip
    first = results.speed[base]
    for name, speed in results.speed.items():
        table.add_row(
            name,
            ratio(speed.rate, first.rate),
            ratio(speed.idle_p50, first.idle_p50),
            ratio(speed.cpu_ms, first.cpu_ms),
            f"{speed.rate:.1f}",
            f"{min(speed.rates):.1f}-{max(speed.rates):.1f}",
            *(f"{seconds * 1000:.1f}" for seconds in (speed.idle_p50, speed.idle_p95)),
            number(speed.cpu_ms),
        )
    return table


def _counts(results: Results) -> Table:
    table = _table(
        "Counts a turn", "contender", "Celery messages", "write commits", "SQL in them", "other reads",
        "Redis commands", "KB to Redis", "KB of database log",
    )  # fmt: skip
    for name, counts in results.counts.items():
        table.add_row(
            name,
            *(
                number(value)
                for value in (counts.messages, counts.commits, counts.write_statements, counts.read_statements)
            ),
            number(counts.redis_commands),
            *(number(value / 1000) for value in (counts.redis_bytes, counts.sql_bytes)),
        )
    return table


def _latency(results: Results) -> Table | None:
    if not results.over_ideal:
        return None
    at_once = list(next(iter(results.over_ideal.values())))
    table = _table(
        "ms over the ideal 500, p50 / p95 / last: model 200 ms, tools 100 ms",
        "contender",
        *(f"{n} at once" for n in at_once),
    )
    for name, latencies in results.over_ideal.items():
        table.add_row(name, *(_over(latencies[n]) for n in at_once))
    return table


def _histories(results: Results) -> Table | None:
    if not results.histories:
        return None
    sizes = [history.messages for history in next(iter(results.histories.values()))]
    table = _table(
        f"A turn on a thread of {' / '.join(map(str, sizes))} messages", "contender",
        "bytes, last ÷ first", "p50, last ÷ first", "p50 ms", "KB to Redis", "KB of database log",
    )  # fmt: skip
    for name, histories in results.histories.items():
        first, last = histories[0], histories[-1]
        table.add_row(
            name,
            ratio(last.counts.bytes, first.counts.bytes),
            ratio(last.p50, first.p50),
            _row([history.p50 * 1000 for history in histories]),
            _row([history.counts.redis_bytes / 1000 for history in histories]),
            _row([history.counts.sql_bytes / 1000 for history in histories]),
        )
    return table


def _rounds(results: Results) -> Table | None:
    if not results.per_round:
        return None
    rounds = list(next(iter(results.per_round.values())))
    title = f"ms a round, in turns of {' / '.join(map(str, rounds))} rounds"
    table = _table(title, "contender", f"{rounds[-1]} ÷ {rounds[-2]} rounds", "ms a round")
    for name, seconds in results.per_round.items():
        table.add_row(name, ratio(seconds[rounds[-1]], seconds[rounds[-2]]), _row([seconds[n] * 1000 for n in rounds]))
    return table


def _over(latency: Latency) -> str:
    return " / ".join(f"{seconds * 1000:.0f}" for seconds in (latency.p50, latency.p95, latency.last))


def ratio(value: float | None, base: float | None) -> str:
    return "-" if value is None or not base else f"{value / base:.2f}"


def number(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:.0f}" if value == round(value) else f"{value:.1f}"


def _row(values: Sequence[float]) -> str:
    return " / ".join(f"{value:.1f}" for value in values)
