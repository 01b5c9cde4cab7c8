"""The way in for whoever is not a Celery task: what comes is stored, then the fleet is woken."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial
from typing import Any

from chordage.orchestrator import stages
from chordage.orchestrator.core.approvals import DecisionRequest
from chordage.orchestrator.core.message import TurnRequest
from chordage.orchestrator.core.stepping import StepRequest
from chordage.orchestrator.loops.hook import CommitBatcher
from chordage.orchestrator.run.approvals import Decided
from chordage.orchestrator.runtime import Runtime
from chordage.orchestrator.stages import Admitted, Result
from chordage.tasks.courier import Courier


def accept(rt: Runtime, courier: Courier, request: TurnRequest) -> Admitted:
    """Raises when the message is refused; then nothing is stored. A wake-up that gets lost is sent again by rescue."""
    admitted, intents = stages.admit(rt, request)
    courier.send(intents)
    return admitted


def accept_together(rt: Runtime, courier: Courier) -> Callable[[TurnRequest], Admitted]:
    """As `accept`, and those who come at the same moment share a commit."""

    def wake(results: Sequence[Result]) -> None:
        courier.send_in_one_trip([intent for one in results if isinstance(one, tuple) for intent in one[1]])

    batcher = CommitBatcher(partial(stages.admit_all, rt), wake)
    return lambda request: batcher(request)[0]


def step(rt: Runtime, courier: Courier, request: StepRequest) -> dict[str, Any]:
    """Raises when the verb is refused; then nothing is done. How the turn stands behind it."""
    stepping, intents = stages.step(rt, request)
    courier.send(intents)
    return asdict(stepping)


def decide(
    rt: Runtime, courier: Courier, requests: Sequence[DecisionRequest], *, source: str, space: str | None
) -> list[Decided]:
    """Raises when one of them is refused; then none is stored."""
    decided, intents = stages.decide(rt, requests, source=source, space=space)
    courier.send(intents)
    return decided
