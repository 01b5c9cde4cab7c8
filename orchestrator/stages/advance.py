"""3. A run that stands at a crossing is told where to go."""

from __future__ import annotations

from chordage.orchestrator.core.intents import Intent
from chordage.orchestrator.core.records import Phase, Run
from chordage.orchestrator.core.status import RunStatus
from chordage.orchestrator.run import transitions
from chordage.orchestrator.runtime import Runtime
from chordage.orchestrator.store import runs


def advance(rt: Runtime, run_id: str) -> list[Intent]:
    with rt.store.read() as tx:
        run = runs.load(tx, run_id)
    if run is None or run.status is not RunStatus.RUNNING:
        return []
    return transitions.next_step(rt, run)


# 5b. A round whose calls are settled is committed once, and the run goes on.
#
# The rows are the barrier. The chord's body, its errback, a redelivered body and rescue all come here, any number of
# times, early or late: a round that is not settled is left alone, one that is passed is left alone, and the checkpoint
# is a unique row. The checkpoint rides in the run's next commit, the one that records the reply made from these
# results: until then the results are where they always are, in the rows of the calls.


def commit_round(rt: Runtime, run_id: str, step: int) -> list[Intent]:
    with rt.store.read() as tx:
        run = runs.load(tx, run_id)
    if run is None or not _is_due(run, step):
        return []
    return transitions.next_step(rt, run)


def _is_due(run: Run, step: int) -> bool:
    return (
        run.status is RunStatus.RUNNING
        and run.phase is not Phase.INFERENCE
        and run.step == step
        and run.next_inference is not None
    )
