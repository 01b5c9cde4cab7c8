"""What must leave, written with the truth it reports."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import func, insert, select

from chordage.orchestrator.store.schema import outbox
from chordage.orchestrator.store.tx import Tx


def leave(tx: Tx, thread_id: str, turn_id: str, *, target: dict[str, Any], body: dict[str, Any], now: datetime) -> None:
    tx.execute(
        insert(outbox), {"thread_id": thread_id, "turn_id": turn_id, "target": target, "body": body, "created_at": now}
    )


def count_unsent(tx: Tx) -> int:
    return int(tx.execute(select(func.count()).select_from(outbox).where(outbox.c.sent_at.is_(None))).scalar_one())
