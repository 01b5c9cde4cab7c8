"""How work is accepted from callers: it is stored, then the wake-ups are sent.

Each function raises when the request is refused; then nothing is stored. Rescue sends a wake-up again that gets lost.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial
from typing import Any

from chordage.orchestrator import stages
from chordage.orchestrator.core.approvals import DecisionRequest
from chordage.orchestrator.core.audit import Actor
from chordage.orchestrator.core.message import TurnRequest
from chordage.orchestrator.core.stepping import StepRequest
from chordage.orchestrator.loops.hook import CommitBatcher
from chordage.orchestrator.run.approvals import Decided
from chordage.orchestrator.runtime import Runtime
from chordage.orchestrator.stages import AdmissionResult, Admitted
from chordage.tasks.courier import Courier


def accept(rt: Runtime, courier: Courier, request: TurnRequest) -> Admitted:
    admitted, intents = stages.admit(rt, request)
    courier.send(intents)
    return admitted


def accept_together(rt: Runtime, courier: Courier) -> Callable[[TurnRequest], Admitted]:
    """As `accept`; messages that arrive at the same moment share a commit."""

    def send(results: Sequence[AdmissionResult]) -> None:
        courier.send_in_one_trip([intent for result in results if isinstance(result, tuple) for intent in result[1]])

    batcher = CommitBatcher(partial(stages.admit_all, rt), send)
    return lambda request: batcher(request)[0]


def step(rt: Runtime, courier: Courier, request: StepRequest) -> dict[str, Any]:
    """The state of the turn afterwards."""
    stepping, intents = stages.step(rt, request)
    courier.send(intents)
    return asdict(stepping)


def decide(
    rt: Runtime,
    courier: Courier,
    requests: Sequence[DecisionRequest],
    *,
    source: str,
    space: str | None,
    by: Actor | None = None,
) -> list[Decided]:
    """All of them or none. `by`: by default the source says who decides."""
    decided, intents = stages.decide(rt, requests, source=source, space=space, by=by)
    courier.send(intents)
    return decided
