"""Answers to questions about calls: checked, stored, and what they set in motion.

An answer is a row before anything is done with it; the run takes it up at its resume gate. A waiting run is woken.
Beside a round that is still out, an answer is carried out at once, and its call joins the round.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from chordage.orchestrator import views
from chordage.orchestrator.core import kinship, message, rounds, text
from chordage.orchestrator.core.agent import AgentSpec, ToolMode
from chordage.orchestrator.core.approvals import (
    Action,
    Decision,
    DecisionRequest,
    Suspension,
    SuspensionStatus,
    Why,
    settled_by,
)
from chordage.orchestrator.core.errors import Conflict, InvalidDecision, NotFound, UserError
from chordage.orchestrator.core.intents import Advance, CallTools, Intent, lone_call
from chordage.orchestrator.core.records import Call, Phase, Run
from chordage.orchestrator.core.rounds import spread
from chordage.orchestrator.core.status import CallStatus, RunStatus
from chordage.orchestrator.gateways.schemas import complaint_about
from chordage.orchestrator.run import endings, model_request, subagents, waiting
from chordage.orchestrator.run.waiting import Transition
from chordage.orchestrator.runtime import Runtime
from chordage.orchestrator.store import approvals, calls, journal, runs
from chordage.orchestrator.store.database import Tx
from chordage.orchestrator.store.runs import RunClaim

NO_PAYLOAD = (
    "a denied call takes no payload: leave it out, and say why in reason. A denial is not remembered; what must never "
    "run is a rule in the agent's file, [permission] deny"
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Decided:
    """One answer as it is stored. `duplicate`: it had been given before."""

    decision_id: str
    suspension_id: str
    call_id: str
    run_id: str
    duplicate: bool = False


def check_decisions(rt: Runtime, requests: Sequence[DecisionRequest], *, space: str | None = None) -> list[Suspension]:
    """The questions they answer, if they can. The first that cannot is raised. `space`: of a caller; of questions that
    lie outside it is said what is said of those that are not there.
    """
    if not requests:
        raise InvalidDecision("there is no decision: give at least one", field="decisions")
    for request in requests:  # before the database is asked for anything by it
        _check_storable(request, rt.bounds.text_bytes)
    asked = [_asked(rt, request, space) for request in requests]
    for request, about in zip(requests, asked, strict=True):
        _check(rt, request, about)
    return asked


def _asked(rt: Runtime, request: DecisionRequest, space: str | None) -> Suspension:
    with rt.store.read() as tx:
        before = approvals.decision_by_key(tx, request.target, request.key) if request.key else None
        found = approvals.find(tx, before.suspension_id if before else request.target)
        about = found or calls.load(tx, request.target)
        run = runs.load(tx, about.run_id) if about else None
    reaches = run is not None and message.holds(space, kinship.home_of(run.thread_id, run.kin))
    if found is not None and reaches:
        return found
    if reaches:
        raise Conflict(f"call {request.target!r} waits for no decision and never did")
    raise NotFound(
        f"there is no suspension and no call {request.target!r}; `chordage inbox` lists what waits, with whole ids"
    )


def _check(rt: Runtime, request: DecisionRequest, asked: Suspension) -> None:
    """Whether the answer fits the question. An answer that was stored was checked when it came."""
    if request.action is Action.CANCEL:
        if request.edited_args is not None:
            raise InvalidDecision("a denied call has no arguments: leave edited_args out", field="edited_args")
        if request.payload is not None:
            raise InvalidDecision(NO_PAYLOAD, field="payload")
        return
    if asked.why is Why.CHILD:
        told = f"suspension {asked.id} is answered by its sub-agent alone; deny it and the sub-agent is cancelled"
        raise InvalidDecision(told, field="action")
    if request.edited_args is not None:
        _check_arguments(rt, request.edited_args, asked)
    if asked.schema is not None and (wrong := complaint_about(request.payload, asked.schema)):
        raise InvalidDecision(_misfit(asked, wrong), field="payload")


def _check_storable(request: DecisionRequest, limit: int) -> None:
    """What no database keeps, or only some, is refused before anything of it is stored."""
    if request.key is not None and not 1 <= len(request.key) <= text.NAME_MAX:
        told = f"give a decision_key of 1 to {text.NAME_MAX} characters; it has {len(request.key)}"
        raise InvalidDecision(told, field="decision_key")
    given = {"payload": request.payload, "edited_args": request.edited_args, "reason": request.reason}
    for field, value in {**given, "decision_key": request.key, "target": request.target}.items():
        if text.clean_json(value) != value:
            raise InvalidDecision(f"remove from {field} what is no text: a NUL, or half a surrogate pair", field=field)
        if (size := _size(field, value)) > limit:
            raise InvalidDecision(f"give a shorter {field}: it has {size} bytes, the limit is {limit}", field=field)


def _size(field: str, value: object) -> int:
    try:
        return len(json.dumps(value, ensure_ascii=False, allow_nan=False).encode())
    except (TypeError, ValueError) as error:
        raise InvalidDecision(f"give {field} as JSON: {error}", field=field) from error


def _misfit(asked: Suspension, wrong: str) -> str:
    return f"answer {asked.id} with a payload such as {views.answers(asked.schema)}; what came does not fit: {wrong}"


def _check_arguments(rt: Runtime, arguments: dict[str, object], asked: Suspension) -> None:
    wrong = model_request.invalid(rt, rt.agents.get(asked.agent), asked.tool, arguments)
    if wrong:
        raise InvalidDecision(f"edited_args do not fit tool {asked.tool!r}: {wrong}", field="edited_args")


def take_decisions(
    tx: Tx,
    rt: Runtime,
    requests: Sequence[DecisionRequest],
    asked: Sequence[Suspension],
    source: str,
    *,
    beside: Sequence[Run] = (),
) -> tuple[list[Decided], list[Intent]]:
    """All of them, or none. Their runs are locked first; what counts is what the questions have become meanwhile.
    `beside`: runs that the caller will lock as well; all who lock several do so in one order.
    """
    of_questions = {about.run_id for about in asked}
    in_order = sorted(of_questions | {run.id for run in beside}, reverse=True)  # a child before its parent
    locked = {run_id: runs.lock(tx, run_id) for run_id in in_order}
    decided = [_store_one(tx, rt, *pair, source) for pair in zip(requests, asked, strict=True)]
    new = [one for one in decided if not one.duplicate]
    moved = [
        intent for run_id in sorted({one.run_id for one in new}) if (run := locked[run_id])
        for intent in _move(tx, rt, run)
    ]  # fmt: skip
    of_children = {about.id for about in asked if about.why is Why.CHILD}
    denied = [one.call_id for one in new if one.suspension_id in of_children]
    return decided, [*moved, *(intent for call_id in denied for intent in subagents.given_up(tx, call_id=call_id))]


def _store_one(tx: Tx, rt: Runtime, request: DecisionRequest, asked: Suspension, source: str) -> Decided:
    now_asked = approvals.load(tx, asked.id)
    assert now_asked is not None
    before = approvals.decision_of(tx, asked.id)
    if before is None and request.key and request.target == asked.call_id:  # the call has asked again meanwhile
        before = approvals.decision_by_key(tx, asked.call_id, request.key)
    if before is not None and before.says(request):
        return _decided(before, duplicate=True)
    if before is not None or now_asked.status is not SuspensionStatus.OPEN:
        raise _too_late(tx, now_asked, before)
    answer = Decision(
        id=rt.new_id(), suspension_id=asked.id, call_id=asked.call_id, run_id=asked.run_id, action=request.action,
        payload=request.payload, edited_args=request.edited_args, reason=request.reason, key=request.key,
    )  # fmt: skip
    approvals.store_decision(tx, answer, source=source, now=rt.now())
    approvals.set_status(tx, asked.id, SuspensionStatus.DECIDED, was=SuspensionStatus.OPEN)
    return _decided(answer)


def _decided(answer: Decision, *, duplicate: bool = False) -> Decided:
    return Decided(
        decision_id=answer.id, suspension_id=answer.suspension_id, call_id=answer.call_id, run_id=answer.run_id,
        duplicate=duplicate,
    )  # fmt: skip


def _too_late(tx: Tx, asked: Suspension, before: Decision | None) -> Conflict:
    call = calls.load(tx, asked.call_id)
    stands = f"; its call is {call.status.value}" if call else ""
    if before is None:
        return Conflict(f"suspension {asked.id} is {asked.status.value}{stands}: there is nothing left to decide")
    same_key = f" with the same key {before.key!r} and other content" if before.key else ""
    return Conflict(f"suspension {asked.id} was answered with {before.action.value!r} before{same_key}{stands}")


def _move(tx: Tx, rt: Runtime, run: Run) -> list[Intent]:
    """What the answers set in motion now; else the run comes to its gate by itself."""
    match run.status:
        case RunStatus.WAITING:
            return [waiting.wake(tx, rt, run)]
        case RunStatus.RUNNING if run.in_flight and run.phase is not Phase.INFERENCE:
            return _join_the_round(tx, rt, run)
        case _:
            return []


def _join_the_round(tx: Tx, rt: Runtime, run: Run) -> list[Intent]:
    try:
        agent = rt.agents.get(run.agent)
    except UserError:  # its file is being edited: the gate comes to it after the round
        return []
    if not agent.stream or agent.tool_mode is not ToolMode.PARALLEL:
        return []
    answered = answers_of(tx, run)
    due = rounds.due(calls.unsettled(tx, run.id), answered, agent.tool_mode)
    sent, begun = apply(tx, rt, run, agent, due, answered, step=run.step)
    replay_from = min([call.step for call in sent] + [run.step if run.replay_from is None else run.replay_from])
    runs.open_replay(tx, run, to=run.step, replay_from=replay_from, lease_until=rt.leases.until(rt.now()))
    return [*begun, *(lone_call(run, call) for call in sent)]


def tell(rt: Runtime, decided: Sequence[Decided]) -> None:
    for one in decided:
        if not one.duplicate:
            rt.events.emit(one.run_id, "call.decided", call=one.call_id, suspension=one.suspension_id)


# The resume gate: at every crossing of a run that has suspended calls, what was decided goes on, and then the run.
#
# Passed at the run's start, at the top of its loop and after every round; all of them are the same place, `after_rest`
# of the decider. A run none of whose calls was ever suspended does not come here.

Answered = dict[str, tuple[Suspension, Decision]]  # by call


def resume_decided(rt: Runtime, run: Run, agent: AgentSpec) -> list[Intent] | None:
    """What follows; None when nothing holds the run up and the model may be asked."""
    crossing = rt.store.insist(lambda tx: _pass(tx, rt, run, agent))
    if crossing is None:
        return None
    if crossing.rests:
        waiting.tell_the_rest(rt, run)
    if crossing.ended:
        endings.tell_the_end(rt, run, crossing.ended)
    return crossing.intents


def _pass(tx: Tx, rt: Runtime, seen: Run, agent: AgentSpec) -> Transition | None:
    run = runs.lock(tx, seen.id)
    if run is None or run.status is not RunStatus.RUNNING or run.next_inference is None or _moved(run, seen):
        return waiting.NOT_OURS
    at = RunClaim(run=run, step=run.next_inference, token=run.claim_token)
    if run.kept is not None and run.kept.reason in waiting.FINAL:
        return endings.end(tx, rt, at, run.kept)
    open_calls = calls.unsettled(tx, run.id)
    answered = answers_of(tx, run)
    due = subagents.in_turn(agent, rounds.due(open_calls, answered, agent.tool_mode), answered)
    if due:
        return Transition(intents=_replay(tx, rt, run, agent, due, answered))
    settled = waiting.just_settled(tx, run)
    ends = run.kept is not None
    if run.phase is not Phase.INFERENCE and (
        rounds.must_wait(settled, open_calls, agent.mixed_round, has_kept_an_end=ends) or subagents.hold_up(tx, run)
    ):
        rows = [waiting.round_row(rt, run, settled)] if settled else []
        return waiting.suspend_run(tx, rt, at, to=at.step, kept=run.kept, rows=rows, mode=agent.tool_mode)
    if run.kept is None or open_calls:
        return None
    return endings.end(tx, rt, at, run.kept)


def replay_if_due(tx: Tx, rt: Runtime, run: Run, agent: AgentSpec) -> list[Intent] | None:
    """Only what was decided goes on, and the run nowhere. The run is locked."""
    answered = answers_of(tx, run)
    due = subagents.in_turn(agent, rounds.due(calls.unsettled(tx, run.id), answered, agent.tool_mode), answered)
    return _replay(tx, rt, run, agent, due, answered) if due else None


def _moved(run: Run, seen: Run) -> bool:
    return (run.epoch, run.step, run.phase) != (seen.epoch, seen.step, seen.phase)


def answers_of(tx: Tx, run: Run) -> Answered:
    """The questions of a run that have their answer, by call."""
    asked = {s.id: s for s in approvals.unsettled(tx, run.id) if s.status is SuspensionStatus.DECIDED}
    found = approvals.decisions_of(tx, asked) if asked else {}
    return {asked[suspension_id].call_id: (asked[suspension_id], answer) for suspension_id, answer in found.items()}


def _replay(tx: Tx, rt: Runtime, run: Run, agent: AgentSpec, due: Sequence[Call], answered: Answered) -> list[Intent]:
    """A step of its own, in which the calls that were decided are settled or sent."""
    step = run.step + 1
    owed = waiting.owed_rows(tx, rt, run)
    sent, begun = apply(tx, rt, run, agent, due, answered, step=step)
    replay_from = min([call.step for call in sent], default=step)
    runs.open_replay(tx, run, to=step, replay_from=replay_from, lease_until=rt.leases.until(rt.now()))
    journal.append(tx, owed)
    if not sent:
        return [*begun, Advance(run_id=run.id, group=run.group, of=run.subject)]
    at_once = 1 if agent.tool_mode is ToolMode.SEQUENTIAL else agent.concurrency
    batches = spread([call.id for call in sent], at_once)
    fan_out = CallTools(
        run_id=run.id, thread_id=run.thread_id, step=step, batches=batches, group=run.group, of=run.subject,
        tools={call.id: call.tool for call in sent},
    )  # fmt: skip
    return [*begun, fan_out]


def apply(
    tx: Tx, rt: Runtime, run: Run, agent: AgentSpec, due: Sequence[Call], answered: Answered, *, step: int
) -> tuple[list[Call], list[Intent]]:
    """Settle what the answer settles; returned are the calls that have to be carried out, and what becomes of those
    that ask a sub-agent.
    """
    now = rt.now()
    until = rt.leases.until(now)
    sent: list[Call] = []
    for call in due:
        if call.status is CallStatus.NEW:
            calls.unpark(tx, [call.id], step=step, lease_until=until)
            sent.append(call)
        elif _is_sent(tx, rt, call, *answered[call.id], step=step):
            sent.append(call)
    used = [answered[call.id] for call in due if call.id in answered]
    approvals.settle(tx, [asked.id for asked, _ in used])
    approvals.mark_applied(tx, [answer.id for _, answer in used], now)
    return subagents.begin_among(tx, rt, run, agent, sent, step=step)


def _is_sent(tx: Tx, rt: Runtime, call: Call, asked: Suspension, answer: Decision, *, step: int) -> bool:
    now = rt.now()
    settled = settled_by(asked, answer)
    if settled is None:
        until = rt.leases.until(now)
        return calls.resume(tx, call.id, step=step, arguments=answer.edited_args, lease_until=until)
    if settled.status is not CallStatus.CANCELLED:
        calls.resume(tx, call.id, step=step, arguments=None, lease_until=None)
    calls.answer(
        tx, call.id, status=settled.status, code=settled.code, content=settled.content, full=settled.full, step=step,
        now=now,
    )  # fmt: skip
    return False
