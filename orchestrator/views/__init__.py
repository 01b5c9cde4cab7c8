"""What the outside is shown of the truth. Read-only: a view changes nothing and decides nothing."""

from chordage.orchestrator.views.calls import CallView
from chordage.orchestrator.views.channels import ChannelView, RefusedMessage, channel_row, channels
from chordage.orchestrator.views.deliveries import BusView, DeliveryView, bus, deliveries, delivery_of
from chordage.orchestrator.views.family import ChildView, queued_children
from chordage.orchestrator.views.groups import GroupView, TenantView, groups
from chordage.orchestrator.views.hints import answers
from chordage.orchestrator.views.history import Remark, history
from chordage.orchestrator.views.inbox import OpenQuestion, inbox, schema_asked
from chordage.orchestrator.views.marks import Mark, MarkKind
from chordage.orchestrator.views.questions import AnswerView, QuestionView
from chordage.orchestrator.views.results import LONGEST as LONGEST_PART
from chordage.orchestrator.views.results import ResultView, is_call, result, whole_result, with_full_results
from chordage.orchestrator.views.runs import RunView, run
from chordage.orchestrator.views.stepped import HeldCall, HeldReply, SteppedView, as_json, driven, spoken, stepped
from chordage.orchestrator.views.steps import (
    AttemptView,
    CompactionStep,
    InferenceStep,
    Interruption,
    PlanView,
    PushedStep,
    ReplayStep,
    SaidStep,
    SteeredStep,
    Step,
    StepStatus,
    ToolRound,
    WaitStep,
)
from chordage.orchestrator.views.subjects import Subject, subject_of, whole
from chordage.orchestrator.views.threads import ThreadView, thread, threads
from chordage.orchestrator.views.trace import TraceView, trace
from chordage.orchestrator.views.turns import TurnLine, TurnView, is_done, turn, turns

__all__ = [
    "LONGEST_PART",
    "AnswerView",
    "AttemptView",
    "BusView",
    "CallView",
    "ChannelView",
    "ChildView",
    "CompactionStep",
    "DeliveryView",
    "GroupView",
    "HeldCall",
    "HeldReply",
    "InferenceStep",
    "Interruption",
    "Mark",
    "MarkKind",
    "OpenQuestion",
    "PlanView",
    "PushedStep",
    "QuestionView",
    "RefusedMessage",
    "Remark",
    "ReplayStep",
    "ResultView",
    "RunView",
    "SaidStep",
    "SteeredStep",
    "Step",
    "StepStatus",
    "SteppedView",
    "Subject",
    "TenantView",
    "ThreadView",
    "ToolRound",
    "TraceView",
    "TurnLine",
    "TurnView",
    "WaitStep",
    "answers",
    "as_json",
    "bus",
    "channel_row",
    "channels",
    "deliveries",
    "delivery_of",
    "driven",
    "groups",
    "history",
    "inbox",
    "is_call",
    "is_done",
    "queued_children",
    "result",
    "run",
    "schema_asked",
    "spoken",
    "stepped",
    "subject_of",
    "thread",
    "threads",
    "trace",
    "turn",
    "turns",
    "whole",
    "whole_result",
    "with_full_results",
]
