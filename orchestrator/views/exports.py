"""A run as one document: its turn, its steps and calls, whole results, takeovers, the trace, and its sub-agents.

The document depends on the rows alone, so that of a run that is done is the same each time.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from chordage.orchestrator.store import calls
from chordage.orchestrator.store.database import Store
from chordage.orchestrator.views.processes import Takeover, takeovers
from chordage.orchestrator.views.runs import RunView, ToolRound
from chordage.orchestrator.views.runs import run as load_run
from chordage.orchestrator.views.trace import TraceView
from chordage.orchestrator.views.trace import trace as load_trace
from chordage.orchestrator.views.turns import TurnView
from chordage.orchestrator.views.turns import turn as load_turn

FORMAT = "chordage.run/1"
RUNS_MAX = 50  # of sub-agents
RESULTS_MAX = 8_000_000  # characters of whole results, over all runs


@dataclass(frozen=True, kw_only=True, slots=True)
class FullResult:
    """Of a call whose `content` was cut for the model."""

    call_id: str
    text: str


@dataclass(frozen=True, kw_only=True, slots=True)
class ExportedRun:
    turn: TurnView
    run: RunView
    takeovers: tuple[Takeover, ...]
    results: tuple[FullResult, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class RunExport:
    """`left_out`: the ids of sub-agents' runs, and of calls whose whole result did not fit; each can be read alone."""

    format: str
    root: ExportedRun
    trace: TraceView
    children: tuple[ExportedRun, ...]
    left_out: tuple[str, ...]


def export(store: Store, run_id: str, *, space: str | None = None) -> RunExport:
    """Raises NotFound, also outside of that space."""
    first = load_run(store, run_id, space=space)
    exported: list[ExportedRun] = []
    left_out: list[str] = []
    room = RESULTS_MAX
    waiting = deque([first])
    known = 1
    while waiting:
        run = waiting.popleft()
        results, cut = _results(store, run.run_id, room)
        room -= sum(len(result.text) for result in results)
        left_out += cut
        exported.append(
            ExportedRun(
                turn=load_turn(store, run.turn_id), run=run, results=results,
                takeovers=takeovers(store, [run.run_id]).get(run.run_id, ()),
            )
        )  # fmt: skip
        for child in _children(run):
            if known > RUNS_MAX:
                left_out.append(child)
            else:
                waiting.append(load_run(store, child))
                known += 1
    return RunExport(
        format=FORMAT, root=exported[0], trace=load_trace(store, first.turn_id), children=tuple(exported[1:]),
        left_out=tuple(left_out),
    )  # fmt: skip


def _children(run: RunView) -> list[str]:
    calls_of_run = [call for step in run.steps if isinstance(step, ToolRound) for call in step.calls]
    return [call.child.run_id for call in calls_of_run if call.child is not None and call.child.run_id is not None]


def _results(store: Store, run_id: str, room: int) -> tuple[tuple[FullResult, ...], list[str]]:
    with store.read() as tx:
        sizes = calls.sizes_of_full_results(tx, run_id)
        fitting: list[str] = []
        for call_id, size in sizes:
            if size <= room:
                fitting.append(call_id)
                room -= size
        texts = calls.full_results(tx, fitting)
    results = tuple(FullResult(call_id=call_id, text=texts[call_id]) for call_id in fitting)
    return results, [call_id for call_id, _size in sizes if call_id not in texts]
