"""Rules that repeat within the day: the times that dateutil finds, without trying each second."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable
from datetime import UTC, datetime, timedelta
from itertools import islice
from zoneinfo import ZoneInfo

import pytest
from dateutil.rrule import rrulestr
from hypothesis import given, settings
from hypothesis import strategies as st

from chordage.orchestrator.gateways.schedules.times import rule_from

UTC_ZONE = ZoneInfo("UTC")
A_DAY = timedelta(days=1)


def first_of(find: Callable[[], Iterable[datetime]]) -> list[datetime]:
    """What is refused has none. dateutil finds that out on its way."""
    found: list[datetime] = []
    with contextlib.suppress(ValueError):
        found += islice(find(), 5)
    return found


@pytest.mark.parametrize("rule", [
    "FREQ=DAILY;BYMONTH=2;BYMONTHDAY=30", "FREQ=WEEKLY;BYMONTH=2;BYMONTHDAY=30",
    "FREQ=MONTHLY;BYMONTH=2;BYMONTHDAY=30", "FREQ=YEARLY;BYYEARDAY=1;BYMONTH=2",
    "DTSTART:99990101T000000 RRULE:FREQ=DAILY", "FREQ=DAILY;UNTIL=99991231T235959Z",
    "DTSTART:00010101T000000 RRULE:FREQ=MINUTELY;COUNT=9", "FREQ=HOURLY;UNTIL=99991231T235959Z",
    "DTSTART:20260102T000000 RRULE:FREQ=HOURLY;UNTIL=20260101T000000",
])  # fmt: skip
def test_rule_whose_parts_never_meet_is_refused_at_once(rule):
    began = time.process_time()

    with pytest.raises(ValueError, match="ever|must|beyond"):
        rule_from(rule, ZoneInfo("Europe/Berlin" if "UNTIL" in rule else "UTC"))
    assert time.process_time() - began < 0.5


@pytest.mark.parametrize("rule", [
    "FREQ=HOURLY;BYMINUTE=0", "FREQ=SECONDLY;INTERVAL=60;BYSECOND=30", "FREQ=MINUTELY;INTERVAL=10080;BYDAY=MO",
    "FREQ=MINUTELY;BYSETPOS=3", "FREQ=HOURLY;BYMONTH=2;BYMONTHDAY=30;COUNT=3",
])  # fmt: skip
def test_times_within_the_day_that_follow_the_clock_are_for_cron(rule):
    with pytest.raises(ValueError, match=r"FREQ=\w+ takes INTERVAL, COUNT and UNTIL, not BY\w+.*: use cron"):
        rule_from(rule, UTC_ZONE)


@settings(max_examples=30, deadline=None)
@given(
    frequency=st.sampled_from(["HOURLY", "MINUTELY", "SECONDLY"]),
    interval=st.integers(1, 1000),
    count=st.sampled_from(["", ";COUNT=1", ";COUNT=3", ";UNTIL=20260103T000000"]),
    second=st.integers(0, 86_399),
)
def test_times_within_the_day_equal_those_of_dateutil(frequency, interval, count, second):
    start = datetime(2026, 1, 1) + timedelta(seconds=second)  # noqa: DTZ001 - dateutil's are without a zone
    rule = f"FREQ={frequency};INTERVAL={interval}{count}"
    first = start.strftime("DTSTART:%Y%m%dT%H%M%S")
    anchor = start.replace(tzinfo=UTC)

    theirs = first_of(lambda: rrulestr(f"{first}\nRRULE:{rule}"))
    ours = first_of(lambda: rule_from(f"{first} RRULE:{rule}", UTC_ZONE).after(anchor, anchor - A_DAY))

    assert ours == [time.replace(tzinfo=UTC) for time in theirs]


@pytest.mark.parametrize("rule", ["FREQ=HOURLY;INTERVAL=100000;COUNT=100000", "FREQ=SECONDLY;COUNT=100000"])
def test_a_very_long_rule_has_its_first_times(rule):
    moment = datetime(2026, 1, 1, tzinfo=UTC)

    assert next(rule_from(rule, UTC_ZONE).after(moment, moment)) > moment
