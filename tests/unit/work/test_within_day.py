"""Rules that repeat within the day: the times that dateutil finds, and never at the cost of trying each second."""

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

from chordage.orchestrator.gateways.work.rrule import recurrence_from

UTC_ZONE = ZoneInfo("UTC")
A_DAY = timedelta(days=1)


def first_of(find: Callable[[], Iterable[datetime]]) -> list[datetime]:
    """What is refused has none. dateutil finds that out on its way."""
    found: list[datetime] = []
    with contextlib.suppress(ValueError):
        found += islice(find(), 5)
    return found


@pytest.mark.parametrize("rule", [
    "FREQ=SECONDLY;INTERVAL=60;BYSECOND=30", "FREQ=HOURLY;INTERVAL=2;BYHOUR=8,10",
    "DTSTART:20260101T000000 RRULE:FREQ=SECONDLY;INTERVAL=60;BYSECOND=30",
    "DTSTART:20260101T000000 RRULE:FREQ=MINUTELY;INTERVAL=10080;BYDAY=MO",
    "FREQ=SECONDLY;INTERVAL=99991;BYHOUR=3;BYMINUTE=0;BYSECOND=0", "FREQ=MINUTELY;BYSETPOS=3",
    "FREQ=MINUTELY;BYSECOND=60",
    "FREQ=SECONDLY;INTERVAL=77;BYMONTH=2;BYMONTHDAY=30", "FREQ=DAILY;BYMONTH=2;BYMONTHDAY=30",
    "FREQ=WEEKLY;BYMONTH=2;BYMONTHDAY=30", "FREQ=MONTHLY;BYMONTH=2;BYMONTHDAY=30", "FREQ=YEARLY;BYYEARDAY=1;BYMONTH=2",
    "DTSTART:99990101T000000 RRULE:FREQ=DAILY", "FREQ=DAILY;UNTIL=99991231T235959Z",
    "DTSTART:00010101T000000 RRULE:FREQ=MINUTELY;COUNT=9",
])  # fmt: skip
def test_rule_whose_parts_never_meet_is_refused_at_once(rule):
    began = time.process_time()

    with pytest.raises(ValueError, match="INTERVAL is counted|never|ever|must|beyond"):
        recurrence_from(rule, ZoneInfo("Europe/Berlin" if "UNTIL" in rule else "UTC"))
    assert time.process_time() - began < 0.5


@pytest.mark.parametrize("rule", [
    "FREQ=SECONDLY;INTERVAL=7;BYSECOND=30", "FREQ=SECONDLY;BYHOUR=23;BYMINUTE=59;BYSECOND=59;BYMONTH=2;BYMONTHDAY=29",
    "FREQ=SECONDLY;INTERVAL=97;BYHOUR=3;BYMINUTE=0;BYSECOND=0;BYDAY=MO",
    "DTSTART:20260101T000030 RRULE:FREQ=SECONDLY;INTERVAL=60;BYSECOND=30",
])  # fmt: skip
def test_rare_times_within_the_day_are_found_at_once(rule):
    began = time.process_time()

    moment = datetime(2026, 3, 1, tzinfo=UTC)
    assert next(recurrence_from(rule, UTC_ZONE).after(moment, moment), None)
    assert time.process_time() - began < 0.5


lists = {"BYHOUR": 23, "BYMINUTE": 59, "BYSECOND": 59, "BYMONTHDAY": 28}


@settings(max_examples=30, deadline=None)
@given(
    frequency=st.sampled_from(["HOURLY", "MINUTELY", "SECONDLY"]),
    interval=st.integers(1, 1000),
    parts=st.fixed_dictionaries({}, optional={
        name: st.lists(st.integers(0 if name != "BYMONTHDAY" else 1, top), min_size=12, max_size=20, unique=True)
        for name, top in lists.items()
    }),
    second=st.integers(0, 86_399),
    place=st.sampled_from([None, 1, -1]),
)  # fmt: skip
def test_times_within_the_day_are_those_of_dateutil(frequency, interval, parts, second, place):
    start = datetime(2026, 1, 1) + timedelta(seconds=second)  # noqa: DTZ001 - dateutil's are without a zone
    said = [f"FREQ={frequency}", f"INTERVAL={interval}", *(f"BYSETPOS={place}" for _ in [0] if place)]
    rule = ";".join([*said, *(f"{name}={','.join(map(str, given))}" for name, given in parts.items())])
    first = start.strftime("DTSTART:%Y%m%dT%H%M%S")
    anchor = start.replace(tzinfo=UTC)

    theirs = first_of(lambda: rrulestr(f"{first}\nRRULE:{rule}"))
    ours = first_of(lambda: recurrence_from(f"{first} RRULE:{rule}", UTC_ZONE).after(anchor, anchor - A_DAY))

    assert ours == [time.replace(tzinfo=UTC) for time in theirs]
