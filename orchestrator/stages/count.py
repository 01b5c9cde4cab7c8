"""Not in the line of a turn: add what is new in the journal to the counters that monitors read.

It needs no Redis, and no claim: the cursor moves in the transaction that writes the sums (store/metrics.py).
"""

from __future__ import annotations

from chordage.orchestrator.core import metrics as rules
from chordage.orchestrator.core.records import Checkpoint
from chordage.orchestrator.run.unit import Unit
from chordage.orchestrator.runtime import Runtime
from chordage.orchestrator.store import metrics, projection

BATCH = 500  # journal rows


def count_journal(rt: Runtime) -> bool:
    """One batch. True: there may be more."""
    with rt.store.read() as tx:
        cursor = metrics.cursor(tx)
    position, top = cursor or (0, 1)
    if top <= position:
        return False
    rows, are_all = projection.settled_rows(rt.store, metrics.rows, position, BATCH)
    if not rows:
        return False
    ended = [row.run_id for row in rows if row.kind == Checkpoint.RUN_FINISHED and not row.is_copy]
    with rt.store.read() as tx:
        calls = metrics.ended_calls(tx, ended)
    sums = rules.sums_of(rows, calls)
    with Unit(rt) as unit:
        if cursor is None:
            metrics.begin(unit.tx)
        if not metrics.move(unit.tx, position, rows[-1].id, unit.now):
            return True  # another process has counted them
        known = metrics.series(unit.tx, {key.name for key in sums})
        metrics.add(unit.tx, rules.within_bounds(sums, known))
    return not are_all
