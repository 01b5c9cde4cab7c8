"""3. A run without a new reply continues: its round is settled, or rescue has sent for it.

For a round the rows are the barrier. The chord's body, a redelivered body and rescue all come here, any
number of times, early or late: a round that is not settled, or that is recorded, is left alone. Its checkpoint is a
unique row and is written with the run's next commit, which records the reply made from these results. Until then the
results are where they always are, in the rows of the calls.
"""

from __future__ import annotations

from chordage.orchestrator.core.intents import Intent
from chordage.orchestrator.core.records import History, Phase, Run
from chordage.orchestrator.core.status import RunStatus
from chordage.orchestrator.run import transitions
from chordage.orchestrator.runtime import Runtime
from chordage.orchestrator.store import runs


def advance(rt: Runtime, run_id: str, seen: Run | None = None, past: History | None = None) -> list[Intent]:
    run = seen or _load_running(rt, run_id)
    return [] if run is None else transitions.next_step(rt, run, past)


def commit_round(rt: Runtime, run_id: str, step: int) -> list[Intent]:
    """The entry of a chord's body."""
    run = _load_running(rt, run_id)
    if run is None or run.phase is Phase.INFERENCE or run.step != step:
        return []
    return transitions.next_step(rt, run)


def _load_running(rt: Runtime, run_id: str) -> Run | None:
    with rt.store.read() as tx:
        run = runs.load(tx, run_id)
    return run if run is not None and run.status is RunStatus.RUNNING else None
