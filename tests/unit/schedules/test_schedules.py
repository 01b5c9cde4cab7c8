"""When schedules come, in zones that put their clocks forward and back."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from itertools import islice
from zoneinfo import ZoneInfo

import pytest

from chordage.orchestrator.core.pulse import last_until
from chordage.orchestrator.gateways.schedules.times import cron_from, every_from, rule_from, zone_from

BERLIN, NEW_YORK, UTC_ZONE = ZoneInfo("Europe/Berlin"), ZoneInfo("America/New_York"), ZoneInfo("UTC")
FORWARD = {BERLIN: datetime(2026, 3, 28, 12, tzinfo=UTC), NEW_YORK: datetime(2026, 3, 7, 17, tzinfo=UTC)}
BACK = {BERLIN: datetime(2026, 10, 24, 12, tzinfo=UTC), NEW_YORK: datetime(2026, 10, 31, 17, tzinfo=UTC)}
both_zones = pytest.mark.parametrize("zone", [BERLIN, NEW_YORK], ids=str)
both_kinds = pytest.mark.parametrize("daily", [
    lambda zone: cron_from("30 2 * * *", zone),
    lambda zone: rule_from("FREQ=DAILY;BYHOUR=2;BYMINUTE=30;BYSECOND=0", zone),
], ids=["cron", "rrule"])  # fmt: skip
both_hourly = pytest.mark.parametrize("hourly", [
    lambda zone: cron_from("0 * * * *", zone),
    lambda zone: rule_from("FREQ=HOURLY", zone),
], ids=["cron", "rrule"])  # fmt: skip


def at(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


def coming(schedule, moment, number, anchor=None):
    return list(islice(schedule.after(anchor or moment, moment), number))


@both_zones
@both_kinds
def test_time_that_a_day_does_not_have_comes_once_behind_the_gap(daily, zone):
    found = [time.astimezone(zone) for time in coming(daily(zone), FORWARD[zone], 3)]

    assert [(time.day - found[0].day) for time in found] == [0, 1, 2]
    assert found[0].hour == 3  # 2:30 is not there; at once behind the gap, or by the offset before it
    assert [(time.hour, time.minute) for time in found[1:]] == [(2, 30), (2, 30)]


@both_zones
@both_kinds
def test_time_that_a_day_has_twice_comes_once_and_is_the_first(daily, zone):
    found = coming(daily(zone), BACK[zone], 3)
    hour = 2 if zone is BERLIN else 1
    schedule = cron_from(f"30 {hour} * * *", zone)
    twice = coming(schedule, BACK[zone], 2)

    assert len({time.astimezone(zone).date() for time in found}) == 3
    assert twice[0].astimezone(zone).fold == 0
    assert twice[0].astimezone(zone).date() + timedelta(days=1) == twice[1].astimezone(zone).date()


@pytest.mark.parametrize("hour", [1, 2])
@both_zones
def test_rule_evaluated_in_the_second_of_two_equal_hours_does_not_fire_again(zone, hour):
    midnight = BACK[zone].astimezone(zone).replace(hour=23)
    schedule = rule_from(f"FREQ=DAILY;BYHOUR={hour};BYMINUTE=30;BYSECOND=0", zone)
    first, second = coming(schedule, midnight, 2)

    for minutes in range(0, 120, 15):
        assert coming(schedule, first + timedelta(minutes=minutes), 1) == [second]


@both_zones
@both_hourly
@pytest.mark.parametrize("change", [FORWARD, BACK], ids=["forward", "back"])
def test_each_hour_comes_each_hour_whatever_the_clock_does(hourly, zone, change):
    found = coming(hourly(zone), change[zone], 30)

    assert {later - earlier for earlier, later in zip(found, found[1:], strict=False)} == {timedelta(hours=1)}


@both_zones
def test_minutes_go_through_the_hour_that_comes_twice_in_order(zone):
    found = coming(rule_from("FREQ=MINUTELY;INTERVAL=20", zone), BACK[zone], 100)

    assert {later - earlier for earlier, later in zip(found, found[1:], strict=False)} == {timedelta(minutes=20)}


def test_interval_is_counted_from_its_anchor_and_never_drifts():
    anchor = at("2026-01-01T00:00:10")

    assert coming(every_from("15m"), anchor, 2) == [anchor + timedelta(minutes=15), anchor + timedelta(minutes=30)]
    assert coming(every_from(60), at("2026-01-01T07:03:40"), 1, anchor) == [at("2026-01-01T07:04:10")]
    assert coming(every_from(60), anchor - timedelta(microseconds=1), 1, anchor) == [anchor]


@pytest.mark.parametrize(("given", "seconds"), [
    (300, 300), ("45", 45), ("15m", 900), ("2h", 7200), ("1d", 86400), ("1h 30m", 5400), ("90s", 90), ("5min", 300),
])  # fmt: skip
def test_spans_are_seconds_or_text(given, seconds):
    assert every_from(given).seconds == seconds


@pytest.mark.parametrize("given", [0, -5, "0", "soon", "", True, None, [1], "11y", "4000d", float("nan")])
def test_what_is_no_span_is_refused_with_advice(given):
    with pytest.raises(ValueError, match="15m"):
        every_from(given)


@pytest.mark.parametrize("given", ["* * * *", "61 * * * *", "0 0 30 2 *", "* * * * * *", "x", 5, None])
def test_what_is_no_cron_expression_is_refused_with_advice(given):
    with pytest.raises(ValueError, match="five fields"):
        cron_from(given, UTC_ZONE)


@pytest.mark.parametrize("given", [
    "FREQ=SOMETIMES", "INTERVAL=2", "FREQ=DAILY;COUNT=0", "FREQ=DAILY;COUNT=5;UNTIL=20270101", "FREQ=DAILY;BYHOUR=x",
    "FREQ=YEARLY;BYMONTH=2;BYMONTHDAY=30", "FREQ=SECONDLY;BYMONTH=2;BYMONTHDAY=30",
    "FREQ=HOURLY;INTERVAL=5;BYMONTH=2;BYMONTHDAY=30;BYHOUR=3", "every day", "", 7,
    "FREQ=DAILY;UNTIL=x",
    "DTSTART:20260101T000000 EXDATE:20260102T000000 RRULE:FREQ=DAILY", "FREQ=DAILY;INTERVAL=x", "FREQ=DAILY;INTERVAL=0",
    "DTSTART;TZID=Nowhere:20260101T000000 RRULE:FREQ=DAILY", "FREQ=DAILY;NEVER=1",
])  # fmt: skip
def test_what_is_no_recurrence_rule_is_refused(given):
    with pytest.raises(ValueError, match=r"\w"):
        rule_from(given, UTC_ZONE)


def test_unknown_zone_is_refused():
    with pytest.raises(ValueError, match="Europe/Berlin"):
        zone_from("Mars/Olympus")


def test_count_ends_a_rule():
    anchor = at("2026-01-01T00:00:00")
    rule = rule_from("FREQ=MINUTELY;COUNT=3", UTC_ZONE)

    assert coming(rule, anchor - timedelta(seconds=1), 9, anchor) == [anchor + timedelta(minutes=n) for n in range(3)]


def test_until_in_utc_is_read_on_the_clock_of_the_zone():
    rule = rule_from("DTSTART:20260101T090000\nRRULE:FREQ=DAILY;UNTIL=20260103T080000Z", BERLIN)

    assert [time.day for time in coming(rule, at("2025-12-31T00:00:00"), 9)] == [1, 2, 3]


def test_start_in_another_zone_is_read_there():
    rule = rule_from("DTSTART;TZID=America/New_York:20260101T090000 RRULE:FREQ=DAILY", BERLIN)

    assert coming(rule, at("2026-01-01T00:00:00"), 1) == [at("2026-01-01T14:00:00")]


def test_every_other_week_keeps_its_rhythm_years_later():
    rule = rule_from("DTSTART:20200106T090000 RRULE:FREQ=WEEKLY;INTERVAL=2;BYDAY=MO", UTC_ZONE)

    (found,) = coming(rule, at("2026-01-01T00:00:00"), 1)

    assert (found.date() - at("2020-01-06T00:00:00").date()).days % 14 == 0
    assert found.weekday() == 0


def test_minute_rule_that_is_years_old_is_found_at_once():
    rule = rule_from("DTSTART:20000101T000000 RRULE:FREQ=SECONDLY;INTERVAL=7", UTC_ZONE)
    began = time.process_time()

    assert coming(rule, at("2026-01-01T00:00:00"), 1)
    assert time.process_time() - began < 20, "a step for each of its times would take minutes"


@pytest.mark.parametrize("late", [timedelta(minutes=3, seconds=30), timedelta(hours=5), timedelta(days=90)])
def test_last_time_that_has_come_is_found_however_late(late):
    anchor = at("2026-01-01T00:00:00")
    now = anchor + late

    found = last_until(cron_from("* * * * *", UTC_ZONE), anchor, anchor, now)

    assert found == now.replace(second=0)


def test_last_time_of_a_rare_schedule_is_found_too():
    schedule = cron_from("0 0 29 2 *", UTC_ZONE)

    assert last_until(schedule, at("2020-01-01"), at("2020-02-29"), at("2026-01-01")) == at("2024-02-29")
