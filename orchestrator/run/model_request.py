"""What is known when a model is asked, and what is made of its reply before anything is written."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from chordage.orchestrator.core import subagents
from chordage.orchestrator.core.agent import AgentSpec, ToolSpec
from chordage.orchestrator.core.model import Reply
from chordage.orchestrator.core.moves import Move
from chordage.orchestrator.core.output import Verdict
from chordage.orchestrator.core.planning.plan import PlanDecision
from chordage.orchestrator.core.planning.state import Planning
from chordage.orchestrator.core.reasons import Ending
from chordage.orchestrator.core.records import Answer, NewCall
from chordage.orchestrator.core.stepping import RequestTerms
from chordage.orchestrator.gateways.ports import OutputForm
from chordage.orchestrator.gateways.tools import outcomes
from chordage.orchestrator.run.plugins import PluginSession
from chordage.orchestrator.runtime import Runtime


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelRequest:
    """What an inference knew when it asked the model; the reply is judged against the same."""

    agent: AgentSpec
    specs: dict[str, ToolSpec]  # offered
    withheld: frozenset[str] = frozenset()  # tools of the agent that plugins keep from the model
    known: Sequence[Answer]
    hearing: PluginSession
    planning: Planning | None = None  # of a strategy that plans
    asks_planner: bool = False  # the reply will be a plan
    form: OutputForm | None = None  # what the answer has to be
    recalls: bool = False  # not all calls of the run are among the known: a summary stands for some
    lives: Counter[str] | None = None  # then, of the ids that the reply uses
    terms: RequestTerms | None = None  # of the consumer of a stepped run


@dataclass(frozen=True, kw_only=True, slots=True)
class ReplyOutcome:
    """A reply, and what follows from it: decided before the transaction in which it is recorded begins."""

    reply: Reply
    move: Move
    plan: PlanDecision | None = None  # the reply, read as what it is
    asked: list[NewCall] = field(default_factory=list)
    keeps: Ending | None = None  # with what the run ends once the round is settled
    hearings: list[PluginSession] = field(default_factory=list)  # of the calls that plugins noted something about
    output: Verdict | None = None  # on a reply that would end the run, where it has to fit a form
    held: bool = False  # what follows is said by the run's consumer


# What an agent may call: its tools, and the sub-agents it may ask.


def specs(rt: Runtime, agent: AgentSpec, known: Iterable[Answer] = ()) -> dict[str, ToolSpec]:
    """`known`: the answers that the model is shown. Where one is only the beginning of a result, it may read on."""
    own = {**rt.tools.specs(agent), **subagents.specs(agent)}
    if not any(outcomes.is_preview(answer.content) for answer in known):
        return own
    reader = rt.tools.reader()
    return own if reader.name in own else {**own, reader.name: reader}  # last: what comes before stays in caches


def invalid(rt: Runtime, agent: AgentSpec, tool: str, arguments: dict[str, Any]) -> str | None:
    """Why the arguments do not fit, in words for the model."""
    sub = subagents.of_tool(agent, tool)
    return rt.tools.invalid(agent, tool, arguments) if sub is None else subagents.invalid(sub, arguments)
