"""What the planner of a run is asked, how its answer is read, and which calls follow from it."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from chordage.orchestrator.core import subagents
from chordage.orchestrator.core.agent import AgentSpec, OnPlannerError
from chordage.orchestrator.core.errors import ModelFailed
from chordage.orchestrator.core.model import Attempt, Prompt, Reply, StopReason, ToolAsk, ToolOffer
from chordage.orchestrator.core.moves import RunPlan
from chordage.orchestrator.core.planning import prompts, state
from chordage.orchestrator.core.planning.plan import PlanDecision, PlanEnd
from chordage.orchestrator.core.planning.prompts import PlannerAsk, answer_prompt, function_input, planner_prompt
from chordage.orchestrator.core.planning.reading import NORMALISER_VERSION, ResponseWatch, cut_short, normalise
from chordage.orchestrator.core.planning.records import tool_logs
from chordage.orchestrator.core.planning.state import Planning
from chordage.orchestrator.core.records import Answer, Checkpoint, Entry, Run
from chordage.orchestrator.core.transcript import heard
from chordage.orchestrator.gateways.ports import Abort
from chordage.orchestrator.plugins.planners import PlannerFailed, planner_of
from chordage.orchestrator.run.model_request import offered_tools
from chordage.orchestrator.runtime import Runtime

PlannerReply = tuple[Reply, PlanDecision]


class _Answered(Exception):
    """The planner wants the final answer: the rest of its stream would be paid for and never read."""


def read(rt: Runtime, run: Run, agent: AgentSpec, entries: Sequence[Entry], calls: Sequence[Answer]) -> Planning:
    limit = agent.plan.timeout
    overdue = limit is not None and run.worked(rt.now()) > limit
    planning = state.read(agent.plan, entries, calls, run.id)
    return replace(planning, overdue=overdue).offering(offered_tools(rt, agent))


def planner_request(
    run: Run, agent: AgentSpec, planning: Planning, entries: Sequence[Entry], offers: Sequence[ToolOffer]
) -> PlannerAsk:
    said = [text for entry in _since_anew(run, entries) for text in _words(entry)]
    history = prompts.told(entries, run.id) if agent.plan.history else ()
    return PlannerAsk(
        user_input="\n\n".join(said), user_extra_requirement=agent.instructions,
        tools=[offer for offer in offers if offer.name in planning.offered], round_index=planning.round_index,
        rounds=planning.rounds, max_rounds=planning.spec.max_rounds, params=agent.params,
        history=history,
    )  # fmt: skip


def _since_anew(run: Run, entries: Sequence[Entry]) -> Sequence[Entry]:
    """What counts of the run: where its consumer has given the history anew, what was said from there on."""
    own = [entry for entry in entries if entry.run_id == run.id]
    anew = [place for place, entry in enumerate(own) if entry.body.get("replaces")]
    return own[anew[-1] :] if anew else own


def _words(entry: Entry) -> list[str]:
    """What a user has said, the consumer of a stepped run included."""
    match entry.kind:
        case Checkpoint.USER_MESSAGE:
            return [heard(entry.body)]
        case Checkpoint.CLIENT_STEERS:
            return list(entry.body["texts"])
        case Checkpoint.CLIENT_MESSAGES:
            return [one["text"] for one in entry.body["messages"] if one["role"] == "user"]
        case _:
            return []


def with_records(prompt: Prompt, planning: Planning) -> Prompt:
    """What was done is put before the model, and nothing where nothing was."""
    return answer_prompt(prompt, planning.records, planning.ends)


def ask_planner(rt: Runtime, agent: AgentSpec, asked: PlannerAsk, abort: Abort) -> PlannerReply:
    """The plan. Raises ModelFailed where the planner failed and the agent would rather end than answer."""
    try:
        return _from_function(agent, asked, abort) if agent.plan.planner else _from_model(rt, agent, asked, abort)
    except ModelFailed as error:
        if agent.plan.on_error is OnPlannerError.FAIL:
            raise
        return _failed(agent, str(error), error.attempts)
    except PlannerFailed as error:
        if agent.plan.on_error is OnPlannerError.FAIL:
            raise
        return _failed(agent, str(error), ())


def _from_function(agent: AgentSpec, asked: PlannerAsk, abort: Abort) -> PlannerReply:
    raw = planner_of(agent.plan.planner or "")(function_input(asked), abort.check)
    return _reply(agent, repr(raw) if not isinstance(raw, str) else raw), normalise(raw)


def _from_model(rt: Runtime, agent: AgentSpec, asked: PlannerAsk, abort: Abort) -> PlannerReply:
    planner = replace(agent, model=agent.plan.model or agent.model)
    so_far: list[str] = []
    try:
        reply = rt.models.complete(planner, planner_prompt(asked), abort=abort, on_delta=_watching(so_far))
    except _Answered:
        began = Attempt(model=planner.model, seconds=0.0, detail="broken off: it had said `response`")
        return replace(_reply(planner, "".join(so_far)), attempts=(began,)), cut_short()
    return reply, normalise(reply.text)


def _watching(so_far: list[str]) -> Callable[[str], None]:
    watch = ResponseWatch()

    def on_delta(text: str) -> None:
        so_far.append(text)
        if watch.feed(text):
            raise _Answered

    return on_delta


def _failed(agent: AgentSpec, why: str, attempts: Sequence[Attempt]) -> PlannerReply:
    """No plan: the answer is given with what was found out before, and the failure is on record."""
    nothing = PlanDecision(commands=(), ends=PlanEnd.PLANNER_ERROR, version=NORMALISER_VERSION)
    return replace(_reply(agent, why), attempts=tuple(attempts)), nothing


def _reply(agent: AgentSpec, text: str) -> Reply:
    return Reply(text=text, asks=(), stop=StopReason.END, model=agent.plan.planner or agent.model)


def asks_of(move: RunPlan, step: int, agent: AgentSpec) -> dict[int, ToolAsk]:
    asks = state.asks_of(move.commands, move.refused, step, agent.plan.executor)
    executor = agent.plan.executor
    if executor is None or subagents.of_tool(agent, executor) is None:
        return asks
    return {place: _in_words(ask) for place, ask in asks.items()}


def _in_words(ask: ToolAsk) -> ToolAsk:
    """A sub-agent that carries out whole rounds is asked as any: in a message."""
    return replace(ask, arguments={subagents.ARGUMENT: json.dumps(ask.arguments, ensure_ascii=False)})


def details(planning: Planning) -> dict[str, Any]:
    """What the end of the run says of its plans."""
    ends = planning.ends
    plans = {"rounds": planning.round_index, "ends": ends.value if ends else None}
    return {"extra": {"planning": plans, "tool_logs": tool_logs(planning.records)}}
