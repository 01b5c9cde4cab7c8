"""The result of a simulation, for people."""

from __future__ import annotations

import sys

from rich.table import Table

from chordage.workers.cli.output import console, span, took
from chordage.workers.simulate.result import PLACES, SimulationResult, Spread

WIDE = 120  # columns, where the output is no terminal
BLANK = "\N{NO-BREAK SPACE}"
STARTED = {"queued", "active"}


def show(result: SimulationResult) -> None:
    out = console()
    if not sys.stdout.isatty():
        out.width = WIDE
    out.print(
        f"[bold]{result.turns:,} turns in {span(result.virtual_seconds)} of virtual time[/], simulated in "
        f"{span(result.real_seconds)} on {result.database}\n"
    )
    for table in (_waits(result), _ends(result), _calls(result), _tenants(result), _work(result), _rows(result)):
        out.print(table)
        out.print()


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold", box=None, pad_edge=False, header_style="bold")
    for number, column in enumerate(columns):
        table.add_column(column, justify="left" if number == 0 else "right", vertical="bottom", overflow="fold")
    return table


def _add(table: Table, *cells: str) -> None:
    """On a narrow terminal headings are folded, and long lists; a figure never: its blanks do not break."""
    table.add_row(*(cell.replace(" ", BLANK) if "," not in cell else cell for cell in cells))


def _cells(spread: Spread) -> list[str]:
    return [took(seconds) for seconds in (spread.p50, spread.p95, spread.p99, spread.longest)]


def _waits(result: SimulationResult) -> Table:
    columns = ("budget", "started p50", "p95", "p99", "longest", "first call p95", "done p50", "p95")
    table = _table("Waiting, from the message on", "group", *columns)
    for of in result.groups:
        first, done = of.until_asked, of.until_done
        _add(
            table, of.group.value, str(of.budget), *_cells(of.until_started), took(first.p95), took(done.p50),
            took(done.p95),
        )  # fmt: skip
    return table


def _ends(result: SimulationResult) -> Table:
    table = _table("Turns and their ends", "group", "came", "refused", "ended", "left", "longest queue", "how")
    for of in result.groups:
        left = sum(count for how, count in of.ways.items() if how in STARTED)
        ended = {how: count for how, count in of.ways.items() if how not in STARTED}
        _add(
            table,
            of.group.value,
            *(f"{count:,}" for count in (of.came, of.refused, sum(ended.values()), left, of.longest_queue)),
            ", ".join(f"{how} {count:,}" for how, count in ended.items()),
        )
    return table


def _calls(result: SimulationResult) -> Table:
    table = _table("Tool calls, by where they ran", "group", *(place.value for place in PLACES), "messages")
    for of in result.groups:
        if any(of.placed.values()):
            _add(table, of.group.value, *(f"{count:,}" for count in (*of.placed.values(), of.messages)))
    return table


def _tenants(result: SimulationResult) -> Table:
    table = _table("Tenants that waited longest to start", "tenant", "turns", "p50", "p95", "p99", "longest")
    for of in result.tenants:
        _add(table, of.tenant, f"{of.until_started.count:,}", *_cells(of.until_started))
    return table


def _work(result: SimulationResult) -> Table:
    title = f"The engine's own work, in real time, by one process ({result.in_vain:,} wake-ups started nothing)"
    table = _table(title, "what", "times", "a second", "ms", "statements")
    for work in result.work:
        _add(table, work.what, f"{work.times:,}", f"{work.per_second:,.0f}", f"{work.ms:.2f}", f"{work.statements:.1f}")
    return table


def _rows(result: SimulationResult) -> Table:
    table = _table("Hottest rows", "row", "locks", "in the busiest second", "busy then", "waited for it")
    for row in result.hot_rows:
        _add(table, row.row, f"{row.locks:,}", f"{row.in_busiest_second:,}", f"{row.busy:.0%}", took(row.waited))
    return table
