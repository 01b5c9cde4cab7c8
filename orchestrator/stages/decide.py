"""Not in the line of a turn: a person or a program decides about calls that wait."""

from __future__ import annotations

from collections.abc import Sequence

from chordage.orchestrator.core.approvals import DecisionRequest
from chordage.orchestrator.core.audit import Actor
from chordage.orchestrator.core.intents import Intent
from chordage.orchestrator.run import approvals
from chordage.orchestrator.run.approvals import Decided
from chordage.orchestrator.run.unit import insist
from chordage.orchestrator.runtime import Runtime


def decide(
    rt: Runtime, requests: Sequence[DecisionRequest], *, source: str, space: str | None = None, by: Actor | None = None
) -> tuple[list[Decided], list[Intent]]:
    """All of them, or none: the first that cannot be taken is raised, and nothing is stored. `space`: of a caller.
    `by`: who decides; by default the source says it.
    """
    asked = approvals.check_decisions(rt, requests, space=space)
    by = by or Actor(id=source)
    return insist(rt, lambda unit: approvals.take_decisions(unit, requests, asked, source, by=by))
