"""Times of a recurrence rule as dateutil finds them, with an end to the search."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from dateutil.rrule import rrulestr


class _Enough(Exception):
    """As many periods were looked through as there are until the end."""


class _Counted(int):
    """An INTERVAL that can be added so often, and no more.

    dateutil looks at the end of a rule when it has found a time: for a 30th of February it goes through every day until
    the year 9999, within a single `next`. With each of those it adds INTERVAL.
    """

    left: int

    def __radd__(self, other: int) -> int:
        return other + self._spent()

    def __mul__(self, other: int) -> int:
        return self._spent() * other

    def _spent(self) -> int:
        if self.left <= 0:
            raise _Enough
        self.left -= 1
        return int(self)


@dataclass(frozen=True, kw_only=True)
class Calendar:
    rule: str  # DAILY or longer, without COUNT and UNTIL
    period: timedelta  # the shortest there is

    def check(self) -> None:
        """Raises ValueError, TypeError or KeyError for what dateutil cannot read."""
        rrulestr(self.rule, dtstart=datetime(2000, 1, 1))  # noqa: DTZ001 - times of the clock

    def after(self, start: datetime, until: datetime) -> Iterator[datetime]:
        """From start on, counted from there."""
        made: Any = rrulestr(self.rule, dtstart=start)
        interval = _Counted(made._interval)  # noqa: SLF001 - dateutil has no way to ask
        interval.left = (until - start) // (self.period * int(interval)) + 2
        return _to_the_end(made.replace(interval=interval, until=until))


def _to_the_end(made: Any) -> Iterator[datetime]:
    try:
        yield from made
    except _Enough:
        return
