"""How commands talk: tables and words for people, JSON for programs, progress on standard error."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from enum import Enum
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from rich.console import Console

F = TypeVar("F", bound=Callable[..., Any])


def json_option(command: F) -> F:
    """Adds `--json`, which the command gets as `as_json`."""
    return click.option("--json", "as_json", is_flag=True, help="Print JSON instead of text for people.")(command)


def tell_if_open(host: str) -> None:
    """Loudly, where the HTTP server is to be reached from other machines."""
    from chordage.workers.listening import warning_of

    if (warning := warning_of(host)) is not None:
        click.secho(f"chordage: {warning}", err=True, fg="red", bold=True)


def print_json(value: Any) -> None:
    """One JSON document on standard output."""
    click.echo(json.dumps(value, default=plain, ensure_ascii=False, indent=2))


def plain(value: Any) -> Any:
    """What JSON has for a value of ours."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    match value:
        case datetime():
            return value.astimezone(UTC).isoformat()
        case Enum():
            return value.value
        case Mapping():
            return dict(value)
        case set() | frozenset():
            return sorted(value)
        case _:
            return str(value)


def console(*, stderr: bool = False) -> Console:
    """Rich is imported when something is shown: it takes longer than most commands."""
    from rich.console import Console

    return Console(stderr=stderr, highlight=False, soft_wrap=not (sys.stderr if stderr else sys.stdout).isatty())


def print_table(columns: Sequence[str], rows: Sequence[Sequence[object]], *, empty: str = "none") -> None:
    """For people, columns as wide as they need to be. For cut and awk, tab-separated lines without a heading."""
    if not sys.stdout.isatty():
        for row in rows:
            click.echo("\t".join(_cell(value) for value in row))
        return
    if not rows:
        click.echo(empty)
        return
    _print_rich(columns, rows)


def _print_rich(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    from rich.text import Text

    from chordage.workers.cli import decks

    out = console()
    table = [tuple(columns), *(tuple(_cell(value) for value in row) for row in rows)]
    if decks.fits(table, out.width):
        _print_wide(out, table)
        return
    for number, lines in enumerate(decks.rows_of(table, out.width)):
        for line in lines:
            out.print(Text(line, style="" if number else "bold"), no_wrap=True, overflow="ignore", crop=False)


def _print_wide(out: Console, table: Sequence[Sequence[str]]) -> None:
    from rich.table import Table
    from rich.text import Text

    drawn = Table(box=None, pad_edge=False, header_style="bold")
    for number, name in enumerate(table[0]):
        drawn.add_column(name, no_wrap=True, style="cyan" if number == 0 else "")
    for row in table[1:]:
        drawn.add_row(*map(Text, row))
    out.print(drawn)


def _cell(value: object) -> str:
    if isinstance(value, datetime):
        return ago(value) if sys.stdout.isatty() else value.astimezone(UTC).isoformat(timespec="seconds")
    if value is None:
        return "-"
    return " ".join(str(value.value if isinstance(value, Enum) else value).split())


def ago(moment: datetime, now: datetime | None = None) -> str:
    """How long ago, in words short enough for a table."""
    passed = ((now or datetime.now(UTC)) - moment).total_seconds()
    return "now" if abs(passed) < 1 else f"{span(passed)} ago" if passed > 0 else f"in {span(-passed)}"


def span(seconds: float) -> str:
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s" if seconds >= 10 else f"{seconds:.1f} s"


@contextmanager
def busy(text: str) -> Iterator[None]:
    """A spinner while something takes its time; silent where nobody watches."""
    if not sys.stderr.isatty():
        yield
        return
    with console(stderr=True).status(text, spinner="dots"):
        yield
