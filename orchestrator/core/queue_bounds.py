"""How many turns may be queued in a group, and what happens to a message that comes when they are."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Overflow(StrEnum):
    REJECT = "reject"  # the message
    DROP_OLDEST = "drop_oldest"  # of the group: it is superseded by the message
    REPLACE_PENDING = "replace_pending"  # the newest of its thread is superseded by it; where there is none, as reject


@dataclass(frozen=True, kw_only=True, slots=True)
class QueueBound:
    max_queued: int
    overflow: Overflow = Overflow.REJECT
