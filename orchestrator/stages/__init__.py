"""The stages. None calls another: they meet only through intents. docs/explanation/architecture.md has their order."""

from chordage.orchestrator.run.arrivals import Admitted
from chordage.orchestrator.stages.admission import AdmissionResult, admit, admit_all
from chordage.orchestrator.stages.advance import advance, commit_round
from chordage.orchestrator.stages.cancel import cancel_turn
from chordage.orchestrator.stages.compact import ask_to_compact
from chordage.orchestrator.stages.decide import decide
from chordage.orchestrator.stages.deliver import deliver, retry_dead
from chordage.orchestrator.stages.dispatch import dispatch
from chordage.orchestrator.stages.heartbeat import beat
from chordage.orchestrator.stages.inference import call_model
from chordage.orchestrator.stages.measure import share_durations
from chordage.orchestrator.stages.presence import end_presence, left_behind, look_for_gone, show_presence
from chordage.orchestrator.stages.project import project, rebuild_bus
from chordage.orchestrator.stages.rescue import rescue, rescue_left
from chordage.orchestrator.stages.step.verbs import step, step_on
from chordage.orchestrator.stages.tool_call import after_lone_call, call_here, run_batch

__all__ = [
    "AdmissionResult",
    "Admitted",
    "admit",
    "admit_all",
    "advance",
    "after_lone_call",
    "ask_to_compact",
    "beat",
    "call_here",
    "call_model",
    "cancel_turn",
    "commit_round",
    "decide",
    "deliver",
    "dispatch",
    "end_presence",
    "left_behind",
    "look_for_gone",
    "project",
    "rebuild_bus",
    "rescue",
    "rescue_left",
    "retry_dead",
    "run_batch",
    "share_durations",
    "show_presence",
    "step",
    "step_on",
]
