"""What a tool may read of the results of earlier calls: those of its own thread, in parts."""

from __future__ import annotations

from dataclasses import dataclass

from chordage.orchestrator.core.errors import NotFound
from chordage.orchestrator.gateways.ports import ResultPart
from chordage.orchestrator.runtime import Runtime
from chordage.orchestrator.store import calls


@dataclass(frozen=True, kw_only=True, slots=True)
class Desk:
    """Implements `ports.Results`."""

    rt: Runtime
    thread_id: str

    def part(self, call_id: str, offset: int, length: int) -> ResultPart:
        with self.rt.store.read() as tx:
            found = calls.result_part(tx, call_id, offset, length)
        if found is None or found.thread_id != self.thread_id:
            raise NotFound(f"there is no result of a call {call_id!r} in this conversation")
        return ResultPart(text=found.text, total=found.total)
