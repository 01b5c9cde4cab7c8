"""`cron`: five fields, read in a time zone.

A time that a day does not have, because clocks go forward over it, comes right behind the gap. One that a day has twice
comes once, the first time. Only what repeats with the clock (a minute or hour that starts with `*`) goes through both.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError

ADVICE = 'give five fields: minute, hour, day of month, month, day of week, such as "30 7 * * 1-5"'


@dataclass(frozen=True, kw_only=True, slots=True)
class Cron:
    expression: str
    zone: ZoneInfo

    def after(self, anchor: datetime, moment: datetime) -> Iterator[datetime]:  # noqa: ARG002 - the clock alone decides
        # It is looked for from an hour before: a time that is moved out of a gap may lie later than its place in line.
        last = moment.astimezone(UTC)
        for local in CronSim(self.expression, (last - timedelta(hours=3)).astimezone(self.zone)):
            found = local.astimezone(UTC)
            if found > last:
                yield found
                last = found


def cron_from(value: object, zone: ZoneInfo) -> Cron:
    """Raises ValueError with what to do."""
    if not isinstance(value, str) or len(value.split()) != len("mhdMw"):
        raise ValueError(f"{value!r} is no cron expression: {ADVICE}")
    try:
        CronSim(value, datetime(2000, 1, 1, tzinfo=UTC))
    except CronSimError as error:
        raise ValueError(f"{value!r}: {str(error).lower()}; {ADVICE}") from error
    return Cron(expression=value, zone=zone)
