"""Beside the line: somebody decides about calls that wait."""

from __future__ import annotations

from collections.abc import Sequence

from chordage.orchestrator import answering
from chordage.orchestrator.answering import Decided
from chordage.orchestrator.core.intents import Intent
from chordage.orchestrator.core.suspending import DecisionRequest
from chordage.orchestrator.runtime import Runtime


def decide(
    rt: Runtime, requests: Sequence[DecisionRequest], *, source: str, space: str | None = None
) -> tuple[list[Decided], list[Intent]]:
    """All of them, or none: the first that cannot be taken is raised, and nothing is stored. `space`: of a caller."""
    asked = answering.checked(rt, requests, space=space)
    decided, intents = rt.store.insist(lambda tx: answering.take(tx, rt, requests, asked, source))
    answering.tell(rt, decided)
    return decided, intents
