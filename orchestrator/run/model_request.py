"""What a model is asked with, and what its reply came to before anything is written."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from chordage.orchestrator.core import subagents
from chordage.orchestrator.core.agent import AgentSpec, ToolSpec
from chordage.orchestrator.core.client_tools import ClientTool
from chordage.orchestrator.core.model import Reply
from chordage.orchestrator.core.moves import Move
from chordage.orchestrator.core.output import Verdict
from chordage.orchestrator.core.placement import RoundPlan
from chordage.orchestrator.core.planning.plan import PlanDecision
from chordage.orchestrator.core.planning.state import Planning
from chordage.orchestrator.core.reasons import Ending
from chordage.orchestrator.core.records import Answer, History, NewCall, Run
from chordage.orchestrator.core.stepping import RequestTerms
from chordage.orchestrator.gateways.ports import OutputForm
from chordage.orchestrator.gateways.tools import outcomes
from chordage.orchestrator.run.plugins import PluginSession
from chordage.orchestrator.runtime import Runtime
from chordage.orchestrator.store.runs import RunClaim


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelRequest:
    """What an inference knew when it asked the model; the reply is judged against the same."""

    claim: RunClaim
    agent: AgentSpec
    specs: dict[str, ToolSpec]  # offered
    client_tools: Mapping[str, ClientTool] = field(default_factory=dict)  # those of them that the caller carries out
    withheld: frozenset[str] = frozenset()  # tools of the agent that plugins keep from the model
    known: Sequence[Answer]  # results of the thread
    past: History | None = None  # its history; None: it is read again when it is needed next
    session: PluginSession | None = None
    planning: Planning | None = None  # of a strategy that plans
    asks_planner: bool = False  # the reply will be a plan
    form: OutputForm | None = None  # what the answer has to be
    recalls: bool = False  # a summary replaces some calls of the run, so that not all are known
    generations: Counter[str] | None = None  # how often the run has used each id of the reply, where not all is known
    terms: RequestTerms | None = None  # of the consumer of a stepped run

    @property
    def run(self) -> Run:
        return self.claim.run

    @property
    def step(self) -> int:
        return self.claim.step


@dataclass(frozen=True, kw_only=True, slots=True)
class ReplyOutcome:
    """A reply, and what follows from it: decided before the transaction that records it begins."""

    reply: Reply
    move: Move
    plan: PlanDecision | None = None  # the reply of a planner
    asked: list[NewCall] = field(default_factory=list)
    keeps: Ending | None = None  # the run ends with this once the round is settled
    call_sessions: list[PluginSession] = field(default_factory=list)  # of the calls about which plugins noted something
    output: Verdict | None = None  # on a reply that would end the run, where it has to fit a form
    held: bool = False  # the run's consumer decides what follows
    placed: RoundPlan | None = None  # where its calls run


def offered_tools(rt: Runtime, agent: AgentSpec, known: Iterable[Answer] = ()) -> dict[str, ToolSpec]:
    """The agent's tools and sub-agents. `known`: the results that the model is shown. Where one of them is cut, the
    tool that reads the rest is offered too.
    """
    own = rt.tools.specs(agent)
    if agent.agents:
        own = {**own, **subagents.specs(agent)}
    if not any(outcomes.is_preview(answer.content) for answer in known):
        return own
    reader = rt.tools.reader()
    return own if reader.name in own else {**own, reader.name: reader}  # last: what comes before stays in caches


def invalid_arguments(rt: Runtime, agent: AgentSpec, tool: str, arguments: dict[str, Any]) -> str | None:
    """Why the arguments do not fit, in words for the model."""
    sub = subagents.of_tool(agent, tool) if agent.agents else None
    return rt.tools.invalid(agent, tool, arguments) if sub is None else subagents.invalid(sub, arguments)
