"""From moments to per cent of a track, with long idle stretches cut to a notch each."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum

from chordage.orchestrator.console.words import span

NOTCH = 0.04  # of the width, for each stretch that is cut
SHORTEST_CUT = 5.0  # seconds
MOST_NOTCHES = 8
NARROWEST = 0.35  # per cent: a bar stays visible
TICKS = 6
LETTER = 1.8  # per cent of the narrowest track
NOTICED = 0.05  # seconds; a shorter wait for a worker is not drawn


class BarKind(StrEnum):
    QUEUED = "queued"  # it waits for a worker
    MODEL = "model"
    RETRY = "retry"  # an attempt that failed
    TOOL = "tool"
    LOST = "lost"  # the worker died; no process worked on it
    REPLAY = "replay"  # after a decision
    WAITING = "waiting"  # for a decision
    CHILD = "child"  # a sub-agent works
    COMPACTION = "compaction"


IDLE = frozenset({BarKind.QUEUED, BarKind.WAITING, BarKind.LOST, BarKind.CHILD})  # a sub-agent has rows of its own


@dataclass(frozen=True, kw_only=True, slots=True)
class TimelineSpan:
    """What happened from one moment to another; `end` None: it has not ended."""

    kind: BarKind
    start: datetime
    end: datetime | None
    text: str

    def until(self, now: datetime) -> datetime:
        return max(self.start, self.end or now)


@dataclass(frozen=True, kw_only=True, slots=True)
class DrawnBar:
    """A span as it is drawn: `left` and `width` are per cent of the track."""

    kind: BarKind
    left: float
    width: float
    text: str
    is_open: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class Tick:
    at: float  # per cent
    text: str
    is_notch: bool = False


class TimeScale:
    """From moments to per cent, with long idle stretches cut to a notch each."""

    def __init__(
        self,
        spans: Sequence[TimelineSpan],
        start: datetime,
        end: datetime,
        now: datetime,
        *,
        is_open: bool,
        with_idle: bool,
    ) -> None:
        self._now = now
        self._start = min([start, *(piece.start for piece in spans)])
        last = max([end, *(piece.until(now) for piece in spans)], default=end)
        total = max(0.001, (last - self._start).total_seconds())
        work = _merged(
            (self._offset(piece.start), self._offset(piece.until(now))) for piece in spans if piece.kind not in IDLE
        )
        idle = _between(work, total)
        busy = total - sum(to - since for since, to in idle)
        long = [gap for gap in idle if gap[1] - gap[0] >= max(SHORTEST_CUT, busy / 4)]
        self.has_cuts = bool(long)
        cuts = [] if with_idle else sorted(sorted(long, key=lambda gap: gap[0] - gap[1])[:MOST_NOTCHES])
        kept = total - sum(to - since for since, to in cuts)
        if is_open and not (cuts and cuts[-1][1] >= total):
            kept = _rounded_up(kept)
            total = kept + sum(to - since for since, to in cuts)
        kept = max(kept, 0.001)
        share = 100 - 100 * NOTCH * len(cuts)
        self._cuts = cuts
        self._pieces: list[tuple[float, float, float, float]] = []  # from, to, left, right
        left, at = 0.0, 0.0
        for since, to in [*cuts, (total, total)]:
            right = left + share * (since - at) / kept
            self._pieces.append((at, since, left, right))
            if to > since:
                self._pieces.append((since, to, right, right + 100 * NOTCH))
                right += 100 * NOTCH
            left, at = right, to

    def _offset(self, at: datetime) -> float:
        return (at - self._start).total_seconds()

    def _percent(self, offset: float) -> float:
        for since, to, left, right in self._pieces:
            if offset <= to:
                part = (offset - since) / (to - since) if to > since else 1.0
                return left + max(0.0, part) * (right - left)
        return 100.0

    def bar(self, piece: TimelineSpan) -> DrawnBar:
        left = self._percent(self._offset(piece.start))
        width = max(NARROWEST, self._percent(self._offset(piece.until(self._now))) - left)
        left = min(left, 100 - NARROWEST)
        return DrawnBar(
            kind=piece.kind, left=round(left, 2), width=round(min(width, 100 - left), 2), text=piece.text,
            is_open=piece.end is None,
        )  # fmt: skip

    def ticks(self) -> list[Tick]:
        """In order. A text that would lie on another, or says the same again, is left out, of ticks before notches."""
        ticks, taken, written = list(self._ticks()), list[tuple[float, float]](), set[str]()
        for tick in sorted(ticks, key=lambda tick: not tick.is_notch):
            width = LETTER * (len(tick.text) + 2)  # with the sign of a notch, or the line of a tick
            left = tick.at - width / 2 if tick.is_notch else tick.at
            is_covered = any(left < right and start < left + width for start, right in taken)
            if is_covered or (tick.text in written and not tick.is_notch):
                ticks[ticks.index(tick)] = replace(tick, text="")
            else:
                taken.append((left, left + width))
                written.add(tick.text)
        return ticks

    def _ticks(self) -> Iterator[Tick]:
        cut = {(since, to) for since, to in self._cuts}
        whole = sum(to - since for since, to, _left, _right in self._pieces if (since, to) not in cut)
        every = _rounded_up(whole / TICKS)
        for since, to, left, right in self._pieces:
            if (since, to) in cut:
                yield Tick(at=round((left + right) / 2, 2), text=span(to - since), is_notch=True)
                continue
            number = int(since // every) + (1 if since else 0)
            while number * every < to:
                at = self._percent(number * every)
                if right - at > 4:
                    yield Tick(at=round(at, 2), text=span(number * every) if number else "0")
                number += 1


def _merged(stretches: Iterable[tuple[float, float]]) -> list[tuple[float, float]]:
    merged: list[tuple[float, float]] = []
    for since, to in sorted(stretches):
        if merged and since <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], to))
        else:
            merged.append((since, to))
    return merged


def _between(work: Sequence[tuple[float, float]], total: float) -> list[tuple[float, float]]:
    """The stretches of 0 to `total` in which nothing works."""
    gaps: list[tuple[float, float]] = []
    at = 0.0
    for since, to in [*work, (total, total)]:
        if since > at:
            gaps.append((at, since))
        at = max(at, to)
    return gaps


def _rounded_up(seconds: float) -> float:
    """To 1, 2 or 5 times a power of ten below a minute, then to minutes, hours and days: a scale that rarely moves."""
    for step in (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10_800, 21_600, 43_200, 86_400):
        if seconds <= step and step >= 1:
            if seconds <= 0.5 and step == 1:
                break
            return float(step)
    if seconds > 86_400:
        return float(86_400 * (int(seconds // 86_400) + 1))
    for small in (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5):
        if seconds <= small:
            return small
    return 1.0
