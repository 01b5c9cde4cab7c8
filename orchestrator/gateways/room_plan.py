"""The [plan] table of an agent file: how an agent plans whose strategy is one that does."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TypeVar

from chordage.orchestrator.core.agent import OnPlannerError, OutOfScope, PlanSpec
from chordage.orchestrator.core.errors import RoomError
from chordage.orchestrator.gateways import room_tools
from chordage.orchestrator.gateways.room_table import FLAG, SECONDS, SOME, TEXT, Table
from chordage.orchestrator.plugins.planners import planner_of

E = TypeVar("E", bound=StrEnum)


def read(table: Table, room: Path) -> PlanSpec:
    """What is wrong is noted in the table's source."""
    plan, usual = table.inner("plan"), PlanSpec()
    found = PlanSpec(
        model=plan.take("model", TEXT, usual.model),
        max_rounds=plan.take("max_rounds", SOME, usual.max_rounds),
        timeout=plan.take("timeout", SECONDS, usual.timeout),
        out_of_scope=plan.choose("out_of_scope", OutOfScope, usual.out_of_scope),
        on_error=plan.choose("on_error", OnPlannerError, usual.on_error),
        planner=_planner(plan, room),
        executor=plan.take("executor", TEXT, usual.executor),
        history=plan.take("history", FLAG, usual.history),
    )
    plan.refuse_the_rest()
    return found


def _planner(plan: Table, room: Path) -> str | None:
    name: str | None = plan.take("planner", TEXT, None)
    if name is None:
        return None
    room_tools.make_importable(room)
    try:
        planner_of(name)
    except RoomError as error:
        plan.complain("planner", str(error))
    return name
