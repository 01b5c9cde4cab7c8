"""What an id is the id of."""

from __future__ import annotations

from enum import StrEnum

from chordage.orchestrator.core.errors import NotFound
from chordage.orchestrator.store import reads_turns, runs, threads
from chordage.orchestrator.store.tx import Store


class Subject(StrEnum):
    TURN = "turn"
    RUN = "run"
    THREAD = "thread"


def subject_of(store: Store, some_id: str) -> Subject:
    with store.read() as tx:
        if reads_turns.is_done(tx, some_id) is not None:
            return Subject.TURN
        if runs.load(tx, some_id) is not None:
            return Subject.RUN
        if threads.exists(tx, some_id):
            return Subject.THREAD
    raise NotFound(
        f"there is no turn, run or thread {some_id!r}; `chordage turns` and `chordage threads` list what there is"
    )
