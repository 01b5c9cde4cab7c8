"""What was asked about a call, and who answered what and when."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from chordage.orchestrator.core.records import Call
from chordage.orchestrator.core.suspending import Action, OnExpiry, ResumeMode, SuspensionStatus, Why
from chordage.orchestrator.store import approvals
from chordage.orchestrator.store.approvals import SuspensionRow
from chordage.orchestrator.store.database import Tx


@dataclass(frozen=True, kw_only=True, slots=True)
class AnswerView:
    id: str
    action: Action
    payload: Any
    edited_args: dict[str, Any] | None
    reason: str | None
    source: str  # the way it came in
    created_at: datetime
    applied_at: datetime | None  # when the run took it up


@dataclass(frozen=True, kw_only=True, slots=True)
class QuestionView:
    id: str
    why: Why
    prompt: str
    schema: dict[str, Any] | None
    resume_mode: ResumeMode
    status: SuspensionStatus
    created_at: datetime
    expires_at: datetime | None
    on_expiry: OnExpiry
    overdue: bool
    answer: AnswerView | None

    @property
    def is_child(self) -> bool:
        """Nobody is asked: a sub-agent is at work."""
        return self.why is Why.CHILD


def of_calls(tx: Tx, calls: Iterable[Call]) -> dict[str, QuestionView]:
    """The newest question about each of these calls, by the id of the suspension."""
    return by_id(tx, [call.suspension_id for call in calls if call.suspension_id is not None])


def by_id(tx: Tx, suspension_ids: Collection[str]) -> dict[str, QuestionView]:
    return {row["id"]: _question(row) for row in approvals.with_answers(tx, suspension_ids)}


def _question(row: SuspensionRow) -> QuestionView:
    return QuestionView(
        id=row["id"], why=Why(row["why"]), prompt=row["prompt"], schema=row["schema"],
        resume_mode=ResumeMode(row["resume_mode"]), status=SuspensionStatus(row["status"]),
        created_at=row["created_at"], expires_at=row["expires_at"], on_expiry=OnExpiry(row["on_expiry"]),
        overdue=row["status"] == SuspensionStatus.OPEN.value and row["escalated_at"] is not None,
        answer=_answer(row) if row["answer_id"] is not None else None,
    )  # fmt: skip


def _answer(row: SuspensionRow) -> AnswerView:
    return AnswerView(
        id=row["answer_id"], action=Action(row["answer_action"]), payload=row["answer_payload"],
        edited_args=row["answer_edited_args"], reason=row["answer_reason"], source=row["answer_source"],
        created_at=row["answer_created_at"], applied_at=row["answer_applied_at"],
    )  # fmt: skip
