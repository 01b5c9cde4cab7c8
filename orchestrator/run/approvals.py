"""Decisions about suspended calls: checked, stored, and applied.

A decision is a row before anything is done with it. A waiting run is resumed by it; a run at work applies it before its
next request. While a round is still out, a decision is applied at once and its call joins the round.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from chordage.orchestrator.core import message, text
from chordage.orchestrator.core.agent import AgentSpec, ToolMode
from chordage.orchestrator.core.agent_versions import AgentPin
from chordage.orchestrator.core.approvals import (
    Action,
    Decision,
    DecisionRequest,
    Suspension,
    SuspensionStatus,
    Why,
    answers,
    settled_by,
)
from chordage.orchestrator.core.audit import Actor, Audited
from chordage.orchestrator.core.client_tools import is_with_caller
from chordage.orchestrator.core.errors import Conflict, InvalidDecision, LostRace, NotFound, UserError
from chordage.orchestrator.core.intents import Intent, lone_call
from chordage.orchestrator.core.records import Call, Phase, Run
from chordage.orchestrator.core.rounds import due, must_wait
from chordage.orchestrator.core.status import CallStatus, RunStatus
from chordage.orchestrator.gateways.schemas import complaint_about
from chordage.orchestrator.run import checkpoints, client_tools, endings, rounds, subagents, waiting
from chordage.orchestrator.run.model_request import invalid_arguments
from chordage.orchestrator.run.unit import LiveEvent, Unit, insist
from chordage.orchestrator.runtime import Runtime
from chordage.orchestrator.store import approvals, audit, calls, journal, runs
from chordage.orchestrator.store.database import Tx
from chordage.orchestrator.store.runs import RunClaim

NO_PAYLOAD = (
    "a denied call takes no payload: leave it out, and say why in reason. A denial is not remembered; what must never "
    "run is a rule in the agent's file, [permission] deny"
)
Answered = dict[str, tuple[Suspension, Decision]]  # by call


# A decision comes in.


@dataclass(frozen=True, kw_only=True, slots=True)
class Decided:
    """One decision as it is stored. `duplicate`: it had been stored before."""

    decision_id: str
    suspension_id: str
    call_id: str
    run_id: str
    duplicate: bool = False


def check_decisions(rt: Runtime, requests: Sequence[DecisionRequest], *, space: str | None = None) -> list[Suspension]:
    """The questions they answer. The first that cannot be taken is raised. `space`: of a caller; a question outside it
    is reported as one that does not exist.
    """
    if not requests:
        raise InvalidDecision("there is no decision: give at least one", field="decisions")
    for request in requests:  # before the database is asked for anything by it
        _check_storable(request, rt.bounds.text_bytes)
    asked = [_asked(rt, request, space) for request in requests]
    for request, suspension in zip(requests, asked, strict=True):
        _check(rt, request, suspension)
    return asked


def _asked(rt: Runtime, request: DecisionRequest, space: str | None) -> Suspension:
    with rt.store.read() as tx:
        before = approvals.decision_by_key(tx, request.target, request.key) if request.key else None
        suspension = approvals.find(tx, before.suspension_id if before else request.target)
        about = suspension or calls.load(tx, request.target)
        run = runs.load(tx, about.run_id) if about else None
    if run is None or not message.holds(space, run.home_thread):
        raise NotFound(
            f"there is no suspension and no call {request.target!r}; `chordage inbox` lists what waits, with whole "
            "ids. The questions of an erased or pruned thread are gone with it"
        )
    if suspension is None:
        raise Conflict(f"call {request.target!r} waits for no decision and never did")
    return suspension


def _check(rt: Runtime, request: DecisionRequest, asked: Suspension) -> None:
    """Whether the decision fits the question. One that was stored was checked when it came."""
    if request.action is Action.CANCEL:
        if request.edited_args is not None:
            raise InvalidDecision("a denied call has no arguments: leave edited_args out", field="edited_args")
        if request.payload is not None:
            raise InvalidDecision(NO_PAYLOAD, field="payload")
        return
    if asked.why is Why.CHILD:
        problem = f"suspension {asked.id} is answered by its sub-agent alone; deny it and the sub-agent is cancelled"
        raise InvalidDecision(problem, field="action")
    if request.edited_args is not None and asked.why is Why.CLIENT:
        problem = f"the caller carries {asked.tool!r} out: answer with payload, its result, and leave edited_args out"
        raise InvalidDecision(problem, field="edited_args")
    if request.edited_args is not None:
        wrong = _misfit(rt, asked, request.edited_args)
        if wrong:
            raise InvalidDecision(f"edited_args do not fit tool {asked.tool!r}: {wrong}", field="edited_args")
    if asked.schema is not None and (wrong := complaint_about(request.payload, asked.schema)):
        problem = f"answer {asked.id} with a payload such as {answers(asked.schema)}; what came does not fit: {wrong}"
        raise InvalidDecision(problem, field="payload")


def _misfit(rt: Runtime, asked: Suspension, arguments: dict[str, Any]) -> str | None:
    with rt.store.read() as tx:
        call = calls.load(tx, asked.call_id)
        run = runs.load(tx, asked.run_id)
        tool = client_tools.of_call(tx, call) if call is not None and is_with_caller(call) else None
    if tool is not None:
        return client_tools.invalid(tool, arguments)
    of = AgentPin(asked.agent, None) if run is None else run
    return invalid_arguments(rt, rt.agent_of(of), asked.tool, arguments)


def _check_storable(request: DecisionRequest, limit: int) -> None:
    """What no database keeps, or only some, is refused before any of it is stored."""
    if request.key is not None and not 1 <= len(request.key) <= text.NAME_MAX:
        problem = f"give a decision_key of 1 to {text.NAME_MAX} characters; it has {len(request.key)}"
        raise InvalidDecision(problem, field="decision_key")
    given = {"payload": request.payload, "edited_args": request.edited_args, "reason": request.reason}
    for field, value in {**given, "decision_key": request.key, "target": request.target}.items():
        if text.clean_json(value) != value:
            raise InvalidDecision(f"remove from {field} what is no text: a NUL, or half a surrogate pair", field=field)
        try:
            size = len(json.dumps(value, ensure_ascii=False, allow_nan=False).encode())
        except (TypeError, ValueError) as error:
            raise InvalidDecision(f"give {field} as JSON: {error}", field=field) from error
        if size > limit:
            raise InvalidDecision(f"give a shorter {field}: it has {size} bytes, the limit is {limit}", field=field)


def take_decisions(
    unit: Unit,
    requests: Sequence[DecisionRequest],
    asked: Sequence[Suspension],
    source: str,
    *,
    by: Actor | None = None,
    beside: Sequence[Run] = (),
) -> list[Decided]:
    """Store all of them, or none, and set in motion what follows. Their runs are locked first: what counts is what the
    questions have become meanwhile. `by`: None where the engine itself decides. `beside`: runs that the caller will
    lock as well.
    """
    in_question = {suspension.run_id for suspension in asked}
    in_order = sorted(in_question | {run.id for run in beside}, reverse=True)  # a child before its parent
    locked = {run_id: runs.lock(unit.tx, run_id) for run_id in in_order}
    decided = [_store(unit, *pair, source, by) for pair in zip(requests, asked, strict=True)]
    new = [decision for decision in decided if not decision.duplicate]
    for run_id in sorted({decision.run_id for decision in new}):
        if (run := locked[run_id]) is not None:
            _continue_run(unit, run)
    of_children = {suspension.id for suspension in asked if suspension.why is Why.CHILD}
    for decision in new:
        if decision.suspension_id in of_children:
            subagents.give_up(unit, call_id=decision.call_id)
    return decided


def _store(unit: Unit, request: DecisionRequest, asked: Suspension, source: str, by: Actor | None) -> Decided:
    current = approvals.load(unit.tx, asked.id)
    assert current is not None
    before = approvals.decision_of(unit.tx, asked.id)
    if before is None and request.key and request.target == asked.call_id:  # the call has asked again meanwhile
        before = approvals.decision_by_key(unit.tx, asked.call_id, request.key)
    if before is not None and before.says(request):
        return _decided(before, duplicate=True)
    if before is not None or current.status is not SuspensionStatus.OPEN:
        raise _too_late(unit.tx, current, before, request)
    decision = Decision(
        id=unit.rt.new_id(), suspension_id=asked.id, call_id=asked.call_id, run_id=asked.run_id, action=request.action,
        payload=request.payload, edited_args=request.edited_args, reason=request.reason, key=request.key,
    )  # fmt: skip
    approvals.store_decision(unit.tx, decision, source=source, decided_by=by.name if by else source, now=unit.now)
    if by is not None:
        detail = {"suspension": asked.id, "call": asked.call_id, "run": asked.run_id, "action": request.action.value}
        audit.record(unit.tx, by, Audited.DECIDED, decision.id, now=unit.now, detail=detail)
    approvals.set_status(unit.tx, asked.id, SuspensionStatus.DECIDED, was=SuspensionStatus.OPEN)
    shown = {"call": asked.call_id, "suspension": asked.id}
    unit.announce(LiveEvent(run_id=asked.run_id, kind="call.decided", data=shown))
    return _decided(decision)


def _decided(decision: Decision, *, duplicate: bool = False) -> Decided:
    return Decided(
        decision_id=decision.id, suspension_id=decision.suspension_id, call_id=decision.call_id,
        run_id=decision.run_id, duplicate=duplicate,
    )  # fmt: skip


def _too_late(tx: Tx, asked: Suspension, before: Decision | None, request: DecisionRequest) -> Conflict:
    closed = approvals.closed(tx, before.suspension_id if before else asked.id)
    same_key = before is not None and before.key is not None and request.key == before.key
    other = f", with the same key {request.key!r} and other content" if same_key else ""
    return Conflict(f"suspension {closed.id} {closed.fate}{other}; its call is {closed.call_status.value}")


def _continue_run(unit: Unit, run: Run) -> None:
    """A run at work without a round out applies the decision by itself, before its next request."""
    if run.status is RunStatus.WAITING:
        waiting.resume_run(unit, run)
    elif run.status is RunStatus.RUNNING and run.in_flight and run.phase is not Phase.INFERENCE:
        _join_round(unit, run)


def _join_round(unit: Unit, run: Run) -> None:
    try:
        agent = unit.rt.agent_of(run, unit.tx)
    except UserError:  # its file is being edited: the decision is applied after the round
        return
    if not agent.stream or agent.tool_mode is not ToolMode.PARALLEL:
        return
    answered = _answered(unit.tx, run)
    calls_due = due(calls.unsettled(unit.tx, run.id), answered, agent.tool_mode)
    sent = _apply(unit, run, agent, calls_due, answered, step=run.step)
    replay_from = min([call.step for call in sent] + [run.step if run.replay_from is None else run.replay_from])
    runs.open_replay(unit.tx, run, to=run.step, replay_from=replay_from, lease_until=unit.lease())
    unit.follow(*(lone_call(run, call) for call in sent))


# A run with suspended calls is before its next request: decided calls continue, and then the run.


def resume_decided(rt: Runtime, run: Run, agent: AgentSpec) -> list[Intent] | None:
    """None: nothing keeps the run from its next request."""
    try:
        may_ask, intents = insist(rt, lambda unit: _is_free(unit, run, agent))
    except LostRace:
        return []
    return None if may_ask else intents


def _is_free(unit: Unit, seen: Run, agent: AgentSpec) -> bool:
    run = runs.lock(unit.tx, seen.id)
    if run is None or run.status is not RunStatus.RUNNING or run.next_inference is None or _moved(run, seen):
        return False
    claim = RunClaim(run=run, step=run.next_inference, token=run.claim_token)
    if run.kept is not None and run.kept.reason in waiting.FINAL:
        endings.end_claimed(unit, claim, run.kept)
        return False
    open_calls = calls.unsettled(unit.tx, run.id)
    answered = _answered(unit.tx, run)
    calls_due = subagents.in_sequence(agent, due(open_calls, answered, agent.tool_mode), answered)
    if calls_due:
        _replay(unit, run, agent, calls_due, answered)
        return False
    settled = checkpoints.settled_calls(unit.tx, run)
    has_kept_an_end = run.kept is not None
    if run.phase is not Phase.INFERENCE and (
        must_wait(settled, open_calls, agent.mixed_round, has_kept_an_end=has_kept_an_end)
        or any(is_with_caller(call) for call in open_calls)  # a caller carries out its calls when the run waits
        or subagents.are_unanswered(unit.tx, run)
    ):
        rows = checkpoints.of_round(unit, run, settled)
        waiting.suspend_run(unit, claim, to=claim.step, kept=run.kept, rows=rows, mode=agent.tool_mode)
        return False
    if run.kept is None or open_calls:
        return True
    endings.end_claimed(unit, claim, run.kept)
    return False


def replay_if_due(unit: Unit, run: Run, agent: AgentSpec) -> bool:
    """Decided calls continue, and the run does not move otherwise. The run is locked."""
    answered = _answered(unit.tx, run)
    open_calls = calls.unsettled(unit.tx, run.id)
    calls_due = subagents.in_sequence(agent, due(open_calls, answered, agent.tool_mode), answered)
    if calls_due:
        _replay(unit, run, agent, calls_due, answered)
    return bool(calls_due)


def _moved(run: Run, seen: Run) -> bool:
    return (run.epoch, run.step, run.phase) != (seen.epoch, seen.step, seen.phase)


def _answered(tx: Tx, run: Run) -> Answered:
    """The questions of a run that have their decision, by call."""
    asked = {s.id: s for s in approvals.unsettled(tx, run.id) if s.status is SuspensionStatus.DECIDED}
    decisions = approvals.decisions_of(tx, asked) if asked else {}
    return {asked[suspension_id].call_id: (asked[suspension_id], each) for suspension_id, each in decisions.items()}


def _replay(unit: Unit, run: Run, agent: AgentSpec, calls_due: Sequence[Call], answered: Answered) -> None:
    """A step of its own, in which the calls that were decided are settled or sent."""
    step = run.step + 1
    checkpoint = checkpoints.of_round(unit, run)
    sent = _apply(unit, run, agent, calls_due, answered, step=step)
    replay_from = min([call.step for call in sent], default=step)
    runs.open_replay(unit.tx, run, to=step, replay_from=replay_from, lease_until=unit.lease())
    journal.append(unit.tx, checkpoint)
    rounds.send(unit, run, agent, step, sent)


def _apply(
    unit: Unit, run: Run, agent: AgentSpec, calls_due: Sequence[Call], answered: Answered, *, step: int
) -> list[Call]:
    """Settle what a decision settles and start the sub-agents it lets start; returns the calls to be carried out."""
    sent: list[Call] = []
    for call in calls_due:
        if call.status is CallStatus.NEW:
            calls.unpark(unit.tx, [call.id], step=step, lease_until=unit.lease())
            sent.append(call)
        elif _resumes(unit, call, *answered[call.id], step=step):
            sent.append(call)
    used = [answered[call.id] for call in calls_due if call.id in answered]
    approvals.settle(unit.tx, [asked.id for asked, _ in used])
    approvals.mark_applied(unit.tx, [decision.id for _, decision in used], unit.now)
    if agent.agents:
        sent = subagents.start_among(unit, run, agent, sent, step=step)
    return client_tools.ask_among(unit, run, sent)


def _resumes(unit: Unit, call: Call, asked: Suspension, decision: Decision, *, step: int) -> bool:
    """Whether the call is to be carried out; otherwise the decision was its result."""
    settled = settled_by(asked, decision)
    if settled is not None and asked.why is Why.CLIENT:
        settled = client_tools.shown(call, settled)
    if settled is None:
        return calls.resume(unit.tx, call, step=step, arguments=decision.edited_args, lease_until=unit.lease())
    if settled.status is not CallStatus.CANCELLED:
        calls.resume(unit.tx, call, step=step, arguments=None, lease_until=None)
    calls.answer(
        unit.tx, call, status=settled.status, code=settled.code, content=settled.content, full=settled.full,
        step=step, now=unit.now,
    )  # fmt: skip
    return False
