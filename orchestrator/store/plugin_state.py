"""What plugins have noted: one row for each key, merged under its lock.

Sums and unions come out the same in any order. A value of which there can be only one belongs to the first call of a
round that wrote it: a later call of the same round that writes something else is refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import and_, or_, select, update
from sqlalchemy.dialects import postgresql, sqlite

from chordage.orchestrator.core.json_values import canonical, each_once
from chordage.orchestrator.core.phases import Scope
from chordage.orchestrator.core.state_updates import Merge, SetState
from chordage.orchestrator.store.schema import plugin_state
from chordage.orchestrator.store.tx import Tx

_INSERT: dict[str, Any] = {"sqlite": sqlite.insert, "postgresql": postgresql.insert}


@dataclass(frozen=True, kw_only=True, slots=True)
class Noter:
    """Who notes something: a call of a round, or the run itself."""

    thread_id: str
    run_id: str
    step: int
    call_id: str = ""

    def owner(self, scope: Scope) -> str:
        return {Scope.THREAD: self.thread_id, Scope.RUN: self.run_id, Scope.CALL: self.call_id}[scope]


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
    for one in sorted(
        updates, key=lambda update: (update.scope.value, update.key)
    ):  # one order: nobody waits in a ring
        if (conflict := _note_one(tx, noter, one)) is not None:
            return conflict
    return None


def _note_one(tx: Tx, noter: Noter, one: SetState) -> str | None:
    names = {"scope": one.scope.value, "owner": noter.owner(one.scope), "key": one.key}
    here = and_(*(plugin_state.c[name] == value for name, value in names.items()))
    tx.execute(_INSERT[tx.dialect.name](plugin_state).values(names).on_conflict_do_nothing())
    row = tx.execute(select(plugin_state).where(here).with_for_update()).one()
    if (conflict := _conflict(row, noter, one)) is not None:
        return conflict
    by = {"run_id": noter.run_id, "step": noter.step, "writer": noter.call_id, "merge": one.merge.value}
    tx.execute(update(plugin_state).where(here).values(value=combined(row.value, one), **by))
    return None


def _conflict(row: Any, noter: Noter, one: SetState) -> str | None:
    if _is_by_another_call(row, noter) and _is_otherwise(row, one):
        return f"{one.key} of the {one.scope} was set to something else by another call of the same round"
    return unfit(row.value, one)


def _is_by_another_call(row: Any, noter: Noter) -> bool:
    same_round = (row.run_id, row.step) == (noter.run_id, noter.step)
    return bool(same_round and noter.call_id and row.writer and row.writer != noter.call_id)


def _is_otherwise(row: Any, one: SetState) -> bool:
    if Merge.EXCLUSIVE not in {one.merge, Merge(row.merge)}:
        return False
    return row.merge != one.merge.value or canonical(row.value) != canonical(one.value)


def unfit(before: Any, one: SetState) -> str | None:
    """Why what is held cannot be combined with this."""
    place = f"{one.key} of the {one.scope}"
    if one.merge is Merge.ADD and not isinstance(before, int | float | None):
        return f"{place} holds {before!r}, to which nothing can be added"
    if one.merge is Merge.UNION and not isinstance(before, list | None):
        return f"{place} holds {before!r}, which is no list to join"
    return None


def combined(before: Any, one: SetState) -> Any:
    match one.merge:
        case Merge.EXCLUSIVE:
            return one.value
        case Merge.ADD:
            return (before or 0) + one.value
        case Merge.UNION:
            return each_once([*(before or []), *one.value])
