"""What was said on a thread, by whom, in order, with the calls that a reply asked for and their results."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from chordage.orchestrator.core.errors import NotFound
from chordage.orchestrator.core.records import Checkpoint
from chordage.orchestrator.store import calls as call_rows
from chordage.orchestrator.store import threads
from chordage.orchestrator.store.database import Store
from chordage.orchestrator.store.threads import ThreadRow
from chordage.orchestrator.views import family, questions
from chordage.orchestrator.views.calls import CallView, by_round


class Role(StrEnum):
    USER = "user"
    ASSISTANT = "assistant"


@dataclass(frozen=True, kw_only=True, slots=True)
class Remark:
    id: int
    at: datetime
    role: Role
    name: str  # who sent the message, or the agent that replied
    text: str
    run_id: str
    step: int
    turn_id: str | None  # of a message
    model: str | None  # of a reply
    calls: tuple[CallView, ...]  # that the reply asked for


def history(store: Store, thread_id: str, *, limit: int = 100, before: int | None = None) -> list[Remark]:
    """The last remarks, or the last before the remark `before`; oldest of them first."""
    with store.read() as tx:
        rows = threads.messages(tx, thread_id, limit=limit, before=before)
        if not rows and not threads.exists(tx, thread_id):
            raise NotFound(f"there is no thread {thread_id!r}; `chordage threads` lists them")
        asked = call_rows.of_rounds(tx, (_round_of(row) for row in rows if row["body"].get("asks")))
        questions_asked = questions.of_calls(tx, asked)
        children = family.of_calls(tx, asked, questions_asked)
    rounds = by_round(asked, questions_asked, children)
    return [_remark(row, rounds.get(_round_of(row), ())) for row in rows]


def _round_of(row: ThreadRow) -> tuple[str, int]:
    return row["run_id"], row["step"] + 1


def _remark(row: ThreadRow, calls: tuple[CallView, ...]) -> Remark:
    body = row["body"]
    is_message = row["kind"] == Checkpoint.USER_MESSAGE.value
    return Remark(
        id=row["id"],
        at=row["at"],
        role=Role.USER if is_message else Role.ASSISTANT,
        name=body["sender"] if is_message else row["agent"],
        text=body["text"],
        run_id=row["run_id"],
        step=row["step"],
        turn_id=body["turn"] if is_message else None,
        model=None if is_message else body["model"],
        calls=() if is_message else calls,
    )
