"""What a strategy is made of: a pure function from a `View` of its run to a move."""

from chordage.orchestrator.core.model import Reply, StopReason
from chordage.orchestrator.core.moves import Finish, Infer, Move, Plan, RunPlan, RunTools, View
from chordage.orchestrator.core.reasons import NATURAL_END, Ending, Reason, stopped

__all__ = [
    "NATURAL_END",
    "Ending",
    "Finish",
    "Infer",
    "Move",
    "Plan",
    "Reason",
    "Reply",
    "RunPlan",
    "RunTools",
    "StopReason",
    "View",
    "stopped",
]
