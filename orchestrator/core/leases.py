"""How long a claim is valid, and how long to wait before a wake-up is sent again."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta


@dataclass(frozen=True, kw_only=True, slots=True)
class LeaseRules:
    seconds: float = 30.0  # how long a claim is valid without a heartbeat
    beat: float = 10.0  # how often the holder renews it
    sweep: float = 2.0  # between two queries for work whose wake-up was lost
    poison_after: int = 3  # claims that may expire at one step before the run fails

    def until(self, now: datetime) -> datetime:
        return now + timedelta(seconds=self.seconds)

    def until_after_resend(self, now: datetime, resends: int) -> datetime:
        """A wake-up without a claim may be waiting in a long queue, so it is resent less often; it may be lost as well,
        so never after more than two leases.
        """
        return now + timedelta(seconds=self.seconds * min(1 + resends, 2))
