"""Sub-agents as they are shown: under the call that asked, and what of a tree has not started."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from chordage.orchestrator.core.records import Call
from chordage.orchestrator.core.status import Disposition, TurnStatus
from chordage.orchestrator.store import children
from chordage.orchestrator.store.database import Store, Tx
from chordage.orchestrator.views.questions import QuestionView


@dataclass(frozen=True, kw_only=True, slots=True)
class ChildView:
    """The turn of a sub-agent."""

    turn_id: str
    thread_id: str
    agent: str
    run_id: str | None
    status: TurnStatus
    disposition: Disposition | None


def of_calls(tx: Tx, calls: Iterable[Call], questions: dict[str, QuestionView]) -> dict[str, ChildView]:
    """By call. Nothing is asked of the database where no call has waited for a child."""
    asked = [call.id for call in calls if call.suspension_id in questions and questions[call.suspension_id].is_child]
    return {row["parent_call"]: _view(row) for row in children.of_calls(tx, asked)} if asked else {}


def _view(row: dict[str, str]) -> ChildView:
    how = row["disposition"]
    return ChildView(
        turn_id=row["id"], thread_id=row["thread_id"], agent=row["agent"], run_id=row["run_id"],
        status=TurnStatus(row["status"]), disposition=Disposition(how) if how else None,
    )  # fmt: skip


def queued_children(store: Store, root_run: str) -> list[tuple[str, str]]:
    """Turns of a tree that have not started, each with its thread."""
    with store.read() as tx:
        return children.queued_below(tx, root_run)
