"""`rrule`: a recurrence rule of RFC 5545, with or without its DTSTART, read on the clock of a time zone.

Times of the clock are counted, then looked up in the zone. A time that a day does not have is read with the offset that
held before the gap, one that comes twice is the first of the two, as the standard has it. A rule that repeats within
the day (HOURLY, MINUTELY, SECONDLY) leaves out what does not exist, and goes through both of what comes twice.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import islice
from zoneinfo import ZoneInfo

from chordage.orchestrator.gateways.work.calendar_days import Calendar
from chordage.orchestrator.gateways.work.within_day import STEPS, WithinDay, within_day

_PERIODS = {
    "YEARLY": timedelta(days=365), "MONTHLY": timedelta(days=28), "WEEKLY": timedelta(weeks=1),
    "DAILY": timedelta(days=1),
}  # fmt: skip
_ALIKE = frozenset({"WEEKLY", "DAILY"})  # of one length each
_FREQUENCIES = frozenset({*_PERIODS, *STEPS})
_MOST = 100_000  # of COUNT: a rule with a count is counted from its start each time
_YEARS = range(1900, 2200)  # of a start: what lies between it and now may have to be counted through
_FAR = {"YEARLY": timedelta(days=366 * 50), "MONTHLY": timedelta(days=366 * 50)}
_NEAR = timedelta(days=366 * 10)
_MARGIN = timedelta(days=2)  # clocks differ by less
_LINE = re.compile(r"(?:RRULE:)?(?P<parts>[A-Z]+=[^:;\s]+(?:;[A-Z]+=[^:;\s]+)*);?", re.IGNORECASE)
_START = re.compile(r"DTSTART(?:;TZID=(?P<zone>[^:;\s]+))?:(?P<time>\d{8}(?:T\d{6}Z?)?)", re.IGNORECASE)
ADVICE = (
    'write it like "FREQ=WEEKLY;BYDAY=MO,TH;BYHOUR=9;BYMINUTE=0;BYSECOND=0", with a DTSTART line before it if need be'
)


@dataclass(frozen=True, kw_only=True)
class Recurrence:
    frequency: str
    interval: int
    count: int | None
    times: Calendar | WithinDay  # without COUNT and UNTIL
    until: datetime | None  # of the clock, without a zone
    start: datetime | None  # likewise
    zone: ZoneInfo

    def after(self, anchor: datetime, moment: datetime) -> Iterator[datetime]:
        last = moment.astimezone(UTC)
        for found in self._in_order(anchor, last):
            if found > last:
                yield found
                last = found

    def _in_order(self, anchor: datetime, moment: datetime) -> Iterator[datetime]:
        """Where the clock is put back, the second time of an hour comes behind all of the first."""
        held_back: list[datetime] = []
        for local in self._locals(anchor, moment):
            times = list(self._instants(local))
            if held_back and times and times[0] > held_back[0]:
                yield from sorted(held_back)
                held_back = []
            yield from times[:1]
            held_back += times[1:]
        yield from sorted(held_back)

    def _instants(self, local: datetime) -> Iterator[datetime]:
        first, second = (local.replace(tzinfo=self.zone, fold=fold).astimezone(UTC) for fold in (0, 1))
        exists = first.astimezone(self.zone).replace(tzinfo=None) == local
        if isinstance(self.times, Calendar):
            yield first
        elif exists:
            yield from sorted({first, second})

    def _locals(self, anchor: datetime, moment: datetime) -> Iterator[datetime]:
        start = self.start or anchor.astimezone(self.zone).replace(tzinfo=None, microsecond=0)
        wanted = max(start, moment.astimezone(self.zone).replace(tzinfo=None) - self._margin(moment))
        until = wanted + _FAR.get(self.frequency, _NEAR)  # a rule that names a day that never comes must end some time
        until = min(until, self.until) if self.until else until
        if self.count is not None:
            return islice(self._from(start, start, until), self.count)
        return self._from(start, wanted, until)

    def _margin(self, moment: datetime) -> timedelta:
        """How far the clock may be put back behind that moment: what it showed before comes again."""
        if isinstance(self.times, Calendar):
            return _MARGIN
        offsets = [
            (moment + timedelta(days=days)).astimezone(self.zone).utcoffset() or timedelta() for days in (0, 1, 2)
        ]
        return offsets[0] - min(offsets)

    def _from(self, start: datetime, wanted: datetime, until: datetime) -> Iterator[datetime]:
        if isinstance(self.times, WithinDay):
            return self.times.times(start, wanted, until)
        return self.times.after(self._nearer(start, wanted), until)

    def _nearer(self, start: datetime, wanted: datetime) -> datetime:
        """A start in the same rhythm, shortly before: years of days need not be counted through."""
        if self.frequency not in _ALIKE or wanted <= start:
            return start
        rhythm = _PERIODS[self.frequency] * self.interval
        return start + max(0, (wanted - start) // rhythm - 1) * rhythm

    @property
    def why_never(self) -> str | None:
        if isinstance(self.times, WithinDay) and not self.times.meets(self.start):
            if self.start is None:
                return "comes or not by when its file was first read: say with a DTSTART from when INTERVAL is counted"
            return "names no time that INTERVAL, counted from its DTSTART, ever reaches"
        anchor = datetime(2000, 1, 1, tzinfo=UTC)
        is_there = next(self.after(anchor, anchor - timedelta(days=366 * 100)), None) is not None
        return None if is_there else "names no time that ever comes"


def recurrence_from(value: object, zone: ZoneInfo) -> Recurrence:
    """Raises ValueError with what to do."""
    lines = value.split() if isinstance(value, str) else []
    start = _START.fullmatch(lines[0]) if len(lines) == len(("DTSTART", "RRULE")) else None
    rule = _LINE.fullmatch(lines[-1]) if lines else None
    if rule is None or (len(lines) > 1 and start is None):
        raise ValueError(f"{value!r} is no recurrence rule: {ADVICE}")
    parts = dict(part.split("=", 1) for part in rule["parts"].upper().split(";"))
    made = _made(parts, rule["parts"], start, zone)
    if (why := made.why_never) is not None:
        raise ValueError(f"{value!r} {why}; {ADVICE}")
    return made


def _made(parts: dict[str, str], written: str, start: re.Match[str] | None, zone: ZoneInfo) -> Recurrence:
    if (frequency := parts.get("FREQ", "")) not in _FREQUENCIES:
        raise ValueError(f"FREQ must be one of {', '.join(sorted(_FREQUENCIES))}; {ADVICE}")
    count = parts.pop("COUNT", None)
    if count is not None and not (count.isdecimal() and 1 <= int(count) <= _MOST):
        raise ValueError(f"COUNT must be 1 to {_MOST}, not {count}")
    if not (interval := parts.get("INTERVAL", "1")).isdecimal() or not 1 <= int(interval) <= _MOST:
        raise ValueError(f"INTERVAL must be 1 to {_MOST}, not {interval}")
    until = parts.pop("UNTIL", None)
    if until is not None and count is not None:
        raise ValueError("COUNT and UNTIL say both when it ends: keep one of them")
    try:
        times = _times(parts, int(interval))
        times.check()
    except (ValueError, TypeError, KeyError) as error:
        raise ValueError(f"{written!r}: {error}; {ADVICE}") from error
    return Recurrence(
        frequency=frequency, interval=int(interval), count=int(count) if count else None, times=times,
        until=_of_the_clock(until, zone) if until is not None else None, start=_start(start, zone), zone=zone,
    )  # fmt: skip


def _times(parts: dict[str, str], interval: int) -> Calendar | WithinDay:
    if parts["FREQ"] in STEPS:
        return within_day(parts, interval)
    rule = ";".join(f"{name}={given}" for name, given in parts.items())
    return Calendar(rule=rule, period=_PERIODS[parts["FREQ"]])


def _start(start: re.Match[str] | None, zone: ZoneInfo) -> datetime | None:
    first = _of_the_clock(start["time"].upper(), zone) if start else None
    if start and start["zone"]:
        first = _elsewhere(first, start["zone"], zone)
    if first is not None and first.year not in _YEARS:
        raise ValueError(f"DTSTART must lie in the years {_YEARS[0]} to {_YEARS[-1]}, not {first.year}")
    return first


def _of_the_clock(written: str, zone: ZoneInfo) -> datetime:
    for form in ("%Y%m%dT%H%M%SZ", "%Y%m%dT%H%M%S", "%Y%m%d"):
        try:
            found = datetime.strptime(written, form)  # noqa: DTZ007 - times of the clock
        except ValueError:
            continue
        is_utc = form.endswith("Z")
        try:
            return found.replace(tzinfo=UTC).astimezone(zone).replace(tzinfo=None) if is_utc else found
        except OverflowError:
            raise ValueError(f"{written!r} is beyond all times: leave it out, or write an earlier one") from None
    raise ValueError(f"{written!r} is no time: write it like 20260301T090000")


def _elsewhere(first: datetime | None, name: str, zone: ZoneInfo) -> datetime | None:
    from chordage.orchestrator.gateways.work.zones import zone_from

    return first and first.replace(tzinfo=zone_from(name)).astimezone(zone).replace(tzinfo=None)
