"""Not in the line of a turn: ask that the older part of a thread is summarised.

Only the request is stored here. The next inference on the thread makes the summary first, however short the
conversation is. A request that comes while a model is asked counts for the inference after it.
"""

from __future__ import annotations

from chordage.orchestrator.core.audit import Actor, Audited
from chordage.orchestrator.core.errors import NotFound
from chordage.orchestrator.run.unit import Unit
from chordage.orchestrator.runtime import Runtime
from chordage.orchestrator.store import audit, threads


def ask_to_compact(rt: Runtime, thread_id: str, *, by: Actor | None = None) -> None:
    with Unit(rt) as unit:
        if threads.request_compaction(unit.tx, thread_id) is None:
            raise NotFound(f"there is no thread {thread_id!r}; `chordage threads` lists them")
        if by is not None:
            audit.record(unit.tx, by, Audited.COMPACTED, thread_id, now=unit.now)
