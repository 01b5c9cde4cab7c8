"""Tasks, chores and the will. Each write is guarded by the revision that its writer has read: one of several wins."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement, delete, literal_column, or_, select, tuple_, update

from chordage.orchestrator.core.pulse import PulseRow, PulseState, WorkKind
from chordage.orchestrator.store.database import Tx
from chordage.orchestrator.store.schema import pulse, turns
from chordage.orchestrator.store.statements import insert_or

AT_ONCE = 400  # keys of one statement
_OPEN = pulse.c.open == literal_column("1")
_DUE = (
    pulse.c.state == literal_column("'live'"), pulse.c.paused == literal_column("0"),
    pulse.c.open == literal_column("0"),
)  # fmt: skip
_GONE = pulse.c.state == literal_column("'gone'")


def load_every(tx: Tx) -> list[PulseRow]:
    return [_from_row(row) for row in tx.execute(select(pulse)).mappings()]


def load(tx: Tx, kind: WorkKind, key: str) -> PulseRow | None:
    row = tx.execute(select(pulse).where(_at(kind, key))).mappings().first()
    return _from_row(row) if row else None


def load_all(tx: Tx, names: Sequence[tuple[WorkKind, str]]) -> list[PulseRow]:
    rows: list[PulseRow] = []
    for start in range(0, len(names), AT_ONCE):
        among = tuple_(pulse.c.kind, pulse.c.key).in_(
            [(kind.value, key) for kind, key in names[start : start + AT_ONCE]]
        )
        rows += [_from_row(row) for row in tx.execute(select(pulse).where(among)).mappings()]
    return rows


def due(tx: Tx, now: datetime, limit: int) -> list[PulseRow]:
    due_rows = select(pulse).where(*_DUE, pulse.c.next_due <= now).order_by(pulse.c.next_due).limit(limit)
    return [_from_row(row) for row in tx.execute(due_rows).mappings()]


def ended(tx: Tx, limit: int) -> list[tuple[PulseRow, PulseRow]]:
    """Rows whose turn has ended or no longer exists: as they are, and with that end recorded."""
    outcome = [turns.c[name].label(f"turn_{name}") for name in ("disposition", "started_at", "done_at", "run_id")]
    over = (
        select(pulse, *outcome)
        .select_from(pulse.outerjoin(turns, turns.c.id == pulse.c.turn_id))
        .where(_OPEN, or_(turns.c.id.is_(None), turns.c.status == literal_column("'done'")))
        .limit(limit)
    )
    return [(_from_row(row), _with_end(row)) for row in tx.execute(over).mappings()]


def _with_end(row: Mapping[Any, Any]) -> PulseRow:
    return replace(
        _from_row(row), open=False, disposition=row["turn_disposition"], started_at=row["turn_started_at"],
        ended_at=row["turn_done_at"], run_id=row["turn_run_id"],
    )  # fmt: skip


def put(tx: Tx, row: PulseRow, *, seen: PulseRow | None) -> bool:
    """Write the row, unless it has changed since it was `seen`, or exists although nothing was seen. Locks it."""
    values = {**_to_row(row), "rev": row.rev + 1}
    if seen is None:
        made = insert_or(tx.dialect.name, pulse).values(values).on_conflict_do_nothing().returning(pulse.c.key)
        return tx.execute(made).first() is not None
    return bool(
        tx.execute(update(pulse).where(_at(row.kind, row.key), pulse.c.rev == seen.rev).values(values)).rowcount
    )


def note_turn(tx: Tx, row: PulseRow, turn_id: str) -> None:
    """Called in the transaction that has just put the row."""
    tx.execute(update(pulse).where(_at(row.kind, row.key)).values(turn_id=turn_id, open=1))


def note_own(tx: Tx, key: str, before: str, after: str) -> bool:
    """A tool on the task's thread is about to change `before` to `after`. False: `before` is another writer's text."""
    known = or_(pulse.c.seen == before, pulse.c.own == before)
    moved = update(pulse).where(_at(WorkKind.TASK, key), known)
    return bool(tx.execute(moved.values(seen=before, own=after, rev=pulse.c.rev + 1)).rowcount)


def forget_gone(tx: Tx, before: datetime) -> int:
    gone = delete(pulse).where(_GONE, pulse.c.gone_at < before, pulse.c.open == literal_column("0"))
    return int(tx.execute(gone).rowcount)


def _at(kind: WorkKind, key: str) -> ColumnElement[bool]:
    return (pulse.c.kind == kind.value) & (pulse.c.key == key)


def _from_row(row: Mapping[Any, Any]) -> PulseRow:
    values = {name.name: row[name.name] for name in fields(PulseRow)}
    kinds = {"kind": WorkKind(values["kind"]), "state": PulseState(values["state"])}
    return PulseRow(**{**values, **kinds, "paused": bool(values["paused"]), "open": bool(values["open"])})


def _to_row(row: PulseRow) -> dict[str, Any]:
    values = {name.name: getattr(row, name.name) for name in fields(PulseRow)}
    kinds = {"kind": row.kind.value, "state": row.state.value}
    return {**values, **kinds, "paused": int(row.paused), "open": int(row.open)}
