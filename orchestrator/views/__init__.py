"""What the outside is shown of the truth. Read-only: a view changes nothing and decides nothing."""

from chordage.orchestrator.views.calls import CallView
from chordage.orchestrator.views.history import Remark, history
from chordage.orchestrator.views.runs import AttemptView, InferenceStep, RunView, Step, ToolRound, run
from chordage.orchestrator.views.subjects import Subject, subject_of
from chordage.orchestrator.views.threads import ThreadView, thread, threads
from chordage.orchestrator.views.turns import TurnLine, TurnView, is_done, turn, turns

__all__ = [
    "AttemptView",
    "CallView",
    "InferenceStep",
    "Remark",
    "RunView",
    "Step",
    "Subject",
    "ThreadView",
    "ToolRound",
    "TurnLine",
    "TurnView",
    "history",
    "is_done",
    "run",
    "subject_of",
    "thread",
    "threads",
    "turn",
    "turns",
]
