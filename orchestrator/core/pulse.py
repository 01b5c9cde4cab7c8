"""Scheduled work: the files of the room, the rows about them, and the rule by which one follows from the other.

A row remembers which text was given to a turn (`seen`), and which text that turn's own tools made of it (`own`). A file
with any other text was changed by a person. Files and rows are only compared here; nothing is read or written.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum
from itertools import takewhile
from typing import Protocol


class WorkKind(StrEnum):
    TASK = "task"
    CHORE = "chore"
    WILL = "will"


class PulseState(StrEnum):
    LIVE = "live"
    DONE = "done"  # a task that is done or cancelled; a schedule that has come to its end
    GONE = "gone"  # its file is not there


class Schedule(Protocol):
    def after(self, anchor: datetime, moment: datetime) -> Iterator[datetime]:
        """The times after that moment, in order. `anchor`: when the schedule was first seen."""
        ...


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkItem:
    """A file of the room, read."""

    kind: WorkKind
    key: str
    path: str  # in the room
    title: str
    text: str  # the message of its turn
    hash: str  # of all that counts as a change
    agent: str | None = None  # None: the room's default
    paused: bool = False
    closed: bool = False  # a task that is done or cancelled
    schedule: Schedule | None = None  # of a chore or a will
    schedule_words: str = ""

    @property
    def name(self) -> str:
        return named(self.kind, self.key)


@dataclass(frozen=True, kw_only=True, slots=True)
class PulseRow:
    """The database row of an item."""

    kind: WorkKind
    key: str
    path: str
    rev: int = 0  # counts the writes: a process that has read an older one writes nothing
    state: PulseState = PulseState.LIVE
    paused: bool = False
    seen: str | None = None
    own: str | None = None
    schedule: str | None = None  # in words; what is different is a new one
    anchor: datetime | None = None
    next_due: datetime | None = None
    last_slot: datetime | None = None
    count: int = 0  # of turns
    turn_id: str | None = None  # the newest
    open: bool = False  # its end was not noted yet
    started_at: datetime | None = None
    ended_at: datetime | None = None
    disposition: str | None = None
    run_id: str | None = None
    gone_at: datetime | None = None

    def covers(self, text: str) -> bool:
        return text in {self.seen, self.own}


@dataclass(frozen=True, kw_only=True, slots=True)
class PulseStep:
    """How the row is from now on. `dedupe_key`: with a turn, of which there is one under that key."""

    row: PulseRow
    dedupe_key: str | None = None
    waits: bool = False  # there will be a turn when the one under way has ended


def named(kind: WorkKind, key: str) -> str:
    return kind.value if kind is WorkKind.WILL else f"{kind.value}:{key}"


def next_step(item: WorkItem, known: PulseRow | None, now: datetime) -> PulseStep:
    fresh = PulseRow(kind=item.kind, key=item.key, path=item.path)
    row = replace(known or fresh, path=item.path, gone_at=None)
    return _of_task(item, row) if item.kind is WorkKind.TASK else _of_schedule(item, row, now)


def _of_task(item: WorkItem, row: PulseRow) -> PulseStep:
    if item.hash == row.own:
        row = replace(row, seen=row.own, own=None)
    row = replace(row, paused=item.paused, state=PulseState.DONE if item.closed else PulseState.LIVE)
    if item.closed:  # the text that closes it is remembered as well: opening it again changes it
        return PulseStep(row=row if row.covers(item.hash) else replace(row, seen=item.hash, own=None))
    if item.paused or row.covers(item.hash):
        return PulseStep(row=row)
    if row.open:
        return PulseStep(row=row, waits=True)
    row = _with_turn(row, item)
    return PulseStep(row=row, dedupe_key=f"{item.name}:{item.hash[:16]}:{row.count}")


def _of_schedule(item: WorkItem, row: PulseRow, now: datetime) -> PulseStep:
    assert item.schedule is not None
    was_paused = row.paused
    row = replace(row, paused=item.paused)
    if row.schedule != item.schedule_words:  # from here on, whatever was before
        row = replace(row, schedule=item.schedule_words, anchor=now, next_due=_not_before(item.schedule, now, now))
    elif was_paused and not item.paused and row.next_due is not None and row.next_due <= now:
        assert row.anchor is not None
        row = replace(
            row, next_due=_not_before(item.schedule, row.anchor, now)
        )  # what was missed in the pause stays missed
    row = replace(row, state=PulseState.DONE if row.next_due is None else PulseState.LIVE)
    if row.next_due is None or item.paused or row.open or row.next_due > now:
        return PulseStep(row=row)
    return _fire(item, row, row.next_due, now)


def _fire(item: WorkItem, row: PulseRow, due: datetime, now: datetime) -> PulseStep:
    """All that were missed are one turn, for the last of them; the next time is where it always was."""
    assert item.schedule is not None
    assert row.anchor is not None
    slot = last_until(item.schedule, row.anchor, due, now)
    following = next(item.schedule.after(row.anchor, slot), None)
    state = PulseState.DONE if following is None else PulseState.LIVE
    row = replace(_with_turn(row, item), last_slot=slot, next_due=following, state=state)
    return PulseStep(row=row, dedupe_key=f"{item.name}:{slot.isoformat()}")


def _with_turn(row: PulseRow, item: WorkItem) -> PulseRow:
    return replace(row, seen=item.hash, own=None, count=row.count + 1, open=True)


def by_hand(item: WorkItem, known: PulseRow | None, now: datetime) -> PulseRow:
    """The row after a turn on request. The schedule stays as it is."""
    return _with_turn(next_step(replace(item, paused=True), known, now).row, item)


def _not_before(schedule: Schedule, anchor: datetime, moment: datetime) -> datetime | None:
    return next(schedule.after(anchor, moment - timedelta(microseconds=1)), None)


_WINDOWS = (timedelta(hours=1), timedelta(days=1), timedelta(days=32), timedelta(days=400))


def last_until(schedule: Schedule, anchor: datetime, due: datetime, now: datetime) -> datetime:
    """The last time that is not later than now; `due` is the first of those that count.

    Looked for in ever wider windows, so that a minute's schedule that was away for a month is not counted through.
    """
    for window in _WINDOWS:
        since = max(due, now - window)
        times = list(takewhile(lambda time: time <= now, schedule.after(anchor, since)))
        if times:
            return times[-1]
        if since == due:
            break
    else:
        times = list(takewhile(lambda time: time <= now, schedule.after(anchor, due)))
    return times[-1] if times else due
