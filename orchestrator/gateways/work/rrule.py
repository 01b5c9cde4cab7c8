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
from functools import cached_property
from itertools import islice
from typing import Any
from zoneinfo import ZoneInfo

from dateutil.rrule import rrule, rrulestr

_UNIT = {
    "WEEKLY": timedelta(weeks=1), "DAILY": timedelta(days=1), "HOURLY": timedelta(hours=1),
    "MINUTELY": timedelta(minutes=1), "SECONDLY": timedelta(seconds=1),
}  # fmt: skip
_WITHIN_A_DAY = frozenset({"HOURLY", "MINUTELY", "SECONDLY"})
_FREQUENCIES = frozenset({*_UNIT, "MONTHLY", "YEARLY"})
_OF_THE_TIME = frozenset({"FREQ", "INTERVAL", "UNTIL", "BYHOUR", "BYMINUTE", "BYSECOND", "BYSETPOS"})
_MOST = 100_000  # of COUNT: a rule with a count is counted from its start each time
_FAR = {"YEARLY": timedelta(days=366 * 50), "MONTHLY": timedelta(days=366 * 50)}
_NEAR = timedelta(days=366 * 10)
_NEXT = timedelta(days=400)  # within the day: each day that is passed over costs milliseconds
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
    rule: str  # without COUNT
    start: datetime | None  # of the clock, without a zone
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
        if self.frequency not in _WITHIN_A_DAY:
            yield first
        elif exists:
            yield from sorted({first, second})

    def _locals(self, anchor: datetime, moment: datetime) -> Iterator[datetime]:
        start = self.start or anchor.astimezone(self.zone).replace(tzinfo=None, microsecond=0)
        wanted = moment.astimezone(self.zone).replace(tzinfo=None) - _MARGIN
        if self.count is not None:
            return islice(self._from(start, max(start, wanted)), self.count)
        return self._from(self._nearer(start, wanted), max(start, wanted))

    def _from(self, start: datetime, looked_from: datetime) -> Iterator[datetime]:
        """A rule that names a day that never comes must end some time."""
        until = looked_from + _FAR.get(self.frequency, _NEXT if self.frequency in _WITHIN_A_DAY else _NEAR)
        made: Any = rrulestr(self.rule, dtstart=start)
        own = made._until  # noqa: SLF001 - dateutil has no way to ask
        return iter(made.replace(until=min(own, until) if own else until))

    def _nearer(self, start: datetime, wanted: datetime) -> datetime:
        """A start in the same rhythm, shortly before: years of minutes need not be counted through."""
        unit = _UNIT.get(self.frequency)
        if unit is None or wanted <= start:
            return start
        rhythm = unit * self.interval
        return start + max(0, (wanted - start) // rhythm - 1) * rhythm

    @cached_property
    def never(self) -> bool:
        if self.frequency in _WITHIN_A_DAY and not self._names_a_day:
            return True  # to go through its seconds would take as many
        anchor = datetime(2000, 1, 1, tzinfo=UTC)
        return next(self.after(anchor, anchor - timedelta(days=366 * 100)), None) is None

    @property
    def _names_a_day(self) -> bool:
        kept = [part for part in self.rule.split(";") if part.partition("=")[0] not in _OF_THE_TIME]
        days: Any = rrulestr(";".join(["FREQ=YEARLY", *kept]), dtstart=datetime(2000, 1, 1))  # noqa: DTZ001 - as above
        return next(iter(days.replace(until=datetime(2000, 1, 1) + _NEAR)), None) is not None  # noqa: DTZ001


def recurrence_from(value: object, zone: ZoneInfo) -> Recurrence:
    """Raises ValueError with what to do."""
    lines = value.split() if isinstance(value, str) else []
    start = _START.fullmatch(lines[0]) if len(lines) == len(("DTSTART", "RRULE")) else None
    rule = _LINE.fullmatch(lines[-1]) if lines else None
    if rule is None or (len(lines) > 1 and start is None):
        raise ValueError(f"{value!r} is no recurrence rule: {ADVICE}")
    parts = dict(part.split("=", 1) for part in rule["parts"].upper().split(";"))
    made = _made(parts, rule["parts"], start, zone)
    if made.never:
        raise ValueError(f"{value!r} names no time that ever comes: {ADVICE}")
    return made


def _made(parts: dict[str, str], written: str, start: re.Match[str] | None, zone: ZoneInfo) -> Recurrence:
    if (frequency := parts.get("FREQ", "")) not in _FREQUENCIES:
        raise ValueError(f"FREQ must be one of {', '.join(sorted(_FREQUENCIES))}; {ADVICE}")
    count = parts.pop("COUNT", None)
    if count is not None and not (count.isdecimal() and 1 <= int(count) <= _MOST):
        raise ValueError(f"COUNT must be 1 to {_MOST}, not {count}")
    if not (interval := parts.get("INTERVAL", "1")).isdecimal() or not 1 <= int(interval) <= _MOST:
        raise ValueError(f"INTERVAL must be 1 to {_MOST}, not {interval}")
    if "UNTIL" in parts:
        if count is not None:
            raise ValueError("COUNT and UNTIL say both when it ends: keep one of them")
        parts["UNTIL"] = _of_the_clock(parts["UNTIL"], zone).strftime("%Y%m%dT%H%M%S")
    rule = ";".join(f"{name}={given}" for name, given in parts.items())
    first = _of_the_clock(start["time"].upper(), zone) if start else None
    if start and start["zone"]:
        first = _elsewhere(first, start["zone"], zone)
    try:
        made = rrulestr(rule, dtstart=datetime(2000, 1, 1))  # noqa: DTZ001 - times of the clock
    except (ValueError, TypeError, KeyError) as error:
        raise ValueError(f"{written!r}: {error}; {ADVICE}") from error
    assert isinstance(made, rrule)
    return Recurrence(
        frequency=frequency, interval=int(interval), count=int(count) if count else None, rule=rule,
        start=first, zone=zone,
    )  # fmt: skip


def _of_the_clock(written: str, zone: ZoneInfo) -> datetime:
    for form in ("%Y%m%dT%H%M%SZ", "%Y%m%dT%H%M%S", "%Y%m%d"):
        try:
            found = datetime.strptime(written, form)  # noqa: DTZ007 - times of the clock
        except ValueError:
            continue
        is_utc = form.endswith("Z")
        return found.replace(tzinfo=UTC).astimezone(zone).replace(tzinfo=None) if is_utc else found
    raise ValueError(f"{written!r} is no time: write it like 20260301T090000")


def _elsewhere(first: datetime | None, name: str, zone: ZoneInfo) -> datetime | None:
    from chordage.orchestrator.gateways.work.zones import zone_from

    return first and first.replace(tzinfo=zone_from(name)).astimezone(zone).replace(tzinfo=None)
