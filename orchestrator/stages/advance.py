"""3. A run that stands at a crossing is told where to go."""

from __future__ import annotations

from chordage.orchestrator import decider
from chordage.orchestrator.core.intents import Intent
from chordage.orchestrator.core.status import RunStatus
from chordage.orchestrator.runtime import Runtime
from chordage.orchestrator.store import runs


def advance(rt: Runtime, run_id: str) -> list[Intent]:
    with rt.store.read() as tx:
        run = runs.load(tx, run_id)
    if run is None or run.status is not RunStatus.RUNNING:
        return []
    return decider.after_rest(rt, run)
