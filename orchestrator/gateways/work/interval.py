"""`every`: a span of real time, counted from when the schedule was first seen."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta

LONGEST = timedelta(days=3660)
_UNITS = {"d": 86_400, "h": 3_600, "m": 60, "s": 1}
_WORDS = re.compile(r"(?:(\d+)\s*d)?\s*(?:(\d+)\s*h)?\s*(?:(\d+)\s*m(?:in)?)?\s*(?:(\d+)\s*s)?")
ADVICE = 'give seconds, or a span such as "15m", "2h", "1d" or "1h 30m", of at least 1 second and at most 10 years'


@dataclass(frozen=True, kw_only=True, slots=True)
class Every:
    seconds: float

    def after(self, anchor: datetime, moment: datetime) -> Iterator[datetime]:
        span = timedelta(seconds=self.seconds)
        number = max(0, (moment - anchor) // span + 1)
        while True:
            yield anchor + number * span
            number += 1


def every_from(value: object) -> Every:
    """Raises ValueError with what to do."""
    seconds = _seconds(value)
    if not 1 <= seconds <= LONGEST.total_seconds():
        raise ValueError(f"{value!r} is no span to repeat after: {ADVICE}")
    return Every(seconds=seconds)


def _seconds(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return 0
    if isinstance(value, int | float):
        return float(value)
    if value.strip().isdecimal():
        return float(value)
    found = _WORDS.fullmatch(value.strip().lower())
    if found is None:
        return 0
    return float(
        sum(int(number) * size for number, size in zip(found.groups(), _UNITS.values(), strict=True) if number)
    )
