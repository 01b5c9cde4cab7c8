"""A plan that is held for the consumer of its run: carried out, or replaced by another decision.

The decision is recorded when the run moves on, in the commit that opens its round. A consumer may also decide where no
planner was asked: before the first plan, behind a round, or where the planner failed.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from chordage.orchestrator.core import moves, settling
from chordage.orchestrator.core.errors import InvalidMessage, StepRefused
from chordage.orchestrator.core.model import Reply, StopReason
from chordage.orchestrator.core.moves import RunPlan
from chordage.orchestrator.core.planning import state
from chordage.orchestrator.core.planning.plan import PlanEnd, decision_from
from chordage.orchestrator.core.planning.reading import normalise
from chordage.orchestrator.core.planning.state import Planning
from chordage.orchestrator.core.settling import Route
from chordage.orchestrator.core.stepping import StepRequest, Verb, tuned
from chordage.orchestrator.core.transcript import body_of
from chordage.orchestrator.run import planning, transitions
from chordage.orchestrator.run.model_request import ModelRequest
from chordage.orchestrator.runtime import Runtime
from chordage.orchestrator.stages.step import opening as openings
from chordage.orchestrator.stages.step import settle
from chordage.orchestrator.stages.step.settle import Settlement
from chordage.orchestrator.store.stepped import SteppedRows
from chordage.orchestrator.strategies.shipped import STRATEGIES, plans

NOT_OF_A_PLAN = frozenset({Verb.MESSAGES, Verb.TOOL_RESPONSE, Verb.RETRY})
CONSUMER = "consumer"  # in place of a model, where no planner was asked


def check_verb(request: StepRequest, seen: SteppedRows) -> None:
    """A plan is not a message: messages do not replace it, and `next` carries its calls out."""
    is_history = request.verb is Verb.PARAMS and request.args.get("messages") is not None
    if seen.plan is not None and (request.verb in NOT_OF_A_PLAN or is_history):
        problem = "a plan is held: move it on with `next`, put another in its place with `plan`, or `steer`"
        raise _refused(seen, "plan_held", problem)


def replace_plan(rt: Runtime, seen: SteppedRows, raw: object) -> dict[str, Any]:
    """Another decision, as the normaliser understands it. Verdicts on the calls of the one before are void."""
    if seen.run is None or not plans(seen.run.strategy):
        raise _refused(seen, "no_plan", "this run does not plan: use a strategy that does")
    if seen.held is not None and not seen.holds_plan:
        raise _refused(seen, "no_plan", "an answer is held, and no plan: planning is over")
    if seen.row.given:
        raise _refused(seen, "messages_pending", "messages wait to become history: move on with `next` first")
    decision = normalise(raw)
    if decision.ends is PlanEnd.UNREADABLE:
        forms = 'give {"execution_commands": [{"tool_name", "tool_kwargs"}]} or {"next_action": "response"}'
        raise InvalidMessage(f"{forms}; got {raw!r:.120}", field="plan")
    request, planned = _request(rt, seen)
    # Whether a strategy from the user's code plans shows only in what it decides.
    if not seen.holds_plan and seen.run.strategy not in STRATEGIES:
        move = transitions.choose_move(request.run, request.agent, None, rt.now(), plans=planned)
        if not isinstance(move, moves.Plan):
            raise _refused(seen, "no_plan", "this run would not ask a planner now, so nothing is planned in its place")
    return {"plan": state.body_of(planned, decision), "verdicts": {}}


def _refused(seen: SteppedRows, code: str, problem: str) -> StepRefused:
    return StepRefused(problem, code=code, rev=seen.row.rev, standing=seen.standing.value)


def _request(rt: Runtime, seen: SteppedRows) -> tuple[ModelRequest, Planning]:
    """The run and its plans, as a decision is judged against them."""
    run = settle.working_run(rt, seen)
    agent = tuned(rt.agent_of(run), seen.row)
    history = openings.read_history(rt, run)
    request = openings.request_at(rt, seen, seen.plan_step, agent, history)
    planned = planning.read(rt, run, agent, history.entries, history.answers).offering(request.specs)
    return replace(request, claim=replace(request.claim, run=run)), planned


def settle_plan(rt: Runtime, seen: SteppedRows) -> Settlement:
    """What will be written, unless the run has changed by then."""
    assert seen.plan is not None
    request, planned = _request(rt, seen)
    decision = decision_from(seen.plan["decision"])
    reply = seen.reply or Reply(text="", asks=(), stop=StopReason.END, model=CONSUMER)
    move = transitions.choose_move(request.run, request.agent, reply, rt.now(), plans=planned, plan=decision)
    asks = planning.asks_of(move, seen.plan_step, request.agent) if isinstance(move, RunPlan) else {}
    rule = settling.planned(settle.held_by(seen), move, list(asks.values()))
    planner_reply = body_of(reply) if seen.held is None else seen.held.body  # also where its plan was replaced
    body = {**planner_reply, **state.body_of(planned, decision)}
    settlement = Settlement(rule=rule, step=seen.plan_step, planned=body, details=planning.details(planned))
    if rule.route is not Route.TOOLS and not rule.open_ids:
        return settlement
    return settle.with_opening(rt, seen, settlement, request, asks)
