"""How commands talk: tables and words for people, JSON for programs, progress on standard error.

Every command prints through this module, and nothing else may: much of what is shown was written by strangers
(messages, replies, names, errors), and here it is made inert before it reaches a terminal.
"""

from __future__ import annotations

import dataclasses
import json
import re
import shutil
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from enum import Enum
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

import click

from chordage.config.inert import inert, inert_json, inert_line

if TYPE_CHECKING:
    from rich.console import Console

F = TypeVar("F", bound=Callable[..., Any])

NARROWEST = 60  # columns; on a narrower terminal lines are as long as on this one
HANGING = 2  # blanks before what follows in a line that is too long, behind its own indent
PROSE = {"text", "prompt", "arguments", "answer", "excerpt", "description", "error", "why", "where"}  # may be cut
_WORDS = re.compile(r"`[^`\n]*`\S*|\S+")  # a command in backticks is one word


def say(text: str = "", *, err: bool = False, nl: bool = True, **style: Any) -> None:
    """Words on standard output, or on standard error. There they are wrapped, if a person reads them."""
    lines = inert(text)
    if err and sys.stderr.isatty() and nl:
        lines = "\n".join(line for one in lines.split("\n") for line in wrapped(one))
    click.echo(click.style(lines, **style) if style else lines, err=err, nl=nl)


def say_lines(lines: Iterable[str], *, mark: Mapping[int, str] | None = None) -> None:
    """Lines for people: on a terminal none is wider than it; elsewhere each stays one line, for grep. `mark`: the
    colour of how a line begins, by its number.
    """
    for number, line in enumerate(lines):
        told = inert_line(line)
        for place, part in enumerate(wrapped(told) if sys.stdout.isatty() else [told]):
            head, gap, rest = part.partition("  ")
            colour = (mark or {}).get(number) if place == 0 else None
            click.echo(click.style(head, fg=colour) + gap + rest if colour else part)


def wrapped(line: str, *, hang: int | None = None, width: int | None = None) -> list[str]:
    """The line in lines of the terminal's width. A command, an id, anything without a blank is never broken: it may be
    longer than the line. `hang`: the indent of those that follow.
    """
    width = max(NARROWEST, width or shutil.get_terminal_size().columns)
    body = line.lstrip(" ")
    if len(line) <= width or body.startswith("chordage "):
        return [line]
    indent = len(line) - len(body)
    blanks = " " * (indent + HANGING if hang is None else hang)
    done, last, end = [], line[:indent], indent
    for found in _WORDS.finditer(line, indent):
        word = line[end : found.end()]  # with the blanks before it
        if last.strip() and len(last) + len(word) > width:
            done.append(last)
            last = blanks + found[0]
        else:
            last += word
        end = found.end()
    return [*done, last]


def show_faults_inert() -> None:
    """The traceback of a bug may quote what strangers wrote."""

    def show(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        say("".join(traceback.format_exception(kind, error, trace)).rstrip("\n"), err=True)

    sys.excepthook = show


def json_option(command: F) -> F:
    """Adds `--json`, which the command gets as `as_json`."""
    return click.option("--json", "as_json", is_flag=True, help="Print JSON instead of text for people.")(command)


def tell_if_open(host: str) -> None:
    """Loudly, where the HTTP server is to be reached from other machines."""
    from chordage.workers.listening import warning_of

    if (warning := warning_of(host)) is not None:
        say(f"chordage: {warning}", err=True, fg="red", bold=True)


def print_json(value: Any) -> None:
    """One JSON document on standard output."""
    click.echo(inert_json(json.dumps(value, default=plain, ensure_ascii=False, indent=2)))


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
    """For what is drawn. Rich is imported when something is shown: it takes longer than most commands."""
    from rich.console import Console, ConsoleOptions, RenderableType
    from rich.segment import Segment

    class Inert(Console):
        """Only what rich itself makes of styles and positions reaches the terminal as more than words."""

        def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
            for text, style, control in super().render(renderable, options):
                yield Segment(text if control else inert(text), style, control)

    return Inert(stderr=stderr, highlight=False, soft_wrap=not (sys.stderr if stderr else sys.stdout).isatty())


def print_table(columns: Sequence[str], rows: Sequence[Sequence[object]], *, empty: str = "none") -> None:
    """For people, columns as wide as they need to be. For cut and awk, tab-separated lines without a heading."""
    if not sys.stdout.isatty():
        for row in rows:
            click.echo("\t".join(_cell(value) for value in row))
        return
    if not rows:
        say(empty)
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
    prose = {place for place, name in enumerate(columns) if name in PROSE}
    for number, lines in enumerate(decks.rows_of(table, out.width, prose)):
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
    return inert_line(" ".join(str(value.value if isinstance(value, Enum) else value).split()))


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
