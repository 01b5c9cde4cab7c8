"""The stages, in the order a turn meets them. None calls another: they meet only through intents."""

from chordage.orchestrator.run.arrivals import Admitted
from chordage.orchestrator.stages.admission import AdmissionResult, admit, admit_all
from chordage.orchestrator.stages.dispatch import dispatch

from chordage.orchestrator.stages.advance import advance  # isort: skip
from chordage.orchestrator.stages.inference import call_model  # isort: skip
from chordage.orchestrator.stages.tool_call import after_lone_call, run_batch, run_call  # isort: skip
from chordage.orchestrator.stages.advance import commit_round  # isort: skip
from chordage.orchestrator.stages.cancel import cancel_turn  # isort: skip
from chordage.orchestrator.stages.decide import decide  # isort: skip
from chordage.orchestrator.stages.compact import ask_to_compact  # isort: skip
from chordage.orchestrator.stages.step.verbs import step, step_on  # isort: skip
from chordage.orchestrator.stages.heartbeat import beat  # isort: skip
from chordage.orchestrator.stages.rescue import rescue  # isort: skip
from chordage.orchestrator.stages.project import project, rebuild_bus  # isort: skip
from chordage.orchestrator.stages.deliver import deliver, retry_dead  # isort: skip

__all__ = [
    "AdmissionResult",
    "Admitted",
    "admit",
    "admit_all",
    "advance",
    "after_lone_call",
    "ask_to_compact",
    "beat",
    "call_model",
    "cancel_turn",
    "commit_round",
    "decide",
    "deliver",
    "dispatch",
    "project",
    "rebuild_bus",
    "rescue",
    "retry_dead",
    "run_batch",
    "run_call",
    "step",
    "step_on",
]
