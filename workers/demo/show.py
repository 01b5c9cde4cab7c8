"""The demonstration on a terminal: messages, a bar for each running tool, and a timeline of the workers."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from chordage.workers.demo.play import PlayedTurn, ShownEvent, WorkSpan
from chordage.workers.fleet.fleet import Fleet

NAMES = 9  # the width of the first column
WIDTH = 44  # of the timeline
FULL = "━"
NEXT = (
    ("chordage init", "put this room into a folder of yours, and change it"),
    ("chordage dev", "start everything and leave it running"),
    ('chordage submit "Hello"', "send it a message, from another terminal"),
)


@dataclass(slots=True)
class ToolBar:
    name: str
    worker: str
    share: float = 0.0
    done: bool = False


class Quiet:
    """Shows nothing, for --json."""

    def title(self) -> None: ...
    def busy(self, _text: str) -> contextlib.AbstractContextManager[object]:
        return contextlib.nullcontext()

    def started(self, fleet: Fleet, seconds: float) -> None: ...
    def message(self, who: str, text: str) -> None: ...
    def event(self, event: ShownEvent) -> None: ...
    def summary(self, played: PlayedTurn) -> None: ...
    def next_steps(self) -> None: ...


class Show(Quiet):
    def __init__(self, console: Console) -> None:
        self._console = console
        self._tools: dict[str, ToolBar] = {}
        self._live: Live | None = None

    def title(self) -> None:
        self._console.print("[bold]One turn over several worker processes[/]  [dim]scripted model, no API key[/]\n")

    def busy(self, text: str) -> contextlib.AbstractContextManager[object]:
        self._end_live()
        return self._console.status(f"[dim]{text}[/]", spinner="dots")

    def started(self, fleet: Fleet, seconds: float) -> None:
        names = ", ".join(f"{member.name} [dim]({member.pid})[/]" for member in fleet.members)
        self._console.print(f"  [green]✓[/] Valkey, SQLite, {names}  [dim]{seconds:.1f} s[/]\n")

    def message(self, who: str, text: str) -> None:
        table = Table.grid(padding=(0, 1))
        table.add_column(width=NAMES + 2, style="bold" if who == "you" else "bold magenta")
        table.add_row(f"  {who}", Text(text))
        self._console.print(table)
        self._console.print()

    def event(self, event: ShownEvent) -> None:
        match event.kind:
            case "model.replied":
                self._end_live()
                self.message("guide", str(event.data["text"]))
            case "tool.started":
                self._tools[event.data["call"]] = ToolBar(event.data["tool"], event.data["worker"])
            case "tool.progress" if tool := self._tools.get(event.data["call"]):
                tool.share = _share(event.data["text"])
            case "tool.settled" if tool := self._tools.get(event.data["call"]):
                tool.done, tool.share = True, 1.0
        if event.kind.startswith("tool."):
            self._draw()

    def _draw(self) -> None:
        if self._live is None:
            self._live = Live(console=self._console, auto_refresh=False)
            self._live.start()
        self._live.update(self._bars(), refresh=True)

    def _bars(self) -> RenderableType:
        table = Table.grid(padding=(0, 1))
        for tool in self._tools.values():
            mark = "[green]✓[/]" if tool.done else "[yellow]…[/]"
            bar = ProgressBar(
                total=1.0, completed=tool.share, width=WIDTH, complete_style="cyan", finished_style="cyan"
            )
            table.add_row(f"  {tool.name:<{NAMES}}", bar, mark, f"[dim]{tool.worker}[/]")
        return Group(table, Text())

    def _end_live(self) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None

    def summary(self, played: PlayedTurn) -> None:
        parts = sorted((*played.model_calls, *played.calls), key=lambda part: part.started)
        if played.turn.answer is None:
            self._console.print(f"  [red]The turn ended without an answer:[/] {played.turn.fate}\n")
        if not parts:
            return
        start, seconds = span(parts)
        table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim", show_edge=False)
        for name in ("  what", "where", "process"):
            table.add_column(name, no_wrap=True)
        table.add_column(axis(seconds, WIDTH), no_wrap=True)
        for part in parts:
            style = "magenta" if part.what == "model" else "cyan"
            stretch = Text(bar(part, start, seconds, WIDTH), style=style)
            table.add_row(f"  {part.what}", part.member, f"[dim]{part.worker}[/]", stretch)
        self._console.print(table)
        self._console.print()
        for line in _in_words(played.calls):
            self._console.print(f"  {line}")
        self._console.print()

    def next_steps(self) -> None:
        self._console.print("[bold]What next[/]")
        for command, what in NEXT:
            self._console.print(f"  [cyan]{command:<25}[/]{what}")


def _share(text: str) -> float:
    """The percentage at the beginning of a progress note, if the tool reported one."""
    number, sign, _ = text.partition("%")
    return float(number) / 100 if sign and number.isdigit() else 0.0


def _in_words(calls: tuple[WorkSpan, ...]) -> list[str]:
    if not calls:
        return ["No tool was called."]
    _start, seconds = span(calls)
    processes = len({call.worker for call in calls})
    members = len({call.member for call in calls})
    work = (
        f"{len(calls)} tool calls, {sum_of(calls):.1f} s of work, in [bold]{seconds:.1f} s[/]: "
        f"one Celery chord, {processes} processes, {members} workers."
    )
    return [work, "[dim]Every call is a row in SQL, and the rows decide when the round is complete.[/]"]


# The timeline


def bar(part: WorkSpan, start: datetime, seconds: float, width: int) -> str:
    """A line whose width is all the seconds, with a bar where the part ran; never shorter than one character."""
    begin = round((part.started - start).total_seconds() / seconds * width)
    end = round((part.ended - start).total_seconds() / seconds * width)
    begin = min(max(begin, 0), width - 1)
    end = min(max(end, begin + 1), width)
    return " " * begin + FULL * (end - begin) + " " * (width - end)


def axis(seconds: float, width: int) -> str:
    """Marks at whole seconds, or at halves where there are few."""
    step = 0.5 if seconds < 3 else 1.0
    line = [" "] * (width + 5)
    mark = 0.0
    while mark <= seconds and (place := round(mark / seconds * width)) <= width:
        label = f"{mark:g}s"
        line[place : place + len(label)] = label
        mark += step
    return "".join(line).rstrip()


def span(parts: Sequence[WorkSpan]) -> tuple[datetime, float]:
    """When the first began, and how many seconds until the last had ended."""
    start = min(part.started for part in parts)
    return start, max((max(part.ended for part in parts) - start).total_seconds(), 0.001)


def sum_of(parts: Sequence[WorkSpan]) -> float:
    return sum((part.ended - part.started).total_seconds() for part in parts)
