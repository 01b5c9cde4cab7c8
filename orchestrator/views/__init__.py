"""What is shown of the database: to people on the terminal, over HTTP, and to tasks. Views only read."""

from chordage.orchestrator.core.approvals import answers
from chordage.orchestrator.store.pages import PageQuery
from chordage.orchestrator.views.agents import (
    WINDOW,
    agent,
    agent_diff,
    agent_versions,
    agents,
    digest_of,
    fleet_versions,
    tool_outcomes,
)
from chordage.orchestrator.views.approvals import (
    OpenQuestion,
    agents_asking,
    are_for_callers,
    count_open_questions,
    inbox,
    open_question_by_id,
    question,
    schema_asked,
)
from chordage.orchestrator.views.audit import AuditPage, audit_page
from chordage.orchestrator.views.bulk import BulkView, bulk_job, bulk_jobs, bulk_refusals, bulk_view
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
from chordage.orchestrator.views.comparison import compare
from chordage.orchestrator.views.deliveries import bus, deliveries, delivery, delivery_of
from chordage.orchestrator.views.exports import RunExport, export
from chordage.orchestrator.views.groups import groups
from chordage.orchestrator.views.hooks import HookView, hooks
from chordage.orchestrator.views.ids import IdKind, full_id, identify
from chordage.orchestrator.views.keys import KeyView, keys
from chordage.orchestrator.views.metrics import FleetMetrics
from chordage.orchestrator.views.model_view import PromptView, prompt_at
from chordage.orchestrator.views.pages import (
    RunLine,
    ViewPage,
    delivery_page,
    history_page,
    run_marks,
    run_page,
    thread_in_reach,
    thread_page,
    turn_page,
)
from chordage.orchestrator.views.processes import processes
from chordage.orchestrator.views.pulse import standing_now, standing_work
from chordage.orchestrator.views.requests import retry_of
from chordage.orchestrator.views.run_events import (
    check_thread,
    ended_by,
    first_event,
    fleet_events,
    is_known,
    new_results,
    open_run_on,
    place_of_turn,
    replied_so_far,
    run_events,
    settled_position,
    standing,
    thread_events,
    turn_notes,
    turn_of_run,
    waiting_note,
)
from chordage.orchestrator.views.runs import run
from chordage.orchestrator.views.saved_views import known_tools, saved_views
from chordage.orchestrator.views.stepped import as_json, driven, stepped
from chordage.orchestrator.views.threads import history, thread, thread_details, threads
from chordage.orchestrator.views.trace import trace
from chordage.orchestrator.views.turn_search import (
    ListedTurn,
    Throughput,
    TurnFilter,
    TurnPage,
    TurnState,
    search_turns,
    throughput,
)
from chordage.orchestrator.views.turns import TurnView, is_done, turn, turns
from chordage.orchestrator.views.usage import total, usage_report
from chordage.orchestrator.views.wait_facts import WaitSources
from chordage.orchestrator.views.web_sessions import SessionPage, session_page
from chordage.orchestrator.views.why import WhyView, waiting, why, whys

__all__ = [
    "MAX_PART",
    "WINDOW",
    "AuditPage",
    "BulkView",
    "FleetMetrics",
    "HookView",
    "IdKind",
    "KeyView",
    "ListedTurn",
    "OpenQuestion",
    "PageQuery",
    "PromptView",
    "ResultView",
    "RunExport",
    "RunLine",
    "SessionPage",
    "Throughput",
    "TurnFilter",
    "TurnPage",
    "TurnState",
    "TurnView",
    "ViewPage",
    "WaitSources",
    "WhyView",
    "agent",
    "agent_diff",
    "agent_versions",
    "agents",
    "agents_asking",
    "answers",
    "are_for_callers",
    "as_json",
    "audit_page",
    "bulk_job",
    "bulk_jobs",
    "bulk_refusals",
    "bulk_view",
    "bus",
    "channel_row",
    "channels",
    "check_thread",
    "compare",
    "count_open_questions",
    "deliveries",
    "delivery",
    "delivery_of",
    "delivery_page",
    "digest_of",
    "driven",
    "ended_by",
    "export",
    "first_event",
    "fleet_events",
    "fleet_versions",
    "full_id",
    "groups",
    "history",
    "history_page",
    "hooks",
    "identify",
    "inbox",
    "is_call",
    "is_done",
    "is_known",
    "keys",
    "known_tools",
    "new_results",
    "open_question_by_id",
    "open_run_on",
    "place_of_turn",
    "processes",
    "prompt_at",
    "question",
    "queued_children",
    "replied_so_far",
    "result",
    "result_parts",
    "retry_of",
    "run",
    "run_events",
    "run_marks",
    "run_page",
    "saved_views",
    "schema_asked",
    "search_turns",
    "session_page",
    "settled_position",
    "shortened_results",
    "standing",
    "standing_now",
    "standing_work",
    "stepped",
    "thread",
    "thread_details",
    "thread_events",
    "thread_in_reach",
    "thread_page",
    "threads",
    "throughput",
    "tool_outcomes",
    "total",
    "trace",
    "turn",
    "turn_notes",
    "turn_of_run",
    "turn_page",
    "turns",
    "usage_report",
    "waiting",
    "waiting_note",
    "why",
    "whys",
]
