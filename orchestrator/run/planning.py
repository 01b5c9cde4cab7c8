"""What the planner of a run is asked, how its reply is read, and which calls follow from it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from chordage.orchestrator.core import subagents
from chordage.orchestrator.core.agent import AgentSpec, OnPlannerError
from chordage.orchestrator.core.errors import ModelFailed
from chordage.orchestrator.core.model import Attempt, Prompt, Reply, StopReason, ToolAsk, ToolOffer
from chordage.orchestrator.core.moves import RunPlan
from chordage.orchestrator.core.planning import prompts, state
from chordage.orchestrator.core.planning.plan import PlanDecision, PlanEnd
from chordage.orchestrator.core.planning.prompts import PlannerRequest
from chordage.orchestrator.core.planning.reading import NORMALISER_VERSION, ResponseWatch, cut_short, normalise
from chordage.orchestrator.core.planning.records import tool_logs
from chordage.orchestrator.core.planning.state import Planning
from chordage.orchestrator.core.records import Answer, Checkpoint, Entry, Run
from chordage.orchestrator.core.transcript import message_text
from chordage.orchestrator.gateways.ports import Abort
from chordage.orchestrator.plugins.planners import PlannerFailed, planner_of
from chordage.orchestrator.run.model_request import offered_tools
from chordage.orchestrator.runtime import Runtime

PlannerReply = tuple[Reply, PlanDecision]


class _ResponseDecided(Exception):
    """The planner wants the final answer: the rest of its stream would be paid for and never read."""


def read(rt: Runtime, run: Run, agent: AgentSpec, entries: Sequence[Entry], calls: Sequence[Answer]) -> Planning:
    limit = agent.plan.timeout
    overdue = limit is not None and run.worked(rt.now()) > limit
    planning = state.read(agent.plan, entries, calls, run.id)
    return replace(planning, overdue=overdue).offering(offered_tools(rt, agent))


def planner_request(
    run: Run, agent: AgentSpec, planning: Planning, entries: Sequence[Entry], offers: Sequence[ToolOffer]
) -> PlannerRequest:
    return PlannerRequest(
        user_input="\n\n".join(_user_words(run, entries)),
        user_extra_requirement=agent.instructions,
        tools=[offer for offer in offers if offer.name in planning.offered],
        round_index=planning.round_index,
        max_rounds=planning.spec.max_rounds,
        rounds=planning.rounds,
        params=agent.params,
        history=prompts.history(entries, run.id) if agent.plan.history else (),
    )


def _user_words(run: Run, entries: Sequence[Entry]) -> list[str]:
    """What was said to the run by its user and by its consumer, since the consumer last replaced the history."""
    words: list[str] = []
    for entry in entries:
        if entry.run_id != run.id:
            continue
        if entry.body.get("replaces"):
            words.clear()
        match entry.kind:
            case Checkpoint.USER_MESSAGE:
                words.append(message_text(entry.body))
            case Checkpoint.CLIENT_STEERS:
                words.extend(entry.body["texts"])
            case Checkpoint.CLIENT_MESSAGES:
                words.extend(message["text"] for message in entry.body["messages"] if message["role"] == "user")
    return words


def with_records(prompt: Prompt, planning: Planning) -> Prompt:
    return prompts.answer_prompt(prompt, planning.records, planning.ends)


def ask_planner(rt: Runtime, agent: AgentSpec, request: PlannerRequest, abort: Abort) -> PlannerReply:
    """The plan. Raises ModelFailed or PlannerFailed where the agent is set to fail rather than to answer without it."""
    try:
        return _from_function(agent, request, abort) if agent.plan.planner else _from_model(rt, agent, request, abort)
    except (ModelFailed, PlannerFailed) as error:
        if agent.plan.on_error is OnPlannerError.FAIL:
            raise
        attempts = error.attempts if isinstance(error, ModelFailed) else ()
        no_plan = PlanDecision(commands=(), ends=PlanEnd.PLANNER_ERROR, version=NORMALISER_VERSION)
        return replace(_reply(agent, str(error)), attempts=tuple(attempts)), no_plan


def _from_function(agent: AgentSpec, request: PlannerRequest, abort: Abort) -> PlannerReply:
    raw = planner_of(agent.plan.planner or "")(prompts.function_input(request), abort.check)
    return _reply(agent, raw if isinstance(raw, str) else repr(raw)), normalise(raw)


def _from_model(rt: Runtime, agent: AgentSpec, request: PlannerRequest, abort: Abort) -> PlannerReply:
    planner = replace(agent, model=agent.plan.model or agent.model)
    watch, pieces = ResponseWatch(), list[str]()

    def on_delta(text: str) -> None:
        pieces.append(text)
        if watch.feed(text):
            raise _ResponseDecided

    def on_reset() -> None:
        """The model is asked again: the text of the attempt before is no beginning of this one."""
        nonlocal watch
        watch = ResponseWatch()
        pieces.clear()

    prompt = prompts.planner_prompt(request)
    try:
        reply = rt.models.complete(planner, prompt, abort=abort, on_delta=on_delta, on_reset=on_reset)
    except _ResponseDecided:
        attempt = Attempt(model=planner.model, seconds=0.0, detail="broken off: it had said `response`")
        return replace(_reply(planner, "".join(pieces)), attempts=(attempt,)), cut_short()
    return reply, normalise(reply.text)


def _reply(agent: AgentSpec, text: str) -> Reply:
    return Reply(text=text, asks=(), stop=StopReason.END, model=agent.plan.planner or agent.model)


def asks_of(move: RunPlan, step: int, agent: AgentSpec) -> dict[int, ToolAsk]:
    executor = agent.plan.executor
    asks = state.asks_of(move.commands, move.refused, step, executor)
    if executor is None or subagents.of_tool(agent, executor) is None:
        return asks
    # A sub-agent that carries out whole rounds gets them as its message.
    return {
        place: replace(ask, arguments={subagents.ARGUMENT: json.dumps(ask.arguments, ensure_ascii=False)})
        for place, ask in asks.items()
    }


def details(planning: Planning) -> dict[str, Any]:
    """What the end of the run says of its plans."""
    plans = {"rounds": planning.round_index, "ends": planning.ends.value if planning.ends else None}
    return {"extra": {"planning": plans, "tool_logs": tool_logs(planning.records)}}
