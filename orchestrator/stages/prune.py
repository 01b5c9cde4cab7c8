"""Not in the line of a turn: delete or count all turns that ended before a time. run/pruning.py has the batches."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace

from chordage.orchestrator.core.audit import Actor, Audited
from chordage.orchestrator.core.pruning import Pruned, PruneLimits
from chordage.orchestrator.run import pruning
from chordage.orchestrator.run.unit import Unit
from chordage.orchestrator.runtime import Patrol, Runtime
from chordage.orchestrator.store import audit
from chordage.orchestrator.store import pruning as rows_of_turns


def count_old_turns(rt: Runtime, limits: PruneLimits) -> Pruned:
    """What `prune` would delete now, apart from threads: those go with their last turn."""
    rows: Counter[str] = Counter()
    after = ""
    while True:
        with rt.store.read() as tx:
            window = rows_of_turns.oldest(tx, limits, after, pruning.LOOKS)
            if window.last is None:
                return Pruned(rows=+rows)
            rows.update(rows_of_turns.count(tx, window.turn_ids))
        after = window.last


def prune(
    rt: Runtime, limits: PruneLimits, *, by: Actor, inform: Callable[[Counter[str]], None] = lambda _rows: None
) -> Pruned:
    """Recorded before it begins, and once more with what was deleted. `inform`: called now and then on the way."""
    rt = replace(rt, patrol=Patrol())
    terms = {"before": limits.before.isoformat(), "states": sorted(limits.dispositions)}
    with Unit(rt) as unit:
        audit.record(unit.tx, by, Audited.PRUNED, "turns", now=unit.now, detail={**terms, "rows": {}})
    rows: Counter[str] = Counter()
    while pruning.prune_window(rt, limits, rows, lambda: True):
        inform(rows)
    while not limits.dispositions and (lists := pruning.remove_lists(rt, limits)):
        rows += lists
    if not limits.dispositions:
        rows += pruning.remove_versions(rt, limits)
    with Unit(rt) as unit:
        audit.record(unit.tx, by, Audited.PRUNED, "turns", now=unit.now, detail={**terms, "rows": dict(+rows)})
    return Pruned(rows=+rows)
