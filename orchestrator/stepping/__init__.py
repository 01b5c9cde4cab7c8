"""What the consumer of a stepped run may do with it: one transaction each, guarded by revision and key."""

from chordage.orchestrator.stepping.request import StepRequest, check_terms
from chordage.orchestrator.stepping.verbs import Stepping, carry_out, step_on

__all__ = ["StepRequest", "Stepping", "carry_out", "check_terms", "step_on"]
