"""What a strategy may ask for, and what it is shown to decide on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from chordage.orchestrator.core.model import Reply
from chordage.orchestrator.core.planning.plan import Command, PlanDecision
from chordage.orchestrator.core.planning.records import PlanRecord
from chordage.orchestrator.core.planning.state import Planning
from chordage.orchestrator.core.reasons import Ending


@dataclass(frozen=True, kw_only=True, slots=True)
class View:
    """A run at the moment of a decision: the reply that has just come, or none when a round has settled or nothing
    was.
    """

    rounds: int
    reply: Reply | None
    max_rounds: int | None
    planning: Planning | None = None  # for strategies that plan, once the rows are read
    plan: PlanDecision | None = None  # the reply, where it was the planner that was asked


@dataclass(frozen=True, kw_only=True, slots=True)
class Infer:
    """Ask the model."""

    offer_tools: bool = True


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """Ask the planner."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RunPlan:
    """Carry out a plan. Commands that may not run have their record already, by their place in it."""

    commands: tuple[Command, ...]
    refused: Mapping[int, PlanRecord] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class RunTools:
    """Carry out what the reply asks for."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Finish:
    ending: Ending


Move = Infer | Plan | RunTools | RunPlan | Finish
