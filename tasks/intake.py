"""The way in for whoever is not a Celery task: a turn is stored, then the fleet is woken."""

from __future__ import annotations

from chordage.orchestrator import stages
from chordage.orchestrator.core.message import TurnRequest
from chordage.orchestrator.runtime import Runtime
from chordage.orchestrator.stages import Admitted
from chordage.tasks.courier import Courier


def accept(rt: Runtime, courier: Courier, request: TurnRequest) -> Admitted:
    """Raises when the message is refused; then nothing is stored. A wake-up that gets lost is sent again by rescue."""
    admitted, intents = stages.admit(rt, request)
    courier.send(intents)
    return admitted
