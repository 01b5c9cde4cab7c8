"""What plugins have noted: one row for each place, read, put together and written under its lock.

Calls of one round note in transactions of their own, at the same moment. Whoever is second waits for the row, and finds
in it what the first has written, and who that was: `core.plugin_state` decides what becomes of both.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from sqlalchemy import ColumnElement, and_, or_, select, update

from chordage.orchestrator.core.phases import Scope
from chordage.orchestrator.core.plugin_state import Entry, Merge, Noter, Place, Refused, SetState, by_place, noted
from chordage.orchestrator.store.database import Tx
from chordage.orchestrator.store.schema import plugin_state
from chordage.orchestrator.store.statements import insert_or


def held(tx: Tx, noter: Noter) -> dict[Scope, dict[str, Any]]:
    """All that is noted for this thread, run and call."""
    mine = or_(
        *(and_(plugin_state.c.scope == scope.value, plugin_state.c.owner == noter.owner(scope)) for scope in Scope)
    )
    found: dict[Scope, dict[str, Any]] = {scope: {} for scope in Scope}
    rows = tx.execute(select(plugin_state.c.scope, plugin_state.c.key, plugin_state.c.value).where(mine))
    for row in rows:
        found[Scope(row.scope)][row.key] = row.value
    return found


def note(tx: Tx, noter: Noter, updates: Sequence[SetState]) -> str | None:
    """Why nothing of it was kept; None when all of it was. To be called in a transaction that is undone then."""
    places = {place: _locked(tx, place) for place in by_place(noter, updates)}
    try:
        new = noted(places, noter, updates)
    except Refused as why:
        return str(why)
    for place, entry in new.items():
        tx.execute(update(plugin_state).where(_at(place)).values(asdict(entry)))
    return None


def _locked(tx: Tx, place: Place) -> Entry:
    """What is not there cannot be locked, so it is put there first."""
    tx.execute(insert_or(tx.dialect.name, plugin_state).values(asdict(place)).on_conflict_do_nothing())
    row = tx.execute(select(plugin_state).where(_at(place)).with_for_update()).one()
    merge = None if row.merge is None else Merge(row.merge)
    return Entry(value=row.value, run_id=row.run_id, step=row.step, writer=row.writer, merge=merge)


def _at(place: Place) -> ColumnElement[bool]:
    return and_(*(plugin_state.c[name] == value for name, value in asdict(place).items()))
