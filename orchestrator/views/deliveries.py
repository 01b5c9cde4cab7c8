"""Replies on their way out, and how far the bus has got."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from chordage.orchestrator.core import message
from chordage.orchestrator.core.deliveries import DeliveryStatus, shown
from chordage.orchestrator.core.errors import NotFound
from chordage.orchestrator.store import outbox, projection
from chordage.orchestrator.store.database import Store
from chordage.orchestrator.store.outbox import Delivery
from chordage.orchestrator.views.conversion import view_of


@dataclass(frozen=True, kw_only=True, slots=True)
class DeliveryView:
    id: int
    turn_id: str
    thread_id: str
    status: DeliveryStatus
    channel: str  # "webhook", or the name of the binding
    to: str
    target: dict[str, Any]
    key: str  # by which the receiver recognises a repetition
    attempts: int
    error: str | None  # of the last attempt
    in_hand: bool  # a worker is sending it
    created_at: datetime
    next_at: datetime | None
    sent_at: datetime | None
    dead_at: datetime | None


@dataclass(frozen=True, kw_only=True, slots=True)
class BusView:
    position: int  # the newest journal row that is on the bus
    top: int  # the newest journal row
    rows_behind: int
    seconds_behind: float
    generation: int  # how often it was built
    worker: str | None  # that writes it now
    moved_at: datetime | None = None
    failures: int = 0
    error: str | None = None
    error_at: datetime | None = None
    deliveries_pending: int
    dead_letters: int


def delivery_of(store: Store, turn_id: str) -> DeliveryView | None:
    with store.read() as tx:
        row = outbox.of_turn(tx, turn_id)
    return view_of_row(row) if row else None


def delivery(store: Store, number: int, *, space: str | None = None) -> DeliveryView:
    """A caller with a `space` finds only the replies of its own threads."""
    with store.read() as tx:
        row = outbox.load(tx, number)
    if row is None or not message.holds(space, row.thread_id):
        raise NotFound(f"there is no delivery {number}; `chordage deliveries` lists them")
    return view_of_row(row)


def deliveries(store: Store, *, status: DeliveryStatus | None = None, limit: int = 50) -> list[DeliveryView]:
    """Newest first."""
    with store.read() as tx:
        rows, _ = outbox.page(tx, status=status, limit=limit)
    return [view_of_row(row) for row in rows]


def view_of_row(row: Delivery) -> DeliveryView:
    return view_of(
        DeliveryView, row, to=shown(row.target), in_hand=row.claim_token is not None,
        channel="webhook" if "url" in row.target else str(row.target.get("channel")),
        next_at=row.next_at if row.status is DeliveryStatus.PENDING else None,
    )  # fmt: skip


def bus(store: Store, now: datetime) -> BusView:
    with store.read() as tx:
        row = projection.load(tx)
        position = row.mark.position if row else 0
        rows_behind, since = projection.lag(tx, position)
        counts = outbox.counts(tx)
    return view_of(
        BusView,
        row,
        position=position,
        top=row.top if row else rows_behind,
        rows_behind=rows_behind,
        seconds_behind=round(max(0.0, (now - since).total_seconds()), 3) if since else 0.0,
        generation=row.mark.generation if row else 0,
        worker=row.claim_worker if row and row.claim_token and not row.is_free(now) else None,
        deliveries_pending=counts[DeliveryStatus.PENDING],
        dead_letters=counts[DeliveryStatus.DEAD],
    )
