"""Rounds of tools that a planner lays down, and an answer from what came of them."""

from __future__ import annotations

from chordage.orchestrator.core.model import Reply, StopReason
from chordage.orchestrator.core.moves import Finish, Infer, Move, Plan, RunPlan, View
from chordage.orchestrator.core.planning.deciding import Converge, Execute
from chordage.orchestrator.core.reasons import NATURAL_END
from chordage.orchestrator.strategies.react import ENDINGS, on_or_stop

ANSWER = Infer(offer_tools=False)


def plan_execute(view: View) -> Move:
    """Before the rows are read, whether the planner is asked or the answer given makes no difference: both are a model
    call.
    """
    if view.plan is not None and view.planning is not None:
        match view.planning.judge(view.plan):
            case Execute(commands=commands, refused=refused):
                return RunPlan(commands=commands, refused=refused)
            case Converge():
                return ANSWER
    if view.reply is not None:
        return _answered(view, view.reply)
    return Plan() if view.planning is None or view.planning.ends is None else ANSWER


def _answered(view: View, reply: Reply) -> Move:
    match reply.stop:
        case StopReason.PAUSE_TURN:
            return on_or_stop(view, ANSWER)
        case StopReason.TOOL_USE:
            return Finish(ending=NATURAL_END)  # none were offered
        case stop:
            return Finish(ending=ENDINGS[stop])
