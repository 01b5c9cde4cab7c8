"""Schedules in words; what has none is shown as it is written."""

from __future__ import annotations

from zoneinfo import ZoneInfo

import pytest

from chordage.orchestrator.gateways.schedules.times import cron_from, every_from, rule_from
from chordage.orchestrator.gateways.schedules.words import in_words

UTC = ZoneInfo("UTC")
BERLIN = ZoneInfo("Europe/Berlin")


@pytest.mark.parametrize(
    ("cron", "words"),
    [
        ("0 9 * * 1-5", "every weekday at 09:00"),
        ("0 9 * * MON-FRI", "every weekday at 09:00"),
        ("30 7 * * *", "every day at 07:30"),
        ("30 7,19 * * *", "every day at 07:30 and 19:30"),
        ("0 6 * * 1,4", "every Monday and Thursday at 06:00"),
        ("0 6 * * 0", "every Sunday at 06:00"),
        ("0 6 * * 7", "every Sunday at 06:00"),
        ("0 6 * * 6,sun", "every Saturday and Sunday at 06:00"),
        ("0 3 1 * *", "on day 1 of every month at 03:00"),
        ("*/15 * * * *", "every 15 minutes"),
        ("*/1 * * * *", "every minute"),
        ("* * * * *", "every minute"),
        ("5 * * * *", "every hour at minute 5"),
        ("*/7 * * * *", None),
        ("0 9 * 6 *", None),
        ("0 9 1 * 1", None),
        ("0 9-17 * * *", None),
        ("0 9 * * 1#2", None),
        ("0 9 * * 5-7", "every Friday, Saturday and Sunday at 09:00"),
        ("0 9 * * 0-4", None),
        ("0 9 L * *", None),
    ],
)
def test_cron_in_words(cron, words):
    assert in_words(cron_from(cron, UTC)) == words


def test_a_zone_is_named_where_the_clock_counts():
    assert in_words(cron_from("0 9 * * 1-5", BERLIN)) == "every weekday at 09:00 (Europe/Berlin)"
    assert in_words(cron_from("*/15 * * * *", BERLIN)) == "every 15 minutes"


@pytest.mark.parametrize(
    ("span", "words"),
    [("1h", "every hour"), ("15m", "every 15 minutes"), ("1h 30m", "every 1 hour 30 minutes"), ("2d", "every 2 days"),
     (1.5, None)],
)  # fmt: skip
def test_spans_in_words(span, words):
    assert in_words(every_from(span)) == words


@pytest.mark.parametrize(
    ("rule", "words"),
    [
        ("FREQ=WEEKLY;BYDAY=MO,TH;BYHOUR=9;BYMINUTE=0;BYSECOND=0", "every Monday and Thursday at 09:00"),
        ("FREQ=DAILY;BYHOUR=9;BYMINUTE=5;BYSECOND=0", "every day at 09:05"),
        ("FREQ=MONTHLY;BYMONTHDAY=1;BYHOUR=3;BYMINUTE=0;BYSECOND=0", "on day 1 of every month at 03:00"),
        ("FREQ=HOURLY;INTERVAL=2", "every 2 hours"),
        ("FREQ=WEEKLY;INTERVAL=2;BYDAY=MO;BYHOUR=9;BYMINUTE=0", None),
        ("FREQ=MONTHLY;BYDAY=1MO;BYHOUR=9;BYMINUTE=0", None),
        ("FREQ=DAILY;COUNT=3;BYHOUR=9;BYMINUTE=0", None),
        ("FREQ=DAILY", None),
    ],
)
def test_rules_in_words(rule, words):
    assert in_words(rule_from(rule, UTC)) == words
