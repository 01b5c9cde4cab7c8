"""The stages. None calls another: they meet only through intents. docs/explanation/architecture.md has their order."""

from chordage.orchestrator.run.agent_versions import adopt as adopt_version
from chordage.orchestrator.run.agent_versions import note_all as note_versions
from chordage.orchestrator.run.arrivals import Admitted
from chordage.orchestrator.stages.admission import AdmissionResult, admit, admit_all
from chordage.orchestrator.stages.advance import advance, commit_round
from chordage.orchestrator.stages.budgets import set_budget
from chordage.orchestrator.stages.bulk import continue_bulk, count_bulk, start_bulk, stop_bulk
from chordage.orchestrator.stages.cancel import cancel_turn
from chordage.orchestrator.stages.compact import ask_to_compact
from chordage.orchestrator.stages.count import count_journal
from chordage.orchestrator.stages.decide import decide
from chordage.orchestrator.stages.deliver import deliver, retry_dead
from chordage.orchestrator.stages.dispatch import dispatch
from chordage.orchestrator.stages.erase import (
    Erased,
    ErasureSubject,
    count_erasure,
    erase,
    sender_to_erase,
    thread_to_erase,
)
from chordage.orchestrator.stages.export import export_traces
from chordage.orchestrator.stages.fork import Fork, ForkEdits, ForkPoint, fork_request, fork_run, fork_thread
from chordage.orchestrator.stages.heartbeat import beat
from chordage.orchestrator.stages.inference import call_model
from chordage.orchestrator.stages.keys import (
    create_key,
    find_key,
    has_valid_key,
    make_link,
    record_use,
    revoke_key,
    session_secret,
    use_link,
)
from chordage.orchestrator.stages.logins import (
    TICKET_LASTS,
    begin_session,
    end_session,
    end_sessions,
    leave_session,
    make_ticket,
    session_is_open,
    take_ticket,
)
from chordage.orchestrator.stages.measure import share_durations
from chordage.orchestrator.stages.presence import end_presence, left_behind, look_for_gone, show_presence
from chordage.orchestrator.stages.project import project, rebuild_bus
from chordage.orchestrator.stages.prune import count_old_turns, prune
from chordage.orchestrator.stages.question_links import decide_by_link, make_question_link, open_question_link
from chordage.orchestrator.stages.queued_turns import change_queued_turn
from chordage.orchestrator.stages.rescue import rescue, rescue_left
from chordage.orchestrator.stages.saved_views import delete_view, save_view
from chordage.orchestrator.stages.step.verbs import step, step_on
from chordage.orchestrator.stages.tool_call import after_lone_call, call_here, run_batch

__all__ = [
    "TICKET_LASTS",
    "AdmissionResult",
    "Admitted",
    "Erased",
    "ErasureSubject",
    "Fork",
    "ForkEdits",
    "ForkPoint",
    "admit",
    "admit_all",
    "adopt_version",
    "advance",
    "after_lone_call",
    "ask_to_compact",
    "beat",
    "begin_session",
    "call_here",
    "call_model",
    "cancel_turn",
    "change_queued_turn",
    "commit_round",
    "continue_bulk",
    "count_bulk",
    "count_erasure",
    "count_journal",
    "count_old_turns",
    "create_key",
    "decide",
    "decide_by_link",
    "delete_view",
    "deliver",
    "dispatch",
    "end_presence",
    "end_session",
    "end_sessions",
    "erase",
    "export_traces",
    "find_key",
    "fork_request",
    "fork_run",
    "fork_thread",
    "has_valid_key",
    "leave_session",
    "left_behind",
    "look_for_gone",
    "make_link",
    "make_question_link",
    "make_ticket",
    "note_versions",
    "open_question_link",
    "project",
    "prune",
    "rebuild_bus",
    "record_use",
    "rescue",
    "rescue_left",
    "retry_dead",
    "revoke_key",
    "run_batch",
    "save_view",
    "sender_to_erase",
    "session_is_open",
    "session_secret",
    "set_budget",
    "share_durations",
    "show_presence",
    "start_bulk",
    "step",
    "step_on",
    "stop_bulk",
    "take_ticket",
    "thread_to_erase",
    "use_link",
]
