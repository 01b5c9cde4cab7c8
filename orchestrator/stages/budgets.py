"""Not in the line of a turn: change how many runs of a group may work at once, over the whole fleet."""

from __future__ import annotations

from collections.abc import Callable

from chordage.orchestrator.core.audit import Actor, Audited
from chordage.orchestrator.core.groups import Group
from chordage.orchestrator.core.intents import Dispatch, Intent
from chordage.orchestrator.run.unit import Unit
from chordage.orchestrator.runtime import Runtime
from chordage.orchestrator.store import audit, groups


def set_budget(
    rt: Runtime,
    group: Group,
    budget: int | None,
    *,
    by: Actor | None = None,
    check: Callable[[int | None], None] = lambda _: None,
) -> list[Intent]:
    """None: as the settings say. `by`: who sets it, for the record. `check` raises if the budget that is stored now is
    not the one that was expected.
    """
    with Unit(rt) as unit:
        groups.lock(unit.tx, group)
        before = groups.budgets(unit.tx).get(group)
        check(before)
        groups.set_budget(unit.tx, group, budget)
        if by is not None:
            change = {"before": before, "budget": budget}
            audit.record(unit.tx, by, Audited.BUDGET_SET, group.value, now=unit.now, detail=change)
    return [*unit.intents, Dispatch(group=group)]  # a raised budget lets queued turns start
