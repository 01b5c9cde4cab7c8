"""What must leave, written with the truth it reports."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import func, insert, select

from chordage.orchestrator.core.delivering import DeliveryStatus, receiver_of
from chordage.orchestrator.store.schema import journal, outbox
from chordage.orchestrator.store.tx import Tx

# The facts it reports are in the journal of the same transaction, so none of them is behind this.
_HERE = select(func.coalesce(func.max(journal.c.id), 0)).scalar_subquery()


def leave(tx: Tx, thread_id: str, turn_id: str, *, target: dict[str, Any], body: dict[str, Any], now: datetime) -> None:
    """Call it behind everything that this transaction writes into the journal."""
    row = {
        "thread_id": thread_id, "turn_id": turn_id, "target": target, "receiver": receiver_of(target), "body": body,
        "created_at": now, "position": _HERE, "status": DeliveryStatus.PENDING.value, "attempts": 0, "forgiven": 0,
        "next_at": now,
    }  # fmt: skip
    tx.execute(insert(outbox).values(row))
