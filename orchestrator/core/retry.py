"""When to try again: exponential backoff, and the wait that a server asks for with Retry-After."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime


@dataclass(frozen=True, kw_only=True, slots=True)
class Backoff:
    """Delays in seconds that double with each failure, from `first` up to `longest`.

    `jitter` is the share of a delay that chance may take off, so that many clients that failed together do not come
    back together: 0 for none, 1 for anything between nothing and the whole delay.
    """

    first: float
    longest: float
    jitter: float = 0.0

    def delay(self, failures: int, chance: float = 1.0) -> float:
        """Seconds to wait after so many failures in a row, from 1. `chance` is a random number between 0 and 1."""
        whole = min(self.longest, self.first * 2.0 ** min(failures - 1, 60))
        return whole * (1.0 - self.jitter * (1.0 - chance))


def retry_after(headers: Mapping[str, str], now: datetime) -> float | None:
    """Seconds until a server wants to be asked again; None where it does not say, or not in a readable form.

    `headers` have lower-case names, or ignore case. retry-after-ms counts before Retry-After, which is a number of
    seconds or a date. A date is compared with the server's own Date, for our clock `now` may be minutes off.
    """
    milliseconds = _seconds(headers.get("retry-after-ms"))
    if milliseconds is not None:
        return milliseconds / 1000
    value = headers.get("retry-after")
    seconds = _seconds(value)
    until = _date(value) if seconds is None else None
    return seconds if until is None else max(0.0, (until - (_date(headers.get("date")) or now)).total_seconds())


def _seconds(value: str | None) -> float | None:
    try:
        seconds = float(value or "")
    except ValueError:
        return None
    return max(0.0, seconds) if math.isfinite(seconds) else None


def _date(value: str | None) -> datetime | None:
    try:
        date = parsedate_to_datetime(value or "")
    except ValueError:
        return None
    return date if date.tzinfo else date.replace(tzinfo=UTC)
