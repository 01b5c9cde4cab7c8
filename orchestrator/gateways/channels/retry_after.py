"""How long a server asks us to wait, as HTTP has it."""

from __future__ import annotations

import email.utils
from datetime import UTC, datetime


def seconds_of(retry_after: str) -> float | None:
    """`retry_after`: seconds, or a date; None for anything else."""
    if retry_after.strip().isdigit():
        return float(retry_after)
    try:
        moment = email.utils.parsedate_to_datetime(retry_after)
    except ValueError:
        return None
    moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    return max(0.0, (moment - datetime.now(UTC)).total_seconds())
