"""A clock that was ahead when a schedule began or was due: the times to come are not lost."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest

from chordage.orchestrator.core.pulse import WorkItem, WorkKind, next_step
from chordage.orchestrator.gateways.schedules.times import cron_from, every_from

NOW = datetime(2026, 1, 1, 12, 3, tzinfo=UTC)
TEN = timedelta(minutes=10)
SCHEDULES = {"every": every_from("10m"), "cron": cron_from("*/10 * * * *", ZoneInfo("UTC"))}


def chore(schedule: str) -> WorkItem:
    return WorkItem(
        kind=WorkKind.CHORE, key="c", path="chores/c.md", title="c", text="z", hash="h", schedule=SCHEDULES[schedule],
        schedule_words=schedule,
    )  # fmt: skip


def fired(item, row, now):
    """The row once the turn of this step has ended, and the key of that turn."""
    step = next_step(item, row, now)
    return replace(step.row, open=False), step.dedupe_key


@pytest.mark.parametrize("schedule", list(SCHEDULES))
@pytest.mark.parametrize("began", [NOW - timedelta(days=9), NOW + timedelta(days=2)])
def test_times_that_a_wrong_clock_used_up_come_all_the_same(schedule, began):
    item, keys = chore(schedule), []
    row, _ = fired(item, None, began)
    row, ahead = fired(item, row, NOW + timedelta(days=2, minutes=10))
    assert ahead is not None

    for minute in range(0, 60, 3):
        row, key = fired(item, row, NOW + timedelta(minutes=minute))
        keys += [key] if key else []

    assert len(keys) in {5, 6}
    assert len(set(keys)) == len(keys)
    assert ahead not in keys


@pytest.mark.parametrize("schedule", list(SCHEDULES))
def test_clocks_that_differ_by_seconds_move_no_time(schedule):
    item = chore(schedule)
    row, _ = fired(item, None, NOW)
    row, key = fired(item, row, NOW + TEN)
    assert key is not None

    assert fired(item, row, row.last_slot - timedelta(seconds=5)) == (row, None)
