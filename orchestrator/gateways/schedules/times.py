"""When scheduled work is due: `every` (a span), `cron` (five fields) or `rrule` (a recurrence rule of RFC 5545).

A span is real time, counted from when the schedule was first read. `cron` and rules of days and longer follow the clock
of a time zone. Of a time that a day does not have, because clocks go forward over it, cron makes the end of the gap and
a rule the time with the offset that held before it. A time that a day has twice comes once, the first time. What
repeats within the day (a cron minute or hour that starts with `*`, FREQ=HOURLY and shorter) runs in real time.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import count, islice
from typing import Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from cronsim import CronSim, CronSimError
from dateutil.rrule import rrulestr

from chordage.orchestrator.core.pulse import Schedule

LONGEST = timedelta(days=3660)
_UNITS = {"d": 86_400, "h": 3_600, "m": 60, "s": 1}
_SPAN = re.compile(r"(?:(\d+)\s*d)?\s*(?:(\d+)\s*h)?\s*(?:(\d+)\s*m(?:in)?)?\s*(?:(\d+)\s*s)?")
SPAN_ADVICE = 'give seconds, or a span such as "15m", "2h", "1d" or "1h 30m", of at least 1 second and at most 10 years'

CRON_ADVICE = 'give five fields: minute, hour, day of month, month, day of week, such as "30 7 * * 1-5"'

_WITHIN_DAY = {"HOURLY": timedelta(hours=1), "MINUTELY": timedelta(minutes=1), "SECONDLY": timedelta(seconds=1)}
_PERIODS = {
    "YEARLY": timedelta(days=365), "MONTHLY": timedelta(days=28), "WEEKLY": timedelta(weeks=1),
    "DAILY": timedelta(days=1),
}  # fmt: skip
_SAME_LENGTH = frozenset({"WEEKLY", "DAILY"})  # each period lasts as long as the next
_MOST = 100_000  # of COUNT and INTERVAL: a rule with a count is counted from its start each time
_YEARS = range(1900, 2200)  # of a start: the time between it and now may have to be counted through
_FAR = {"YEARLY": timedelta(days=366 * 50), "MONTHLY": timedelta(days=366 * 50)}
_NEAR = timedelta(days=366 * 10)
_MARGIN = timedelta(days=2)  # clocks differ by less
_RULE = re.compile(r"(?:RRULE:)?(?P<parts>[A-Z]+=[^:;\s]+(?:;[A-Z]+=[^:;\s]+)*);?", re.IGNORECASE)
_START = re.compile(r"DTSTART(?:;TZID=(?P<zone>[^:;\s]+))?:(?P<time>\d{8}(?:T\d{6}Z?)?)", re.IGNORECASE)
RULE_ADVICE = (
    'write it like "FREQ=WEEKLY;BYDAY=MO,TH;BYHOUR=9;BYMINUTE=0;BYSECOND=0", with a DTSTART line before it if need be'
)


def zone_from(name: object) -> ZoneInfo:
    """Raises ValueError with what to do."""
    try:
        return ZoneInfo(name if isinstance(name, str) else "")
    except (ZoneInfoNotFoundError, ValueError, OSError) as error:
        raise ValueError(f"there is no time zone {name!r}: write it like Europe/Berlin, or UTC") from error


@dataclass(frozen=True, kw_only=True, slots=True)
class Every:
    seconds: float

    def after(self, anchor: datetime, moment: datetime) -> Iterator[datetime]:
        return (time for _number, time in _steps(anchor, timedelta(seconds=self.seconds), moment))


def _steps(start: datetime, step: timedelta, moment: datetime) -> Iterator[tuple[int, datetime]]:
    """Behind that moment, each with its number."""
    return ((number, start + number * step) for number in count(max(0, (moment - start) // step + 1)))


def every_from(value: object) -> Every:
    """Raises ValueError with what to do."""
    seconds = _seconds(value)
    if not 1 <= seconds <= LONGEST.total_seconds():
        raise ValueError(f"{value!r} is no span to repeat after: {SPAN_ADVICE}")
    return Every(seconds=seconds)


def _seconds(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return 0
    if isinstance(value, int | float) or value.strip().isdecimal():
        return float(value)
    span = _SPAN.fullmatch(value.strip().lower())
    numbers = span.groups() if span else ()
    return float(sum(int(number) * size for number, size in zip(numbers, _UNITS.values(), strict=False) if number))


@dataclass(frozen=True, kw_only=True, slots=True)
class Cron:
    expression: str
    zone: ZoneInfo

    def after(self, anchor: datetime, moment: datetime) -> Iterator[datetime]:  # noqa: ARG002 - the clock alone decides
        # The search starts hours earlier: a time that is moved out of a gap may lie later than its place in the order.
        last = moment.astimezone(UTC)
        for local in CronSim(self.expression, (last - timedelta(hours=3)).astimezone(self.zone)):
            time = local.astimezone(UTC)
            if time > last:
                yield time
                last = time


def cron_from(value: object, zone: ZoneInfo) -> Cron:
    """Raises ValueError with what to do."""
    if not isinstance(value, str) or len(value.split()) != len("mhdMw"):
        raise ValueError(f"{value!r} is no cron expression: {CRON_ADVICE}")
    try:
        CronSim(value, datetime(2000, 1, 1, tzinfo=UTC))
    except CronSimError as error:
        raise ValueError(f"{value!r}: {str(error).lower()}; {CRON_ADVICE}") from error
    return Cron(expression=value, zone=zone)


@dataclass(frozen=True, kw_only=True, slots=True)
class Steps:
    """A rule that repeats within the day."""

    step: timedelta
    count: int | None
    until: datetime | None
    start: datetime | None

    def after(self, anchor: datetime, moment: datetime) -> Iterator[datetime]:
        start = self.start or anchor.replace(microsecond=0)
        for number, time in _steps(start, self.step, moment):
            if (self.count is not None and number >= self.count) or (self.until is not None and time > self.until):
                return
            yield time


@dataclass(frozen=True, kw_only=True, slots=True)
class CalendarRule:
    """A rule of days, weeks, months or years. Its times are those of a clock, and then looked up in the zone."""

    rule: str  # without COUNT and UNTIL
    frequency: str
    interval: int
    count: int | None
    until: datetime | None  # of the clock, without a zone
    start: datetime | None  # likewise
    zone: ZoneInfo

    def after(self, anchor: datetime, moment: datetime) -> Iterator[datetime]:
        last = moment.astimezone(UTC)
        for local in self._locals(anchor, moment):
            time = local.replace(tzinfo=self.zone).astimezone(UTC)
            if time > last:
                yield time
                last = time

    def _locals(self, anchor: datetime, moment: datetime) -> Iterator[datetime]:
        start = self.start or anchor.astimezone(self.zone).replace(tzinfo=None, microsecond=0)
        wanted = max(start, moment.astimezone(self.zone).replace(tzinfo=None) - _MARGIN)
        until = wanted + _FAR.get(self.frequency, _NEAR)  # the end of the search for a day that never comes
        until = min(until, self.until) if self.until else until
        if self.count is not None:
            return islice(self._from(start, until), self.count)
        return self._from(self._nearer(start, wanted), until)

    def _nearer(self, start: datetime, wanted: datetime) -> datetime:
        """A start in the same rhythm, shortly before: years of days need not be counted through."""
        if self.frequency not in _SAME_LENGTH or wanted <= start:
            return start
        rhythm = _PERIODS[self.frequency] * self.interval
        return start + max(0, (wanted - start) // rhythm - 1) * rhythm

    def _from(self, start: datetime, until: datetime) -> Iterator[datetime]:
        rule: Any = rrulestr(self.rule, dtstart=start)
        interval = _LimitedInterval(self.interval)
        interval.left = (until - start) // (_PERIODS[self.frequency] * self.interval) + 2
        try:
            yield from rule.replace(interval=interval, until=until)
        except _EndOfSearch:
            return


class _EndOfSearch(Exception):
    """As many periods were looked through as there are until the end."""


class _LimitedInterval(int):
    """An INTERVAL that can be added so often, and no more.

    dateutil looks at the end of a rule when it has a time: for a 30th of February it goes through every day until the
    year 9999, within a single `next`. With each of those it adds INTERVAL.
    """

    left: int

    def __radd__(self, other: int) -> int:
        return other + self._spend()

    def __mul__(self, other: int) -> int:
        return self._spend() * other

    def _spend(self) -> int:
        if self.left <= 0:
            raise _EndOfSearch
        self.left -= 1
        return int(self)


def rule_from(value: object, zone: ZoneInfo) -> Steps | CalendarRule:
    """Raises ValueError with what to do."""
    lines = value.split() if isinstance(value, str) else []
    start = _START.fullmatch(lines[0]) if len(lines) == len(("DTSTART", "RRULE")) else None
    written = _RULE.fullmatch(lines[-1]) if lines else None
    if written is None or (len(lines) > 1 and start is None):
        raise ValueError(f"{value!r} is no recurrence rule: {RULE_ADVICE}")
    rule = _rule(written["parts"], start, zone)
    if not _ever_comes(rule):
        raise ValueError(f"{value!r} names no time that ever comes; {RULE_ADVICE}")
    return rule


def _ever_comes(rule: Schedule) -> bool:
    anchor = datetime(2000, 1, 1, tzinfo=UTC)
    return next(rule.after(anchor, anchor - timedelta(days=366 * 100)), None) is not None


def _rule(written: str, start: re.Match[str] | None, zone: ZoneInfo) -> Steps | CalendarRule:
    parts = dict(part.split("=", 1) for part in written.upper().split(";"))
    frequency, interval = parts.get("FREQ", ""), parts.get("INTERVAL", "1")
    if frequency not in _PERIODS and frequency not in _WITHIN_DAY:
        raise ValueError(f"FREQ must be one of {', '.join(sorted([*_PERIODS, *_WITHIN_DAY]))}; {RULE_ADVICE}")
    number, until = parts.pop("COUNT", None), parts.pop("UNTIL", None)
    if number is not None and not (number.isdecimal() and 1 <= int(number) <= _MOST):
        raise ValueError(f"COUNT must be 1 to {_MOST}, not {number}")
    if not interval.isdecimal() or not 1 <= int(interval) <= _MOST:
        raise ValueError(f"INTERVAL must be 1 to {_MOST}, not {interval}")
    if until is not None and number is not None:
        raise ValueError("COUNT and UNTIL say both when it ends: keep one of them")
    first, last = _start(start, zone), _clock_time(until, zone) if until is not None else None
    times = int(number) if number else None
    if frequency in _WITHIN_DAY:
        if others := sorted(parts.keys() - {"FREQ", "INTERVAL"}):
            raise ValueError(f"FREQ={frequency} takes INTERVAL, COUNT and UNTIL, not {', '.join(others)}: use cron")
        step = _WITHIN_DAY[frequency] * int(interval)
        return Steps(step=step, count=times, until=_instant(last, zone), start=_instant(first, zone))
    rule = ";".join(f"{name}={value}" for name, value in parts.items())
    try:
        rrulestr(rule, dtstart=datetime(2000, 1, 1))  # noqa: DTZ001 - times of a clock
    except (ValueError, TypeError, KeyError) as error:
        raise ValueError(f"{written!r}: {error}; {RULE_ADVICE}") from error
    return CalendarRule(
        rule=rule, frequency=frequency, interval=int(interval), count=times, until=last, start=first, zone=zone
    )


def _start(start: re.Match[str] | None, zone: ZoneInfo) -> datetime | None:
    if start is None:
        return None
    first = _clock_time(start["time"].upper(), zone)
    if start["zone"]:
        first = first.replace(tzinfo=zone_from(start["zone"])).astimezone(zone).replace(tzinfo=None)
    if first.year not in _YEARS:
        raise ValueError(f"DTSTART must lie in the years {_YEARS[0]} to {_YEARS[-1]}, not {first.year}")
    return first


def _clock_time(written: str, zone: ZoneInfo) -> datetime:
    for form in ("%Y%m%dT%H%M%SZ", "%Y%m%dT%H%M%S", "%Y%m%d"):
        try:
            time = datetime.strptime(written, form)  # noqa: DTZ007 - times of a clock
        except ValueError:
            continue
        is_utc = form.endswith("Z")
        try:
            instant = time.replace(tzinfo=UTC if is_utc else zone).astimezone(UTC)
            return instant.astimezone(zone).replace(tzinfo=None) if is_utc else time
        except OverflowError:
            raise ValueError(f"{written!r} is beyond all times: leave it out, or write an earlier one") from None
    raise ValueError(f"{written!r} is no time: write it like 20260301T090000")


def _instant(local: datetime | None, zone: ZoneInfo) -> datetime | None:
    return local and local.replace(tzinfo=zone).astimezone(UTC)
