"""Scheduled work: the files of the room, their database rows, and the rule for when a file gets a turn.

A row has the hash of the text that the last turn got (`seen`), and of the text that the turn's own tools made of it
(`own`). A file with any other hash was changed by a person.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum
from itertools import islice, takewhile
from typing import Protocol


class WorkKind(StrEnum):
    TASK = "task"
    CHORE = "chore"
    WILL = "will"


class PulseState(StrEnum):
    LIVE = "live"
    DONE = "done"  # a task that is done or cancelled, or a schedule without a next time
    GONE = "gone"  # its file is missing


class Schedule(Protocol):
    def after(self, anchor: datetime, moment: datetime) -> Iterator[datetime]:
        """The times after that moment, in order. `anchor`: when the schedule was first read."""
        ...


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkItem:
    """The content of a file."""

    kind: WorkKind
    key: str
    path: str  # in the room
    title: str
    text: str  # the message of its turn
    hash: str  # of everything that counts as a change
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
    """The database row of a file."""

    kind: WorkKind
    key: str
    path: str
    rev: int = 0  # grows with each write, which is refused to a process that has read an older one
    state: PulseState = PulseState.LIVE
    paused: bool = False
    paused_by: str | None = None  # a person, besides the file
    seen: str | None = None
    own: str | None = None
    schedule: str | None = None  # in words; another text is a new schedule
    anchor: datetime | None = None
    next_due: datetime | None = None
    last_slot: datetime | None = None
    count: int = 0  # of turns
    merged: int = 0  # times that had no turn of their own: one turn was for all of them
    missed: int = 0  # times inside a pause
    turn_id: str | None = None  # the newest
    open: bool = False  # its end is not in the row yet
    started_at: datetime | None = None
    ended_at: datetime | None = None
    disposition: str | None = None
    run_id: str | None = None
    gone_at: datetime | None = None

    def covers(self, text: str) -> bool:
        return text in {self.seen, self.own}


@dataclass(frozen=True, kw_only=True, slots=True)
class PulseStep:
    """The next row. With a `dedupe_key` there is a turn, and only one under that key."""

    row: PulseRow
    dedupe_key: str | None = None
    waits: bool = False  # a turn follows when the open one has ended


def named(kind: WorkKind, key: str) -> str:
    return kind.value if kind is WorkKind.WILL else f"{kind.value}:{key}"


def next_step(item: WorkItem, known: PulseRow | None, now: datetime) -> PulseStep:
    fresh = PulseRow(kind=item.kind, key=item.key, path=item.path)
    row = replace(known or fresh, path=item.path, gone_at=None)
    if row.paused_by is not None:
        item = replace(item, paused=True)
    return _of_task(item, row) if item.kind is WorkKind.TASK else _of_schedule(item, row, now)


def _of_task(item: WorkItem, row: PulseRow) -> PulseStep:
    if item.hash == row.own:
        row = replace(row, seen=row.own, own=None)
    row = replace(row, paused=item.paused, state=PulseState.DONE if item.closed else PulseState.LIVE)
    if item.closed:  # the closing text is stored too, so that reopening is a change
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
    begins_ahead = row.anchor is not None and row.anchor > now + AHEAD
    if row.schedule != item.schedule_words or begins_ahead:  # a new schedule begins now
        row = replace(row, schedule=item.schedule_words, anchor=now, next_due=_not_before(item.schedule, now, now))
    elif was_paused and not item.paused and row.next_due is not None and row.next_due <= now:
        assert row.anchor is not None  # times inside the pause are skipped
        missed = times_until(item.schedule, row.anchor, row.next_due, now - timedelta(microseconds=1))
        row = replace(row, next_due=_not_before(item.schedule, row.anchor, now), missed=row.missed + missed)
    elif row.last_slot is not None and row.last_slot > now + AHEAD:
        assert row.anchor is not None  # a clock that was ahead has used up times that are still to come
        due = _not_before(item.schedule, row.anchor, now)
        row = replace(row, next_due=min((time for time in (row.next_due, due) if time is not None), default=None))
    row = replace(row, state=PulseState.DONE if row.next_due is None else PulseState.LIVE)
    if row.next_due is None or item.paused or row.open or row.next_due > now:
        return PulseStep(row=row)
    return _fire(item, row, row.next_due, now)


AHEAD = timedelta(minutes=1)  # by which the clocks of hosts never differ, unless one is wrong


def _fire(item: WorkItem, row: PulseRow, due: datetime, now: datetime) -> PulseStep:
    """One turn for all missed times, with the last of them as its slot; the next time follows the schedule."""
    assert item.schedule is not None
    assert row.anchor is not None
    slot = last_until(item.schedule, row.anchor, due, now)
    following = next(item.schedule.after(row.anchor, slot), None)
    state = PulseState.DONE if following is None else PulseState.LIVE
    merged = row.merged + times_until(item.schedule, row.anchor, due, slot) - 1
    row = replace(_with_turn(row, item), last_slot=slot, next_due=following, state=state, merged=merged)
    return PulseStep(row=row, dedupe_key=f"{item.name}:{slot.isoformat()}")


def _with_turn(row: PulseRow, item: WorkItem) -> PulseRow:
    return replace(row, seen=item.hash, own=None, count=row.count + 1, open=True)


def by_hand(item: WorkItem, known: PulseRow | None, now: datetime) -> PulseRow:
    """The row after a turn on request, which does not change the schedule."""
    return _with_turn(next_step(replace(item, paused=True), known, now).row, item)


def _not_before(schedule: Schedule, anchor: datetime, moment: datetime) -> datetime | None:
    return next(schedule.after(anchor, moment - timedelta(microseconds=1)), None)


COUNTED = 1000  # times of one pause or one downtime: more are counted as so many


def times_until(schedule: Schedule, anchor: datetime, first: datetime, last: datetime) -> int:
    """How many times there are from `first`, which is one, to `last`."""
    if first >= last:
        return int(first == last)
    times = takewhile(lambda time: time <= last, schedule.after(anchor, first - timedelta(microseconds=1)))
    return sum(1 for _ in islice(times, COUNTED))


def last_until(schedule: Schedule, anchor: datetime, due: datetime, now: datetime) -> datetime:
    """The last time from `due` to `now`, searched in growing windows: a schedule of every minute is not counted through
    after a month of downtime.
    """
    windows = (max(due, now - timedelta(days=days)) for days in (1 / 24, 1, 32, 400))
    for since in (*windows, due):
        times = list(takewhile(lambda time: time <= now, schedule.after(anchor, since)))
        if times:
            return times[-1]
        if since == due:
            break
    return due
