"""State that plugins keep: one row for each place, read, merged and written under its lock.

Calls of one round write in transactions of their own, at the same moment. The second waits for the row, and finds in it
what the first has written, and who that was: `core.plugin_state` decides what becomes of both.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from sqlalchemy import ColumnElement, and_, or_, select, update

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
from chordage.orchestrator.store.database import Tx
from chordage.orchestrator.store.schema import plugin_state
from chordage.orchestrator.store.statements import insert_or


def held(tx: Tx, noter: Noter) -> dict[Scope, dict[str, Any]]:
    """Everything stored for this thread, run and call."""
    mine = or_(
        *(and_(plugin_state.c.scope == scope.value, plugin_state.c.owner == noter.owner(scope)) for scope in Scope)
    )
    state: dict[Scope, dict[str, Any]] = {scope: {} for scope in Scope}
    rows = tx.execute(select(plugin_state.c.scope, plugin_state.c.key, plugin_state.c.value).where(mine))
    for row in rows:
        state[Scope(row.scope)][row.key] = row.value
    return state


def note(tx: Tx, noter: Noter, updates: Sequence[SetState]) -> str | None:
    """Store the updates. Returns why none of them was stored, or None. The caller rolls back in that case."""
    places = {place: _locked(tx, place) for place in by_place(noter, updates)}
    try:
        new = noted(places, noter, updates)
    except StateRefused as why:
        return str(why)
    for place, entry in new.items():
        tx.execute(update(plugin_state).where(_at(place)).values(asdict(entry)))
    return None


def _locked(tx: Tx, place: StatePlace) -> StateEntry:
    """A row that does not exist cannot be locked, so it is inserted first."""
    tx.execute(insert_or(tx.dialect.name, plugin_state).values(asdict(place)).on_conflict_do_nothing())
    row = tx.execute(select(plugin_state).where(_at(place)).with_for_update()).one()
    merge = None if row.merge is None else Merge(row.merge)
    return StateEntry(value=row.value, run_id=row.run_id, step=row.step, writer=row.writer, merge=merge)


def _at(place: StatePlace) -> ColumnElement[bool]:
    return and_(*(plugin_state.c[name] == value for name, value in asdict(place).items()))
