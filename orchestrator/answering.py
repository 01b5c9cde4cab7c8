"""Answers to questions about calls: checked, stored, and what they set in motion.

An answer is a row before anything is done with it; the run takes it up at its resume gate. A waiting run is woken.
Beside a round that is still out, an answer is carried out at once, and its call joins the round.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from chordage.orchestrator import children, gate, offering, resting, views
from chordage.orchestrator.core import kinship, resuming, spaces, storable
from chordage.orchestrator.core.agent import ToolMode
from chordage.orchestrator.core.errors import Conflict, InvalidDecision, NotFound, UserError
from chordage.orchestrator.core.intents import Intent, lone_call
from chordage.orchestrator.core.records import Phase, Run
from chordage.orchestrator.core.status import RunStatus
from chordage.orchestrator.core.suspending import (
    Action,
    Decision,
    DecisionRequest,
    Suspension,
    SuspensionStatus,
    Why,
)
from chordage.orchestrator.gateways.schemas import complaint_about
from chordage.orchestrator.runtime import Runtime
from chordage.orchestrator.store import approvals, calls, runs
from chordage.orchestrator.store.database import Tx

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


def checked(rt: Runtime, requests: Sequence[DecisionRequest], *, space: str | None = None) -> list[Suspension]:
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
    reaches = run is not None and spaces.holds(space, kinship.home_of(run.thread_id, run.kin))
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
    if request.key is not None and not 1 <= len(request.key) <= storable.NAME_MAX:
        told = f"give a decision_key of 1 to {storable.NAME_MAX} characters; it has {len(request.key)}"
        raise InvalidDecision(told, field="decision_key")
    given = {"payload": request.payload, "edited_args": request.edited_args, "reason": request.reason}
    for field, value in {**given, "decision_key": request.key, "target": request.target}.items():
        if storable.json(value) != value:
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
    wrong = offering.invalid(rt, rt.agents.get(asked.agent), asked.tool, arguments)
    if wrong:
        raise InvalidDecision(f"edited_args do not fit tool {asked.tool!r}: {wrong}", field="edited_args")


def take(
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
    return decided, [*moved, *(intent for call_id in denied for intent in children.given_up(tx, call_id=call_id))]


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
            return [resting.wake(tx, rt, run)]
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
    answered = gate.answers_of(tx, run)
    due = resuming.due(calls.unsettled(tx, run.id), answered, agent.tool_mode)
    sent, begun = gate.apply(tx, rt, run, agent, due, answered, step=run.step)
    replay_from = min([call.step for call in sent] + [run.step if run.replay_from is None else run.replay_from])
    runs.open_replay(tx, run, to=run.step, replay_from=replay_from, lease_until=rt.leases.until(rt.now()))
    return [*begun, *(lone_call(run, call) for call in sent)]


def tell(rt: Runtime, decided: Sequence[Decided]) -> None:
    for one in decided:
        if not one.duplicate:
            rt.events.emit(one.run_id, "call.decided", call=one.call_id, suspension=one.suspension_id)
