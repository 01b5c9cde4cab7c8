"""Counters for monitors: sums over the journal, and how far it has been counted.

Failure: a process dies between adding to the sums and moving the cursor, or two processes count the same rows, and the
sums double. Mechanism: both are one transaction that begins with a guarded UPDATE of the cursor; of two that have read
the same rows the second changes no row, and stores nothing. The cursor of the bus moves back when the bus is rebuilt,
so this one is a row of its own. Not promised: that rows are counted at once.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Collection
from datetime import datetime

from sqlalchemy import and_, bindparam, case, func, null, select, update

from chordage.orchestrator.core.metrics import (
    REPLIES,
    TOTAL,
    WITH_BODY,
    CountedRow,
    EndedCall,
    SumKey,
    Sums,
)
from chordage.orchestrator.core.records import Checkpoint
from chordage.orchestrator.core.stepping import Control
from chordage.orchestrator.store.contents import json_text
from chordage.orchestrator.store.database import Tx
from chordage.orchestrator.store.predicates import has
from chordage.orchestrator.store.schema import (
    calls,
    decisions,
    journal,
    metric_sums,
    projection,
    runs,
    suspensions,
    turns,
)
from chordage.orchestrator.store.statements import PreparedStatement, insert_or

NAME = "metrics"
_MINE = projection.c.name == NAME
_TOP = select(func.coalesce(func.max(journal.c.id), 0)).scalar_subquery()
_LOAD = PreparedStatement(select(projection.c.position, _TOP.label("top")).where(_MINE))


def cursor(tx: Tx) -> tuple[int, int] | None:
    """The last row that was counted, and the newest. None: nothing was counted in this database."""
    row = _LOAD.first(tx, {})
    return (row["position"], row["top"]) if row else None


def begin(tx: Tx) -> None:
    fresh = {"name": NAME, "bus": "", "generation": 0, "position": 0, "failures": 0}
    tx.execute(insert_or(tx.dialect.name, projection).values(fresh).on_conflict_do_nothing())


_MOVE = PreparedStatement(
    update(projection)
    .where(_MINE, projection.c.position == bindparam("before"))
    .values(position=bindparam("to"), moved_at=bindparam("now"))
)


def move(tx: Tx, before: int, to: int, now: datetime) -> bool:
    """False: another process has counted these rows."""
    return _MOVE.changed(tx, {"before": before, "to": to, "now": now}) == 1


_held = journal.alias("held")
_was_held = and_(
    has(runs.c.control, Control.STEP),
    journal.c.kind != Checkpoint.REPLY_HELD.value,
    _held.c.run_id == journal.c.run_id,
    _held.c.step == journal.c.step,
    has(_held.c.kind, Checkpoint.REPLY_HELD),
)
_ROUND_ENDED = (
    select(func.max(calls.c.ended_at))
    .where(calls.c.run_id == journal.c.run_id, calls.c.step == journal.c.step - 1)
    .scalar_subquery()
)
# Scalar subqueries: of joins with small tables PostgreSQL would read all.
_QUESTION = select(decisions.c.suspension_id).where(decisions.c.id == journal.c.run_id).correlate(journal)
_ASKED_AT = (
    select(suspensions.c.created_at)
    .where(suspensions.c.id == _QUESTION.scalar_subquery())
    .correlate(journal)
    .scalar_subquery()
)
_ROWS = PreparedStatement(
    select(
        journal.c.id, journal.c.run_id, journal.c.step, journal.c.kind, journal.c.at,
        case((has(journal.c.kind, *sorted(WITH_BODY)), json_text(journal.c.body)), else_=null()).label("text"),
        turns.c.agent, turns.c.grp.label("group"), turns.c.due_at, turns.c.started_at, turns.c.done_at,
        case((has(journal.c.kind, Checkpoint.CALL_DECIDED), _ASKED_AT), else_=null()).label("asked_at"),
        case((has(journal.c.kind, *sorted(REPLIES)), _ROUND_ENDED), else_=null()).label("round_ended_at"),
        case((and_(runs.c.id.is_not(None), turns.c.run_id != runs.c.id), 1), else_=0).label("is_copy"),
        case((_held.c.id.is_not(None), 1), else_=0).label("was_held"),
    )
    .select_from(journal)
    .outerjoin(runs, runs.c.id == journal.c.run_id)
    .outerjoin(turns, turns.c.id == func.coalesce(runs.c.turn_id, journal.c.run_id))  # a note of a turn has its id
    .outerjoin(_held, _was_held)
    .where(journal.c.id > bindparam("after"))
    .order_by(journal.c.id)
    .limit(bindparam("as_many"))
)  # fmt: skip


def rows(tx: Tx, after: int, as_many: int) -> list[CountedRow]:
    """In one statement."""
    found = _ROWS.rows(tx, {"after": after, "as_many": as_many})
    return [CountedRow(**{**row, "is_copy": bool(row["is_copy"]), "was_held": bool(row["was_held"])}) for row in found]


def ended_calls(tx: Tx, run_ids: Collection[str]) -> list[EndedCall]:
    """Without those that a fork has answered from its record: they did not run."""
    if not run_ids:
        return []
    columns = (calls.c.tool, calls.c.status, calls.c.started_at, calls.c.ended_at)
    found = select(*columns).where(calls.c.run_id.in_(sorted(run_ids)), calls.c.answered_from.is_(None))
    return [EndedCall(**row) for row in tx.execute(found).mappings()]


_SERIES = select(metric_sums.c.name, metric_sums.c.labels).where(metric_sums.c.bucket == TOTAL)


def series(tx: Tx, names: Collection[str]) -> dict[str, set[tuple[str, ...]]]:
    """The labels that these counters have. There are no more than core/metrics.py allows."""
    known: dict[str, set[tuple[str, ...]]] = defaultdict(set)
    for row in tx.execute(_SERIES.where(metric_sums.c.name.in_(sorted(names)))):
        known[row.name].add(tuple(json.loads(row.labels)))
    return known


def load(tx: Tx) -> Sums:
    """All of them: their number is bounded."""
    found = tx.execute(select(metric_sums))
    return Counter({SumKey(row.name, tuple(json.loads(row.labels)), row.bucket): row.value for row in found})


def add(tx: Tx, sums: Sums) -> None:
    """In one statement; in one order, so that two writers do not deadlock."""
    if not sums:
        return
    values = [
        {"name": key.name, "labels": json.dumps(key.labels), "bucket": key.bucket, "value": number}
        for key, number in sorted(sums.items())
    ]
    insert = insert_or(tx.dialect.name, metric_sums).values(values)
    grown = {"value": metric_sums.c.value + insert.excluded.value}
    tx.execute(insert.on_conflict_do_update(index_elements=["name", "labels", "bucket"], set_=grown))
