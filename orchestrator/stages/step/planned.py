"""A plan that lies with the consumer of its run: carried out, or replaced by another decision.

The decision that counts is recorded when the run moves on, in the commit that opens its round. A consumer may decide
where no planner was asked as well: before the first plan, behind a round, or where the planner failed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from chordage.orchestrator.core import moves, settling
from chordage.orchestrator.core.agent import AgentSpec
from chordage.orchestrator.core.errors import InvalidMessage, StepRefused
from chordage.orchestrator.core.model import Reply, StopReason
from chordage.orchestrator.core.moves import RunPlan
from chordage.orchestrator.core.planning import state
from chordage.orchestrator.core.planning.plan import PlanEnd, decision_from
from chordage.orchestrator.core.planning.reading import normalise
from chordage.orchestrator.core.planning.state import Planning
from chordage.orchestrator.core.records import Run
from chordage.orchestrator.core.settling import Route
from chordage.orchestrator.core.stepping import StepRequest, Verb, tuned
from chordage.orchestrator.core.transcript import body_of
from chordage.orchestrator.run import planning as planning_
from chordage.orchestrator.run import transitions
from chordage.orchestrator.runtime import Runtime
from chordage.orchestrator.stages.step import opening, settle
from chordage.orchestrator.stages.step.opening import At
from chordage.orchestrator.stages.step.settle import Plan
from chordage.orchestrator.store.stepped import SteppedRows
from chordage.orchestrator.strategies.shipped import STRATEGIES, plans

NOT_OF_A_PLAN = frozenset({Verb.MESSAGES, Verb.TOOL_RESPONSE, Verb.RETRY})
CONSUMER = "consumer"  # in place of a model, where no planner was asked


@dataclass(frozen=True, kw_only=True, slots=True)
class Scenery:
    """What a decision is judged against."""

    run: Run
    agent: AgentSpec
    at: At
    planning: Planning


def check_verb(request: StepRequest, seen: SteppedRows) -> None:
    """A plan is no message: nothing is said in its place, and its calls are carried out by `next`."""
    is_history = request.verb is Verb.PARAMS and request.args.get("messages") is not None
    if seen.plan is not None and (request.verb in NOT_OF_A_PLAN or is_history):
        told = "a plan is held: move it on with `next`, put another in its place with `plan`, or `steer`"
        raise _refused(seen, "plan_held", told)


def given(rt: Runtime, seen: SteppedRows, raw: object) -> dict[str, Any]:
    """Another decision, as the normaliser understands it. What was said of the calls of the one before is void."""
    if seen.run is None or not plans(seen.run.strategy):
        raise _refused(seen, "no_plan", "this run does not plan: use a strategy that does")
    if seen.held is not None and not seen.holds_plan:
        raise _refused(seen, "no_plan", "an answer is held, and no plan: planning is over")
    if seen.row.given:
        raise _refused(seen, "messages_pending", "messages wait to become history: move on with `next` first")
    decision = normalise(raw)
    if decision.ends is PlanEnd.UNREADABLE:
        told = 'give {"execution_commands": [{"tool_name", "tool_kwargs"}]} or {"next_action": "response"}'
        raise InvalidMessage(f"{told}; got {raw!r:.120}", field="plan")
    there = _scenery(rt, seen)
    if not seen.holds_plan and seen.run.strategy not in STRATEGIES and not _would_plan(rt, there):
        raise _refused(seen, "no_plan", "this run would not ask a planner now, so nothing is planned in its place")
    return {"plan": state.body_of(there.planning, decision), "verdicts": {}}


def _would_plan(rt: Runtime, there: Scenery) -> bool:
    """Of a strategy of one's own nothing else tells whether it plans."""
    return isinstance(transitions.next_move(there.run, there.agent, None, rt.now(), plans=there.planning), moves.Plan)


def _refused(seen: SteppedRows, code: str, told: str) -> StepRefused:
    return StepRefused(told, code=code, rev=seen.row.rev, standing=seen.standing.value)


def _scenery(rt: Runtime, seen: SteppedRows) -> Scenery:
    run = settle.run_of(rt, seen)
    agent = tuned(rt.agents.get(run.agent), seen.row)
    found = opening.known(rt, run)
    at = opening.at_step(rt, seen, seen.plan_step, agent, found)
    read = planning_.read(rt, run, agent, found.entries, found.answers).offering(at.scene.specs)
    return Scenery(run=run, agent=agent, at=at, planning=read)


def plan(rt: Runtime, seen: SteppedRows) -> Plan:
    """What will be written, if nothing has changed until then."""
    assert seen.plan is not None
    there = _scenery(rt, seen)
    decision, reply = decision_from(seen.plan["decision"]), _said(seen)
    move = transitions.next_move(there.run, there.agent, reply, rt.now(), plans=there.planning, plan=decision)
    asks = planning_.asks_of(move, seen.plan_step, there.agent) if isinstance(move, RunPlan) else {}
    rule = settling.planned(settle.held_by(seen), move, list(asks.values()))
    body = {**_body(seen, reply), **state.body_of(there.planning, decision)}
    plain = Plan(rule=rule, step=seen.plan_step, planned=body, told=planning_.told(there.planning))
    if rule.route is not Route.TOOLS and not rule.open_ids:
        return plain
    return settle.opened(rt, seen, plain, there.at, asks)


def _said(seen: SteppedRows) -> Reply:
    return seen.reply or Reply(text="", asks=(), stop=StopReason.END, model=CONSUMER)


def _body(seen: SteppedRows, reply: Reply) -> Mapping[str, Any]:
    """As the planner said it, whatever was put in its place."""
    return seen.held.body if seen.held is not None else body_of(reply)
