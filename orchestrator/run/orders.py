"""What a tool is called with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from chordage.orchestrator.core import drill
from chordage.orchestrator.core.errors import NotFound
from chordage.orchestrator.core.message import prefix
from chordage.orchestrator.core.records import Call, NewCall, idempotency_key
from chordage.orchestrator.gateways.ports import CallOrder, ResultPage
from chordage.orchestrator.run import task_file
from chordage.orchestrator.run.unit import Unit
from chordage.orchestrator.runtime import Runtime
from chordage.orchestrator.store import calls, drills

CANARIES = prefix(drill.SPACE)


@dataclass(frozen=True, kw_only=True, slots=True)
class StoredResults:
    """What a tool may read of the results of earlier calls: those of its own thread, in parts. Implements
    `ports.ResultReader`.
    """

    rt: Runtime
    thread_id: str

    def part(self, call_id: str, offset: int, length: int) -> ResultPage:
        with self.rt.store.read() as tx:
            part = calls.result_part(tx, call_id, offset, length)
        if part is None or part.thread_id != self.thread_id:
            raise NotFound(f"there is no result of a call {call_id!r} in this conversation")
        return ResultPage(text=part.text, total=part.total)


@dataclass(frozen=True, kw_only=True, slots=True)
class StoredExecutions:
    """Implements `ports.Executions`. In a transaction of its own: what the tool does later leaves the row there."""

    rt: Runtime
    run_id: str
    call_id: str

    def add(self) -> None:
        with Unit(self.rt, self.rt.store.single) as unit:
            drills.add_execution(unit.tx, run_id=self.run_id, call_id=self.call_id, worker=self.rt.worker, at=unit.now)


def order_of(
    rt: Runtime, call: Call | NewCall, run_id: str, thread_id: str, *, attempt: int = 1, decision: Any = None
) -> CallOrder:
    return CallOrder(
        call_id=call.id, run_id=run_id, thread_id=thread_id, tool=call.tool, arguments=call.arguments,
        idempotency_key=idempotency_key(run_id, call), attempt=attempt, decision=decision,
        task=None if rt.work is None else task_file.of_thread(rt, thread_id),
        results=StoredResults(rt=rt, thread_id=thread_id),
        executions=StoredExecutions(rt=rt, run_id=run_id, call_id=call.id) if thread_id.startswith(CANARIES) else None,
    )  # fmt: skip
