"""Beside the line: somebody wants the older part of a thread summed up.

Only that is written down here. The next inference on the thread sees it, also where the conversation is short, and
makes the summary first. A request that comes while a model is asked is seen by the inference after that.
"""

from __future__ import annotations

from chordage.orchestrator.core.errors import NotFound
from chordage.orchestrator.runtime import Runtime
from chordage.orchestrator.store import threads


def ask_to_compact(rt: Runtime, thread_id: str) -> None:
    with rt.store.write() as tx:
        if threads.request_compaction(tx, thread_id) is None:
            raise NotFound(f"there is no thread {thread_id!r}; `chordage threads` lists them")
