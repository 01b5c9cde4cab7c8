"""Who decided or changed something, as the record of the operator keeps it."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any


class Audited(StrEnum):
    """What is recorded."""

    DECIDED = "decided"
    KEY_CREATED = "key_created"
    KEY_REVOKED = "key_revoked"
    TURN_CHANGED = "turn_changed"
    LINK_MADE = "link_made"  # to one question
    WORK_PAUSED = "work_paused"
    WORK_RESUMED = "work_resumed"
    BULK_STARTED = "bulk_started"
    BULK_STOPPED = "bulk_stopped"
    LOGIN_LINK_MADE = "login_link_made"
    SESSIONS_ENDED = "sessions_ended"
    CANCELLED = "cancelled"
    RETRIED = "retried"
    STEERED = "steered"
    FORKED = "forked"
    COMPACTED = "compacted"
    BUDGET_SET = "budget_set"
    DELIVERY_RETRIED = "delivery_retried"
    PRUNED = "pruned"
    ERASED = "erased"  # a thread, or all of a sender
    DRILLED = "drilled"  # `chordage drill` broke something of the fleet
    AGENT_ADOPTED = "agent_adopted"  # by its open runs: the newest version
    WORK_RUN = "work_run"  # a task, a chore or the will, out of its time


@dataclass(frozen=True, kw_only=True, slots=True)
class Actor:
    """`id`: of a key, or `local`, `cli` or `celery`. `user`: for whom it spoke. `address`: of the client."""

    id: str
    user: str | None = None
    tenant: str | None = None
    address: str | None = None

    @property
    def name(self) -> str:
        """As turns and decisions have it."""
        return self.id if self.user is None else f"{self.id}~{self.user}"


CLI = Actor(id="cli")


@dataclass(frozen=True, kw_only=True, slots=True)
class AuditEntry:
    id: int
    at: datetime
    actor: str
    user: str | None  # for whom the actor spoke
    tenant: str | None  # of the actor
    address: str | None
    action: Audited
    about: str  # the id of what was decided or changed
    detail: dict[str, Any] = field(default_factory=dict)

    @property
    def facts(self) -> list[tuple[str, str]]:
        """Of its detail, what says something, for people."""
        said = [(name, value) for name, value in self.detail.items() if value not in (None, False, [], "")]
        return [(name.replace("_", " "), _written(value)) for name, value in said]


def _written(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(map(str, value))
    return "yes" if value is True else str(value)
