"""Decisions: the answer to a suspension, stored before anything is done with it. The schema allows one for each."""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime
from typing import Any

from sqlalchemy import insert, select, update

from chordage.orchestrator.core.suspending import Action, Decision, digest
from chordage.orchestrator.store.schema import decisions
from chordage.orchestrator.store.tx import Tx

_COLUMNS = [
    decisions.c[name]
    for name in ("id", "suspension_id", "call_id", "run_id", "action", "payload", "edited_args", "reason", "key")
]


def store(tx: Tx, decision: Decision, *, source: str, now: datetime) -> None:
    edited = decision.edited_args
    tx.execute(
        insert(decisions),
        {
            "id": decision.id, "suspension_id": decision.suspension_id, "call_id": decision.call_id,
            "run_id": decision.run_id, "key": decision.key, "action": decision.action.value,
            "payload": decision.payload, "edited_args": edited,
            "edited_digest": None if edited is None else digest(edited), "reason": decision.reason, "source": source,
            "created_at": now,
        },
    )  # fmt: skip


def _from_row(row: Any) -> Decision:
    return Decision(**{**row, "action": Action(row["action"])})


def of_suspension(tx: Tx, suspension_id: str) -> Decision | None:
    row = tx.execute(select(*_COLUMNS).where(decisions.c.suspension_id == suspension_id)).mappings().first()
    return _from_row(row) if row else None


def of_call(tx: Tx, call_id: str, key: str) -> Decision | None:
    """The answer that was given for this call under that key, to whichever of its questions."""
    found = select(*_COLUMNS).where(decisions.c.call_id == call_id, decisions.c.key == key)
    row = tx.execute(found.order_by(decisions.c.id.desc()).limit(1)).mappings().first()
    return _from_row(row) if row else None


def of_suspensions(tx: Tx, suspension_ids: Collection[str]) -> dict[str, Decision]:
    found = select(*_COLUMNS).where(decisions.c.suspension_id.in_(sorted(suspension_ids)))
    return {row["suspension_id"]: _from_row(row) for row in tx.execute(found).mappings()}


def applied(tx: Tx, decision_ids: Collection[str], now: datetime) -> None:
    tx.execute(update(decisions).where(decisions.c.id.in_(sorted(decision_ids))).values(applied_at=now))
