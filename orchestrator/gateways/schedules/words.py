"""Schedules in words, where they are of a common form: "every weekday at 09:00"."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from zoneinfo import ZoneInfo

from chordage.orchestrator.core.pulse import Schedule
from chordage.orchestrator.gateways.schedules.times import CalendarRule, Cron, Every, Steps

_DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
_OF_CRON = {"SUN": 7, **{day[:3].upper(): number for number, day in enumerate(_DAYS, 1)}}
_OF_RULE = {day[:2].upper(): number for number, day in enumerate(_DAYS, 1)}
_UNITS = ((86_400, "day"), (3_600, "hour"), (60, "minute"), (1, "second"))


def in_words(schedule: Schedule) -> str | None:
    """None: there are none for it, and what is written in the file has to do."""
    match schedule:
        case Every(seconds=seconds):
            return _every(seconds)
        case Cron(expression=expression, zone=zone):
            return _in_zone(_of_cron(expression), zone)
        case Steps(step=step, count=None, until=None):
            return _every(step.total_seconds())
        case CalendarRule(count=None, until=None, interval=1, zone=zone):
            return _in_zone(_of_rule(schedule), zone)
    return None


def _every(seconds: float) -> str | None:
    if seconds != int(seconds):
        return None
    parts, rest = [], int(seconds)
    for size, unit in _UNITS:
        number, rest = divmod(rest, size)
        if number:
            parts.append((number, unit))
    if len(parts) == 1 and parts[0][0] == 1:
        return f"every {parts[0][1]}"
    return "every " + " ".join(f"{number} {unit}{'' if number == 1 else 's'}" for number, unit in parts)


def _in_zone(words: str | None, zone: ZoneInfo) -> str | None:
    """Times within the hour are the same in nearly all zones."""
    is_of_clock = words is not None and " at " in words
    return words if words is None or zone.key == "UTC" or not is_of_clock else f"{words} ({zone.key})"


def _of_cron(expression: str) -> str | None:
    minute, hour, day, month, weekday = expression.split()
    if month != "*":
        return None
    if (hour, day, weekday) == ("*", "*", "*"):
        return _within_hour(minute)
    times = _times(minute, hour)
    if times is None:
        return None
    if day == "*":
        days = _weekdays(weekday)
        return days and f"{days} at {times}"
    if weekday == "*" and day.isdecimal():
        return f"on day {int(day)} of every month at {times}"
    return None


def _within_hour(minute: str) -> str | None:
    if minute == "*":
        return "every minute"
    if minute.startswith("*/") and minute[2:].isdecimal() and 60 % int(minute[2:] or 0) == 0:
        return _every(timedelta(minutes=int(minute[2:])).total_seconds())
    return f"every hour at minute {int(minute)}" if minute.isdecimal() else None


def _times(minute: str, hour: str) -> str | None:
    hours = hour.split(",")
    if not minute.isdecimal() or not all(one.isdecimal() for one in hours):
        return None
    return _listed([f"{int(one):02}:{int(minute):02}" for one in hours])


def _weekdays(field: str) -> str | None:
    if field == "*":
        return "every day"
    numbers: set[int] = set()
    for part in field.split(","):
        first, _, last = part.partition("-")
        ends = [_cron_day(first), _cron_day(last or first)]
        if ends[0] is None or ends[1] is None or ends[0] > ends[1]:
            return None
        numbers.update(range(ends[0], ends[1] + 1))
    return _named(numbers)


def _cron_day(word: str) -> int | None:
    if word.isdecimal():
        return int(word) or 7 if int(word) <= 7 else None
    return _OF_CRON.get(word.upper())


def _named(numbers: set[int]) -> str:
    match sorted(numbers):
        case [1, 2, 3, 4, 5, 6, 7]:
            return "every day"
        case [1, 2, 3, 4, 5]:
            return "every weekday"
        case some:
            return "every " + _listed([_DAYS[number - 1] for number in some])


def _of_rule(rule: CalendarRule) -> str | None:
    parts = dict(part.split("=", 1) for part in rule.rule.split(";"))
    if parts.pop("BYSECOND", "0") != "0" or not {"BYHOUR", "BYMINUTE"} <= parts.keys():
        return None
    times = _times(parts.pop("BYMINUTE"), parts.pop("BYHOUR"))
    days, number = parts.pop("BYDAY", None), parts.pop("BYMONTHDAY", None)
    if times is None or parts.keys() - {"FREQ", "INTERVAL"}:
        return None
    match rule.frequency, days, number:
        case "DAILY", None, None:
            return f"every day at {times}"
        case "WEEKLY" | "DAILY", str(), None if all(day in _OF_RULE for day in days.split(",")):
            return f"{_named({_OF_RULE[day] for day in days.split(',')})} at {times}"
        case "MONTHLY", None, str() if number.isdecimal():
            return f"on day {int(number)} of every month at {times}"
    return None


def _listed(words: Sequence[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"
