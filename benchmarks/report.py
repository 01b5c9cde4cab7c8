"""Tables for people, ratios first: of one state, and of the states that are kept beside each other."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rich.table import Table

from chordage.benchmarks.contenders import SCENARIOS
from chordage.benchmarks.results import Results
from chordage.workers.cli.output import console, plain

WIDE = 120  # columns, where the output is no terminal
Kept = Mapping[str, Any]  # results as JSON has them


def show(results: Results) -> None:
    kept = json.loads(json.dumps(results, default=plain))
    for table in (_speed(kept), _counts(kept), *compared([kept], "overhead")):
        _print(table)
    for name, why in kept["failed"].items():
        console().print(f"{name}: {why}")
    recovery = kept["recovery"]
    if recovery:
        console().print(
            f"One of two workers killed under {recovery['turns']} turns: {recovery['ended']} ended, the last "
            f"{recovery['last_s']:.1f} s after the kill."
        )
    machine = ", ".join(f"{name} {value}" for name, value in kept["machine"].items())
    console().print(
        f"A turn: message, model, 4 tools of 1 KB, model, text. {kept['state']} on {kept['database']}; {machine}"
    )


def compare(states: Sequence[Kept]) -> None:
    for table in (*compared(states, "speed"), *compared(states, "overhead"), _of_each(states)):
        _print(table)


def compared(states: Sequence[Kept], kind: str) -> Iterable[Table]:
    """A table for each ratio, a row for each scenario, a column for each state."""
    titles = {
        "speed": {"rate_ratio": "Turns/s ÷ chord", "idle_ratio": "Lone turn ÷ chord", "cpu_ratio": "CPU ÷ chord"},
        "overhead": {"ratio": "Overhead ÷ chord, by turns at once: model 200 ms, tools 100 ms"},
    }
    for key, title in titles[kind].items():
        rows = {name for state in states for name in _flat(state[kind])}
        table = _table(title, "scenario", *(state["state"] for state in states))
        for name in sorted(rows, key=_place):
            table.add_row(name, *(_figure(_flat(state[kind]).get(name, {}).get(key)) for state in states))
        if rows:
            yield table


def _flat(found: Mapping[str, Any]) -> dict[str, Any]:
    """Overheads have a level more: by turns at once."""
    if not any("1" in value for value in found.values()):
        return dict(found)
    return {f"{name} {at_once}": value for name, each in found.items() for at_once, value in each.items()}


def _place(name: str) -> tuple[int, str]:
    first = name.split(maxsplit=1)[0]
    return (list(SCENARIOS).index(first) if first in SCENARIOS else len(SCENARIOS)), name


def _of_each(states: Sequence[Kept]) -> Table:
    table = _table("Of each state", "", *(state["state"] for state in states))
    counts = [state["counts"].get("chordage", {}) for state in states]
    for title, key in _COUNTS.items():
        table.add_row(f"{title} a turn", *(_number(count.get(key)) for count in counts))
    table.add_row("last end after a kill, s", *(_number((state["recovery"] or {}).get("last_s")) for state in states))
    table.add_row("measured", *(state["at"][:16] for state in states))
    return table


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


def _speed(kept: Kept) -> Table:
    table = _table(
        "Speed: median (range)", "scenario", "turns/s ÷ chord", "lone turn ÷ chord", "CPU ÷ chord",
        "turns/s", "chord's", "lone turn ms", "CPU ms/turn",
    )  # fmt: skip
    for name, speed in kept["speed"].items():
        ratios = (speed[key] for key in ("rate_ratio", "idle_ratio", "cpu_ratio"))
        plain_figures = (speed[key]["median"] for key in ("rate", "chord_rate", "idle_ms", "cpu_ms"))
        table.add_row(name, *map(_figure, ratios), *map(_number, plain_figures))
    return table


_COUNTS = {
    "messages": "messages", "write commits": "commits", "statements in them": "write_statements",
    "other reads": "read_statements", "Redis commands": "redis_commands",
}  # fmt: skip


def _counts(kept: Kept) -> Table:
    table = _table("Counts a turn", "scenario", *_COUNTS, "KB to Redis", "KB of database log")
    for name, count in kept["counts"].items():
        in_kb = (count["redis_bytes"] / 1000, count["sql_bytes"] / 1000)
        table.add_row(name, *(_number(count[key]) for key in _COUNTS.values()), *map(_number, in_kb))
    return table


def _figure(figure: Mapping[str, float] | None) -> str:
    return f"{figure['median']:.2f} ({figure['low']:.2f}-{figure['high']:.2f})" if figure else "-"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}".removesuffix(".0")
