"""Who did what when, as bars over one axis."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from chordage.workers.demo.played import Part

FULL = "━"


def bar(part: Part, start: datetime, seconds: float, width: int) -> str:
    """The part as a stretch of a line that stands for all the seconds; never shorter than one character."""
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


def span(parts: Sequence[Part]) -> tuple[datetime, float]:
    """When the first began, and how many seconds until the last had ended."""
    start = min(part.started for part in parts)
    return start, max((max(part.ended for part in parts) - start).total_seconds(), 0.001)


def sum_of(parts: Sequence[Part]) -> float:
    return sum((part.ended - part.started).total_seconds() for part in parts)
