"""What is known when a model is asked, and what is made of its reply before anything is written."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from chordage.orchestrator.core.agent import AgentSpec, ToolSpec
from chordage.orchestrator.core.model import Reply
from chordage.orchestrator.core.moves import Move
from chordage.orchestrator.core.output import Verdict
from chordage.orchestrator.core.planning.plan import PlanDecision
from chordage.orchestrator.core.planning.state import Planning
from chordage.orchestrator.core.reasons import Ending
from chordage.orchestrator.core.records import Answer, NewCall
from chordage.orchestrator.gateways.ports import OutputForm
from chordage.orchestrator.holding import Terms
from chordage.orchestrator.phasing import Hearing


@dataclass(frozen=True, kw_only=True, slots=True)
class Scene:
    """What an inference knew when it asked the model; the reply is judged against the same."""

    agent: AgentSpec
    specs: dict[str, ToolSpec]  # offered
    withheld: frozenset[str] = frozenset()  # tools of the agent that plugins keep from the model
    known: Sequence[Answer]
    hearing: Hearing
    planning: Planning | None = None  # of a strategy that plans
    asks_planner: bool = False  # the reply will be a plan
    form: OutputForm | None = None  # what the answer has to be
    recalls: bool = False  # not all calls of the run are among the known: a summary stands for some
    lives: Counter[str] | None = None  # then, of the ids that the reply uses
    terms: Terms | None = None  # of the consumer of a stepped run


@dataclass(frozen=True, kw_only=True, slots=True)
class Judged:
    """A reply, and what follows from it: decided before the transaction in which it is recorded begins."""

    reply: Reply
    move: Move
    plan: PlanDecision | None = None  # the reply, read as what it is
    asked: list[NewCall] = field(default_factory=list)
    keeps: Ending | None = None  # with what the run ends once the round is settled
    hearings: list[Hearing] = field(default_factory=list)  # of the calls that plugins noted something about
    output: Verdict | None = None  # on a reply that would end the run, where it has to fit a form
    held: bool = False  # what follows is said by the run's consumer
