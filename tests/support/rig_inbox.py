"""The person at a rig's inbox: what is asked, and answers as they come in by HTTP."""

from __future__ import annotations

from typing import Any

from chordage.orchestrator import stages
from chordage.orchestrator.run.approvals import Decided
from chordage.tasks.courier import Courier
from chordage.tasks.schema import decisions_from
from support.rig import Rig


def inbox(rig: Rig) -> list[dict[str, Any]]:
    return sorted(rig.rows("suspensions", status="open"), key=lambda row: (row["created_at"], row["id"]))


def question_of(rig: Rig, tool: str) -> dict[str, Any]:
    """The one open question of a tool."""
    (row,) = [row for row in inbox(rig) if row["tool"] == tool]
    return row


def answer(rig: Rig, row: dict[str, Any], **fields: Any) -> Decided:
    """`answer(rig, row, action="cancel", reason="no")`; without an action it is a yes."""
    given = {"target": row["id"], "action": "resume", "decision_key": f"key-{row['id']}", **fields}
    (decided,), intents = stages.decide(rig.runtime, decisions_from([given]), source="rig")
    Courier(rig.app).send(intents)
    return decided
