"""What commands print: lines and tables for people, JSON for programs, progress and errors on standard error.

Every command prints through this module, and no other code may print: much of what is shown comes from outside
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

from chordage.config.settings import SettingsFault
from chordage.orchestrator.core.approvals import OnExpiry
from chordage.orchestrator.core.errors import InvalidDecision, InvalidMessage, UserError
from chordage.orchestrator.core.inert import inert, inert_json, inert_line

if TYPE_CHECKING:
    from rich.console import Console

    from chordage.orchestrator.views import OpenQuestion
    from chordage.orchestrator.views.approvals import QuestionView

F = TypeVar("F", bound=Callable[..., Any])

NARROWEST = 60  # columns; a narrower terminal breaks the lines by itself
HANGING = 2  # the indent of the continuation of a long line, beyond its own
MAX_VALUE = 200  # characters of a value in one line
PROSE = {"text", "prompt", "arguments", "answer", "excerpt", "description", "error", "why", "where"}  # may be cut
FAILED, BAD_INPUT, INTERRUPTED = 1, 2, 130  # exit codes; 2 is click's for wrong options, 130 a shell's for Ctrl-C
_WORDS = re.compile(r"`[^`\n]*`\S*|\S+")  # a command in backticks is one word


def say(text: str = "", *, err: bool = False, nl: bool = True, **style: Any) -> None:
    """A text on standard output or standard error. For a person, standard error is wrapped."""
    lines = inert(text)
    if err and sys.stderr.isatty() and nl:
        lines = "\n".join(part for line in lines.split("\n") for part in wrapped(line))
    click.echo(click.style(lines, **style) if style else lines, err=err, nl=nl)


def say_lines(lines: Iterable[str], *, mark: Mapping[int, str] | None = None) -> None:
    """Lines for people, wrapped on a terminal; elsewhere each stays one line, for grep. `mark`: the colour of the first
    word of a line, by its number.
    """
    for number, line in enumerate(lines):
        text = inert_line(line)
        for place, part in enumerate(wrapped(text) if sys.stdout.isatty() else [text]):
            head, gap, rest = part.partition("  ")
            colour = (mark or {}).get(number) if place == 0 else None
            click.echo(click.style(head, fg=colour) + gap + rest if colour else part)


def wrapped(line: str, *, hang: int | None = None, width: int | None = None) -> list[str]:
    """The line in parts of the terminal's width. A word or a command in backticks is never broken, so that it can be
    copied. `hang`: the indent of the second part and those after it.
    """
    width = max(NARROWEST, width or shutil.get_terminal_size().columns)
    body = line.lstrip(" ")
    if len(line) <= width or body.startswith("chordage "):
        return [line]
    indent = len(line) - len(body)
    blanks = " " * (indent + HANGING if hang is None else hang)
    parts, last, end = [], line[:indent], indent
    for match in _WORDS.finditer(line, indent):
        word = line[end : match.end()]  # with the blanks before it
        if last.strip() and len(last) + len(word) > width:
            parts.append(last)
            last = blanks + match[0]
        else:
            last += word
        end = match.end()
    return [*parts, last]


def exit_code(error: Exception) -> int:
    return BAD_INPUT if isinstance(error, InvalidMessage | InvalidDecision | SettingsFault) else FAILED


def report_error(error: Exception) -> None:
    """End the command with one line, if the error is one that a user can act on. A bug keeps its traceback."""
    if isinstance(error, UserError | SettingsFault):
        say(f"chordage: {error}", err=True)
        raise click.exceptions.Exit(exit_code(error)) from error


def show_faults_inert() -> None:
    """The traceback of a bug may quote text from outside."""

    def show(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        say("".join(traceback.format_exception(kind, error, trace)).rstrip("\n"), err=True)

    sys.excepthook = show


def json_option(command: F) -> F:
    """Add `--json`; the command gets it as `as_json`."""
    return click.option("--json", "as_json", is_flag=True, help="Print JSON instead of text for people.")(command)


def print_json(value: Any) -> None:
    """One JSON document on standard output."""
    click.echo(inert_json(json.dumps(value, default=plain, ensure_ascii=False, indent=2)))


def print_json_line(value: Any) -> None:
    """One of several JSON documents, each on a line of its own."""
    click.echo(inert_json(json.dumps(value, default=plain, ensure_ascii=False)))


def print_document(parts: Iterable[str]) -> None:
    """One JSON document on standard output, in the pieces in which it is made."""
    for part in parts:
        click.echo(inert_json(part), nl=False)


def plain(value: Any) -> Any:
    """The JSON form of a value that json does not know."""
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
    """For tables and progress. Rich is imported only when it is needed: that takes longer than most commands."""
    from rich.console import Console, ConsoleOptions, RenderableType
    from rich.segment import Segment

    class Inert(Console):
        """Text may not control the terminal; only the styles and positions of rich may."""

        def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
            for text, style, control in super().render(renderable, options):
                yield Segment(text if control else inert(text), style, control)

    return Inert(stderr=stderr, highlight=False, soft_wrap=not (sys.stderr if stderr else sys.stdout).isatty())


def print_table(columns: Sequence[str], rows: Sequence[Sequence[object]], *, empty: str = "none") -> None:
    """A table for people; for cut and awk, tab-separated lines without a heading."""
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

    from chordage.workers.cli import wrapped_table

    out = console()
    table = [tuple(columns), *(tuple(_cell(value) for value in row) for row in rows)]
    if wrapped_table.fits(table, out.width):
        _print_wide(out, table)
        return
    prose = {place for place, name in enumerate(columns) if name in PROSE}
    for number, lines in enumerate(wrapped_table.rows_of(table, out.width, prose)):
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
    """How long ago, or in how long."""
    passed = ((now or datetime.now(UTC)) - moment).total_seconds()
    return "now" if abs(passed) < 1 else f"{span(passed)} ago" if passed > 0 else f"in {span(-passed)}"


def span(seconds: float) -> str:
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s" if seconds >= 10 else f"{seconds:.1f} s"


def took(seconds: float) -> str:
    """A span that may be shorter than a second."""
    return f"{seconds * 1000:.0f} ms" if seconds < 1 else span(seconds)


def clock(at: datetime) -> str:
    return f"{at.astimezone():%H:%M:%S}"


def moment(at: datetime) -> str:
    return f"{at.astimezone():%Y-%m-%d %H:%M:%S} ({ago(at)})"


def short(value: object) -> str:
    """A value in one line, cut if it is long."""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    line = " ".join(text.split())
    return line if len(line) <= MAX_VALUE else f"{line[:MAX_VALUE]}… ({len(line)} characters)"


def indented(text: str, indent: str = "  ") -> Iterator[str]:
    return (f"{indent}{line}".rstrip() for line in text.splitlines())


@contextmanager
def busy(text: str) -> Iterator[None]:
    """A spinner on a terminal; nothing elsewhere."""
    if not sys.stderr.isatty():
        yield
        return
    with console(stderr=True).status(text, spinner="dots"):
        yield


# A question about a call.

_ON_EXPIRY = {
    OnExpiry.DENY: "then it is denied",
    OnExpiry.CANCEL_RUN: "then its run is cancelled",
    OnExpiry.ESCALATE: "then it is overdue",
    OnExpiry.DEFAULT: "then its default is taken",
}


def expiry(question: QuestionView | OpenQuestion) -> str:
    if question.overdue:
        return ", overdue"
    if question.expires_at is None:
        return ""
    return f", expires {ago(question.expires_at)} ({_ON_EXPIRY[question.on_expiry]})"


def fits_without_payload(schema: dict[str, Any] | None) -> bool:
    """`chordage approve ID` answers it, without a payload."""
    from chordage.orchestrator.gateways.schemas import complaint_about

    return schema is None or complaint_about(True, schema) is None or complaint_about(None, schema) is None
