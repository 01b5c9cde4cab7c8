"""State that plugins keep: one row for each place, read, merged and written under its lock.

Calls of one round write in transactions of their own, at the same moment. The second waits for the row, and finds in it
what the first has written, and who that was: `core.plugin_state` decides what becomes of both.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from sqlalchemy import ColumnElement, Select, and_, bindparam, literal_column, select, union_all, update

from chordage.orchestrator.core.phases import Scope
from chordage.orchestrator.core.plugin_state import (
    Merge,
    Noter,
    SetState,
    StateEntry,
    StatePlace,
    StateRefused,
    by_place,
    noted,
)
from chordage.orchestrator.store.contents import owned
from chordage.orchestrator.store.database import Tx
from chordage.orchestrator.store.schema import plugin_state
from chordage.orchestrator.store.statements import PreparedStatement, insert_or


def _held_by(scope: Scope) -> Select[Any]:
    """One of a union: of an `or` PostgreSQL would read the whole index."""
    row = plugin_state.c
    return select(row.scope, row.key, row.value).where(
        row.scope == literal_column(f"'{scope.value}'"), row.owner == bindparam(f"of_{scope.value}")
    )


_HELD = PreparedStatement(union_all(*(_held_by(scope) for scope in Scope)))


def held(tx: Tx, noter: Noter) -> dict[Scope, dict[str, Any]]:
    """Everything stored for this thread, run and call."""
    state: dict[Scope, dict[str, Any]] = {scope: {} for scope in Scope}
    for row in _HELD.rows(tx, {f"of_{scope.value}": noter.owner(scope) for scope in Scope}):
        state[Scope(row["scope"])][row["key"]] = row["value"]
    return state


def note(tx: Tx, noter: Noter, updates: Sequence[SetState]) -> str | None:
    """Store the updates. Returns why none of them was stored, or None. The caller rolls back in that case."""
    places = {place: _locked(tx, place) for place in by_place(noter, updates)}
    try:
        new = noted(places, noter, updates)
    except StateRefused as why:
        return str(why)
    for place, entry in new.items():
        values = owned(tx, plugin_state, asdict(entry), owner=place.owner)
        tx.execute(update(plugin_state).where(_at(place)).values(values))
    return None


def _locked(tx: Tx, place: StatePlace) -> StateEntry:
    """A row that does not exist cannot be locked, so it is inserted first."""
    tx.execute(insert_or(tx.dialect.name, plugin_state).values(asdict(place)).on_conflict_do_nothing())
    row = tx.execute(select(plugin_state).where(_at(place)).with_for_update()).one()
    merge = None if row.merge is None else Merge(row.merge)
    return StateEntry(value=row.value, run_id=row.run_id, step=row.step, writer=row.writer, merge=merge)


def _at(place: StatePlace) -> ColumnElement[bool]:
    return and_(*(plugin_state.c[name] == value for name, value in asdict(place).items()))
