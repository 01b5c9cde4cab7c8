"""A rule that repeats within the day (HOURLY, MINUTELY, SECONDLY): its times are computed, not tried one by one.

The calendar gives the days. Within each, INTERVAL reaches some of its hours, minutes or seconds, and BYHOUR, BYMINUTE
and BYSECOND let some through: a day costs the smaller number of the two, and whether both ever meet is plain before.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, time, timedelta
from functools import cached_property
from itertools import product
from math import gcd

from chordage.orchestrator.gateways.work.calendar_days import Calendar

STEPS = {"HOURLY": 3600, "MINUTELY": 60, "SECONDLY": 1}  # seconds
_CLOCK = {"BYHOUR": (24, 3600), "BYMINUTE": (60, 60), "BYSECOND": (60, 1)}
OF_THE_TIME = frozenset({"FREQ", "INTERVAL", "UNTIL", "BYSETPOS", *_CLOCK})
_DAY = 86_400
_MOST = 500  # of BYSETPOS


@dataclass(frozen=True, kw_only=True)
class WithinDay:
    step: int  # seconds of one hour, minute or second
    interval: int
    days: Calendar
    clock: Mapping[str, tuple[int, ...]]  # what is said of BYHOUR, BYMINUTE and BYSECOND
    positions: tuple[int, ...]  # BYSETPOS

    def check(self) -> None:
        self.days.check()

    def times(self, start: datetime, since: datetime, until: datetime) -> Iterator[datetime]:
        """Of the clock, from the later of start and `since` on."""
        begin = max(start, since)
        if not (ends := self._ends(start)):
            return
        midnight = datetime.combine(begin.date(), time.min)
        for day in self.days.after(midnight, until):
            for unit in self._reached(start, day):
                for end in ends:
                    found = day + timedelta(seconds=unit * self.step + end)
                    if found > until:
                        return
                    if found >= begin:
                        yield found

    def meets(self, start: datetime | None) -> bool:
        """Whether INTERVAL, counted from that start, ever reaches what is let through; without one, from any."""
        apart = gcd(self.interval, self._units)
        let_through = {unit % apart for unit in self._let_through} if apart > 1 else {0}
        return len(let_through) == apart if start is None else self._number(start) % apart in let_through

    def _reached(self, start: datetime, day: datetime) -> Iterator[int]:
        first = (self._number(start) - self._number(day)) % self.interval
        reached = range(first, self._units, self.interval)
        if len(reached) < len(self._let_through):
            return (unit for unit in reached if unit in self._is_let_through)
        return (unit for unit in self._let_through if unit in reached)

    def _number(self, moment: datetime) -> int:
        seconds = moment.hour * 3600 + moment.minute * 60 + moment.second
        return moment.toordinal() * self._units + seconds // self.step

    @property
    def _units(self) -> int:
        return _DAY // self.step

    @cached_property
    def _let_through(self) -> Sequence[int]:
        coarse = [name for name, (_, seconds) in _CLOCK.items() if seconds >= self.step]
        if not any(name in self.clock for name in coarse):
            return range(self._units)
        every = [self.clock.get(name, range(_CLOCK[name][0])) for name in coarse]
        weights = [_CLOCK[name][1] // self.step for name in coarse]
        return [sum(part * weight for part, weight in zip(one, weights, strict=True)) for one in product(*every)]

    @cached_property
    def _is_let_through(self) -> range | frozenset[int]:
        return self._let_through if isinstance(self._let_through, range) else frozenset(self._let_through)

    def _ends(self, start: datetime) -> list[int]:
        """The seconds within an hour or a minute; what is not said is that of the start."""
        minutes = self.clock.get("BYMINUTE", (start.minute,)) if self.step == STEPS["HOURLY"] else (0,)
        seconds = self.clock.get("BYSECOND", (start.second,)) if self.step >= STEPS["MINUTELY"] else (0,)
        ends = [minute * 60 + second for minute, second in product(minutes, seconds)]
        if not self.positions:
            return ends
        places = {place - 1 if place > 0 else place + len(ends) for place in self.positions}
        return [end for place, end in enumerate(ends) if place in places]


def within_day(parts: Mapping[str, str], interval: int) -> WithinDay:
    """Raises ValueError."""
    kept = [f"{name}={given}" for name, given in parts.items() if name not in OF_THE_TIME]
    return WithinDay(
        step=STEPS[parts["FREQ"]],
        interval=interval,
        days=Calendar(rule=";".join(["FREQ=DAILY;BYHOUR=0;BYMINUTE=0;BYSECOND=0", *kept]), period=timedelta(days=1)),
        clock={name: _numbers(name, parts[name], 0, top - 1) for name, (top, _) in _CLOCK.items() if name in parts},
        positions=_numbers("BYSETPOS", parts["BYSETPOS"], -_MOST, _MOST) if "BYSETPOS" in parts else (),
    )


def _numbers(name: str, given: str, low: int, high: int) -> tuple[int, ...]:
    try:
        numbers = sorted({int(each) for each in given.split(",")})
    except ValueError:
        numbers = []
    if not numbers or numbers[0] < low or numbers[-1] > high:
        raise ValueError(f"{name} must be numbers from {low} to {high} with commas between them, not {given}")
    return tuple(numbers)
