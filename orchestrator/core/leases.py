"""How long a claim holds, when it is stale, and how long to wait before a wake-up is sent again."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

SELDOM = 2  # leases between two wake-ups for the same work, at most


@dataclass(frozen=True, kw_only=True, slots=True)
class LeaseRules:
    seconds: float = 30.0  # how long a claim holds without a heartbeat
    beat: float = 10.0  # how often the holder renews it
    sweep: float = 5.0  # how often truth is asked what should be moving
    poison_after: int = 3  # claims that may expire at one step before the run is given up

    def until(self, now: datetime) -> datetime:
        return now + timedelta(seconds=self.seconds)

    def until_after_resend(self, now: datetime, resends: int) -> datetime:
        """A wake-up that nobody picks up may wait in a long queue: ask less often. It may be lost as well: never
        long.
        """
        return now + timedelta(seconds=self.seconds * min(1 + resends, SELDOM))
