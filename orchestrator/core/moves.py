"""The input and the output of a strategy."""

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
    """A run at the moment of a decision. `reply` is the one that has just come; None at the start and after a round."""

    rounds: int
    reply: Reply | None
    max_rounds: int | None
    planning: Planning | None = None  # for strategies that plan
    plan: PlanDecision | None = None  # of a reply from the planner


@dataclass(frozen=True, kw_only=True, slots=True)
class Infer:
    """Ask the model."""

    offer_tools: bool = True


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """Ask the planner."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RunPlan:
    """Carry out a plan. `refused`: the records of commands that may not run, by their place in the plan."""

    commands: tuple[Command, ...]
    refused: Mapping[int, PlanRecord] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class RunTools:
    """Carry out the calls of the reply."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Finish:
    ending: Ending


Move = Infer | Plan | RunTools | RunPlan | Finish
