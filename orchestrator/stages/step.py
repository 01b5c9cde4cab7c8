"""Beside the line: the consumer of a stepped run does something with it, or has said before that it shall go on."""

from __future__ import annotations

from chordage.orchestrator import stepping
from chordage.orchestrator.core.intents import Intent
from chordage.orchestrator.runtime import Runtime
from chordage.orchestrator.stepping import Stepping, StepRequest


def step(rt: Runtime, request: StepRequest) -> tuple[Stepping, list[Intent]]:
    return stepping.carry_out(rt, request)


def step_on(rt: Runtime, run_id: str) -> list[Intent]:
    return stepping.step_on(rt, run_id)
