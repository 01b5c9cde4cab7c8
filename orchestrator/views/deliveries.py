"""What leaves, and how far the bus is."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from chordage.orchestrator.core.delivering import DeliveryStatus, shown
from chordage.orchestrator.store import outbox, projection
from chordage.orchestrator.store.database import Store
from chordage.orchestrator.store.outbox import Delivery


@dataclass(frozen=True, kw_only=True, slots=True)
class DeliveryView:
    id: int
    turn_id: str
    thread_id: str
    status: DeliveryStatus
    channel: str  # "webhook", or the name of the binding
    to: str
    target: dict[str, Any]
    key: str  # by which the receiver knows it again
    attempts: int
    error: str | None  # of the last attempt
    in_hand: bool
    created_at: datetime
    next_at: datetime | None
    sent_at: datetime | None
    dead_at: datetime | None


@dataclass(frozen=True, kw_only=True, slots=True)
class BusView:
    position: int  # the newest journal row that is on the bus
    top: int  # the newest there is
    rows_behind: int
    seconds_behind: float
    generation: int  # how often it was built
    worker: str | None  # who writes it at this moment
    moved_at: datetime | None
    failures: int
    error: str | None
    error_at: datetime | None
    deliveries_pending: int
    dead_letters: int


def delivery_of(store: Store, turn_id: str) -> DeliveryView | None:
    with store.read() as tx:
        found = outbox.of_turn(tx, turn_id)
    return _view(found) if found else None


def deliveries(store: Store, *, status: DeliveryStatus | None = None, limit: int = 50) -> list[DeliveryView]:
    """Newest first."""
    with store.read() as tx:
        found = outbox.newest(tx, status=status, limit=limit)
    return [_view(one) for one in found]


def bus(store: Store, now: datetime) -> BusView:
    with store.read() as tx:
        standing = projection.load(tx)
        position = standing.mark.position if standing else 0
        rows, since = projection.lag(tx, position)
        left = outbox.counts(tx)
    return BusView(
        position=position,
        top=standing.top if standing else rows,
        rows_behind=rows,
        seconds_behind=round(max(0.0, (now - since).total_seconds()), 3) if since else 0.0,
        generation=standing.mark.generation if standing else 0,
        worker=standing.claim_worker if standing and standing.claim_token and not standing.is_free(now) else None,
        deliveries_pending=left.get(DeliveryStatus.PENDING.value, 0),
        dead_letters=left.get(DeliveryStatus.DEAD.value, 0),
        moved_at=standing.moved_at if standing else None,
        failures=standing.failures if standing else 0,
        error=standing.error if standing else None,
        error_at=standing.error_at if standing else None,
    )


def _view(one: Delivery) -> DeliveryView:
    return DeliveryView(
        id=one.id, turn_id=one.turn_id, thread_id=one.thread_id, status=one.status,
        channel="webhook" if "url" in one.target else str(one.target.get("channel")), to=shown(one.target),
        target=one.target, key=one.key, attempts=one.attempts, error=one.error, in_hand=one.claim_token is not None,
        created_at=one.created_at, next_at=one.next_at if one.status is DeliveryStatus.PENDING else None,
        sent_at=one.sent_at, dead_at=one.dead_at,
    )  # fmt: skip
