"""What is shown of the database: to people on the terminal, over HTTP, and to tasks. Views only read."""

from chordage.orchestrator.core.approvals import answers
from chordage.orchestrator.views.approvals import OpenQuestion, inbox, schema_asked
from chordage.orchestrator.views.calls import (
    MAX_PART,
    ResultView,
    is_call,
    queued_children,
    result,
    result_parts,
    shortened_results,
)
from chordage.orchestrator.views.channels import channel_row, channels
from chordage.orchestrator.views.deliveries import bus, deliveries, delivery_of
from chordage.orchestrator.views.groups import groups
from chordage.orchestrator.views.ids import IdKind, full_id, identify
from chordage.orchestrator.views.processes import processes
from chordage.orchestrator.views.pulse import standing_work
from chordage.orchestrator.views.runs import run
from chordage.orchestrator.views.stepped import as_json, driven, stepped
from chordage.orchestrator.views.threads import history, thread, threads
from chordage.orchestrator.views.trace import trace
from chordage.orchestrator.views.turns import TurnView, is_done, turn, turns

__all__ = [
    "MAX_PART",
    "IdKind",
    "OpenQuestion",
    "ResultView",
    "TurnView",
    "answers",
    "as_json",
    "bus",
    "channel_row",
    "channels",
    "deliveries",
    "delivery_of",
    "driven",
    "full_id",
    "groups",
    "history",
    "identify",
    "inbox",
    "is_call",
    "is_done",
    "processes",
    "queued_children",
    "result",
    "result_parts",
    "run",
    "schema_asked",
    "shortened_results",
    "standing_work",
    "stepped",
    "thread",
    "threads",
    "trace",
    "turn",
    "turns",
]
