"""The checkpoint of a round of tool calls. It is written with the next commit of its run."""

from __future__ import annotations

from collections.abc import Sequence

from chordage.orchestrator.core.records import Answer, Call, Checkpoint, Phase, Run
from chordage.orchestrator.run.unit import Unit
from chordage.orchestrator.store import calls, journal
from chordage.orchestrator.store.database import Tx


def settled_calls(tx: Tx, run: Run, known: Sequence[Answer] | None = None) -> Sequence[Answer | Call]:
    """The calls of the round or replay at which the run is. `known`: the results of its thread, already read."""
    match run.phase:
        case Phase.TOOL_ROUND if known is not None and not run.suspended:
            return [call for call in known if call.run_id == run.id and call.step == run.step]
        case Phase.TOOL_ROUND:
            joined = calls.of_replay(tx, run.id, run.step) if run.suspended else []
            return [*calls.of_step(tx, run.id, run.step), *joined]
        case Phase.REPLAY:
            return calls.of_replay(tx, run.id, run.step)
        case Phase.INFERENCE | Phase.HELD:
            return []


def of_round(unit: Unit, run: Run, settled: Sequence[Answer | Call] | None = None) -> list[journal.Row]:
    """`settled`: what `settled_calls` found, where it is at hand."""
    settled = settled_calls(unit.tx, run) if settled is None else settled
    if not settled:
        return []
    body = {"calls": [{"id": call.id, "status": call.status.value, "code": call.code} for call in settled]}
    return [journal.entry(run.thread_id, run.id, run.step, Checkpoint.TOOL_RESULTS, body, unit.now)]
