"""Stepped turns: one row each, and what was done to them by which key."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from sqlalchemy import insert, select, update

from chordage.orchestrator.core.stepping import CapPolicy, Drive, OnHeld, Stepped, StepTerms
from chordage.orchestrator.store.schema import ops, stepped, turns
from chordage.orchestrator.store.tx import Tx

_FLAGS = ("going", "mutated", "parked", "replaces")
_SETS = {"drive": Drive, "cap_policy": CapPolicy, "on_held": OnHeld}


def lay_down(tx: Tx, turn_id: str, terms: StepTerms) -> None:
    empty: dict[str, Any] = {"given": [], "steers": [], "verdicts": {}, "withheld": []}
    values = {
        **empty, **dict.fromkeys(_FLAGS, 0), "turn_id": turn_id, "rev": 1, "drive": Drive.STEP.value, "iteration": 0,
        "max_iterations": terms.max_iterations, "cap_policy": terms.cap_policy.value,
        "hold_seconds": terms.hold_seconds, "on_held": terms.on_held.value, "params": terms.params,
        "options": terms.options,
    }  # fmt: skip
    tx.execute(insert(stepped).values(values))


def load(tx: Tx, turn_id: str, *, lock: bool = False) -> Stepped | None:
    """`lock`: as it stays until we are done. Whoever locks its run as well has locked that first."""
    found = select(stepped).where(stepped.c.turn_id == turn_id)
    row = tx.execute(found.with_for_update() if lock else found).mappings().first()
    return _from_row(row) if row else None


def _from_row(row: Mapping[Any, Any]) -> Stepped:
    flags = {name: bool(row[name]) for name in _FLAGS}
    return Stepped(**{**row, **flags, **{name: closed(row[name]) for name, closed in _SETS.items()}})


def change(tx: Tx, seen: Stepped, **changes: Any) -> bool:
    """As whoever looked wants it, if nobody has changed it since."""
    changed = update(stepped).where(stepped.c.turn_id == seen.turn_id, stepped.c.rev == seen.rev)
    return (
        tx.execute(changed.values(rev=seen.rev + 1, **{name: _stored(changes[name]) for name in changes})).rowcount == 1
    )


def _stored(value: Any) -> Any:
    return int(value) if isinstance(value, bool) else value


def overdue(tx: Tx, now: datetime, limit: int) -> list[tuple[str, str]]:
    """Turns whose time to be held is over; each with its run."""
    found = (
        select(stepped.c.turn_id, turns.c.run_id)
        .join(turns, turns.c.id == stepped.c.turn_id)
        .where(stepped.c.held_until.is_not(None), stepped.c.held_until <= now)
        .order_by(stepped.c.held_until)
        .limit(limit)
    )
    return [(row.turn_id, row.run_id) for row in tx.execute(found)]


def done_by(tx: Tx, turn_id: str, key: str) -> tuple[str, dict[str, Any]] | None:
    """What was asked under this key, and what was answered."""
    row = tx.execute(
        select(ops.c.request_hash, ops.c.response).where(ops.c.turn_id == turn_id, ops.c.key == key)
    ).first()
    return (row.request_hash, row.response) if row else None


def note_done(tx: Tx, turn_id: str, key: str, request_hash: str, response: dict[str, Any], now: datetime) -> None:
    tx.execute(insert(ops).values(turn_id=turn_id, key=key, request_hash=request_hash, response=response, at=now))
