"""Why a tool call is not settled, and why a question about one is open."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime

from chordage.orchestrator.core.agent import Effect
from chordage.orchestrator.core.approvals import OnExpiry, SuspensionStatus, Why
from chordage.orchestrator.core.groups import Group
from chordage.orchestrator.core.status import CallStatus
from chordage.orchestrator.core.why import reasons
from chordage.orchestrator.core.why.reasons import (
    CALLER,
    CLOCK,
    PERSON,
    Finding,
    OwnerKind,
    Remedy,
    RowKey,
    RowKind,
    WaitCause,
    WaitClock,
    WaitOwner,
    WaitReason,
    at,
    first_match,
    is_past,
)

_THEN = {
    OnExpiry.DENY: "then the call is denied",
    OnExpiry.CANCEL_RUN: "then its run is cancelled",
    OnExpiry.ESCALATE: "then it stays open and counts as overdue",
    OnExpiry.DEFAULT: "then its default is taken as the answer",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class OpenSuspension:
    """A question that is not settled."""

    id: str
    call_id: str
    run_id: str
    turn_id: str
    agent: str
    tool: str
    why: Why
    status: SuspensionStatus
    created_at: datetime
    expires_at: datetime | None
    on_expiry: OnExpiry
    is_overdue: bool
    needs_payload: bool = False  # its answer has a schema
    child_turn: str | None = None  # of a call to a sub-agent
    child_agent: str | None = None
    child_is_done: bool = False

    @property
    def is_open(self) -> bool:
        return self.status is SuspensionStatus.OPEN

    @property
    def asks_a_person(self) -> bool:
        return self.is_open and self.why not in {Why.CHILD, Why.CLIENT}


@dataclass(frozen=True, kw_only=True, slots=True)
class OpenCall:
    id: str
    run_id: str
    turn_id: str
    step: int
    place: int
    tool: str
    effect: Effect
    status: CallStatus
    worker: str | None
    is_worker_gone: bool
    lease_until: datetime | None
    started_at: datetime | None
    sent_at: datetime  # when its round was opened, or it was sent again
    resends: int
    stays_here: bool  # it runs in the process that holds the run, without a message
    group: Group
    is_served: bool  # a process takes messages from the queue of its group's tools
    question: OpenSuspension | None = None
    behind: str | None = None  # the suspended call of its round that is ahead of it

    @property
    def is_running(self) -> bool:
        return self.status is CallStatus.RUNNING and self.worker is not None


# questions


def _about(
    asked: OpenSuspension,
    cause: WaitCause,
    owner: WaitOwner,
    text: str,
    remedy: Remedy,
    *,
    until: datetime | None = None,
    next_row: RowKey | None = None,
) -> Finding:
    reason = WaitReason(
        kind=RowKind.SUSPENSION, id=asked.id, cause=cause, owner=owner, since=asked.created_at, until=until,
        remedy=remedy, text=text,
    )  # fmt: skip
    return Finding(reason=reason, next=next_row)


def _decided(asked: OpenSuspension, _clock: WaitClock) -> Finding | None:
    if asked.is_open:
        return None
    text = f"{asked.tool} is decided; run {asked.run_id} applies it when it resumes, or with the other open calls."
    owner = WaitOwner(kind=OwnerKind.RUN, id=asked.run_id)
    return _about(asked, WaitCause.DECIDED, owner, text, reasons.show(asked.turn_id))


def _sub_agent(asked: OpenSuspension, _clock: WaitClock) -> Finding | None:
    if asked.why is not Why.CHILD:
        return None
    child, agent = asked.child_turn, asked.child_agent or asked.tool
    text = f"It waits for sub-agent {agent}" + (f", turn {child}." if child else ".")
    owner = WaitOwner(kind=OwnerKind.TURN, id=child or asked.call_id)
    next_row = RowKey(RowKind.TURN, child) if child and not asked.child_is_done else None
    return _about(asked, WaitCause.SUB_AGENT, owner, text, reasons.cancel(child or asked.turn_id), next_row=next_row)


def _unknown(asked: OpenSuspension, _clock: WaitClock) -> Finding | None:
    if asked.why is not Why.UNKNOWN:
        return None
    text = f"A worker died while {asked.tool} was running; a person has to say whether the call took effect."
    command = f'chordage approve {asked.id} --payload \'{{"answer": "retry"}}\''
    remedy = Remedy(command=command, http=reasons.DECIDE)
    return _about(asked, WaitCause.OUTCOME_UNKNOWN, PERSON, text + _expiry(asked), remedy, until=_until(asked))


def _client_tool(asked: OpenSuspension, _clock: WaitClock) -> Finding | None:
    if asked.why is not Why.CLIENT:
        return None
    text = f"The caller carries {asked.tool} out and has not sent the result." + _expiry(asked)
    remedy = Remedy(command=f"chordage approve {asked.id} --payload JSON", http=reasons.DECIDE)
    return _about(asked, WaitCause.CLIENT_TOOL, CALLER, text, remedy, until=_until(asked))


def _decision(asked: OpenSuspension, _clock: WaitClock) -> Finding:
    text = f"A person has to decide about {asked.tool}." + _expiry(asked)
    return _about(asked, WaitCause.DECISION, PERSON, text, _approval(asked), until=_until(asked))


def _approval(asked: OpenSuspension) -> Remedy:
    payload = " --payload JSON" if asked.needs_payload else ""
    return Remedy(command=f"chordage approve {asked.id}{payload}", http=reasons.DECIDE)


def _until(asked: OpenSuspension) -> datetime | None:
    return None if asked.is_overdue else asked.expires_at


def _expiry(asked: OpenSuspension) -> str:
    if asked.expires_at is None:
        return ""
    if asked.is_overdue:
        return f" It is overdue since {at(asked.expires_at)}."
    return f" It expires at {at(asked.expires_at)}; {_THEN[asked.on_expiry]}."


QUESTION_TESTS = (_decided, _sub_agent, _unknown, _client_tool, _decision)


def of_suspension(asked: OpenSuspension, clock: WaitClock) -> Finding:
    return first_match(QUESTION_TESTS, asked, clock)


def with_more(finding: Finding, more: int) -> Finding:
    """Further questions of the same run are open."""
    text = f"{finding.reason.text} {more} more of its calls {'waits' if more == 1 else 'wait'} too."
    return replace(finding, reason=replace(finding.reason, text=text))


# calls


def _reason(
    call: OpenCall,
    cause: WaitCause,
    owner: WaitOwner,
    text: str,
    *,
    since: datetime | None = None,
    until: datetime | None = None,
    remedy: Remedy | None = None,
    next_row: RowKey | None = None,
) -> Finding:
    reason = WaitReason(
        kind=RowKind.CALL, id=call.id, cause=cause, owner=owner, since=since or call.started_at or call.sent_at,
        until=until, remedy=remedy or reasons.cancel(call.turn_id), text=text,
    )  # fmt: skip
    return Finding(reason=reason, next=next_row)


def _suspended(call: OpenCall, clock: WaitClock) -> Finding | None:
    if call.status is not CallStatus.SUSPENDED or call.question is None:
        return None
    return of_suspension(call.question, clock).of(RowKind.CALL, call.id)


def _behind_call(call: OpenCall, _clock: WaitClock) -> Finding | None:
    if call.lease_until is not None or call.status is CallStatus.RUNNING:
        return None
    ahead = call.behind
    if ahead is None:
        text = f"{call.tool} is sent when run {call.run_id} resumes."
        return _reason(call, WaitCause.DECIDED, WaitOwner(kind=OwnerKind.RUN, id=call.run_id), text)
    text = f"The calls of its round run one after the other, and call {ahead} before it waits."
    owner = WaitOwner(kind=OwnerKind.CALL, id=ahead)
    return _reason(
        call, WaitCause.BEHIND_CALL, owner, text, remedy=reasons.questions_of(call.run_id),
        next_row=RowKey(RowKind.CALL, ahead),
    )  # fmt: skip


def _claimed(call: OpenCall, clock: WaitClock) -> Finding | None:
    if not call.is_running or call.is_worker_gone or is_past(call.lease_until, clock):
        return None
    text = f"Worker {call.worker} carries out {call.tool}, and renews its lease while it does."
    return _reason(
        call, WaitCause.CALL_CLAIMED, WaitOwner(kind=OwnerKind.PROCESS, id=call.worker), text, until=call.lease_until
    )


def _lost_worker(call: OpenCall, clock: WaitClock) -> Finding | None:
    is_unsafe = call.effect is Effect.UNSAFE
    if not call.is_running or not (is_unsafe or call.is_served):  # what runs again needs a worker
        return None
    then = "rescue then asks what became of the call" if is_unsafe else "rescue then sends the call again"
    waits = call.lease_until is not None and not is_past(call.lease_until, clock) and _needs_lease(call)
    text = f"Worker {call.worker} is gone, which carried out {call.tool}; {then}."
    return _reason(
        call, WaitCause.LOST_WORKER, WaitOwner(kind=OwnerKind.PROCESS, id=call.worker), text,
        until=call.lease_until if waits else clock.next_sweep, remedy=reasons.STATUS,
    )  # fmt: skip


def _needs_lease(call: OpenCall) -> bool:
    """Its holder may only be late: what may have had an effect is judged when its lease has run out."""
    return call.effect not in {Effect.PURE, Effect.IDEMPOTENT}


def _no_worker(call: OpenCall, _clock: WaitClock) -> Finding | None:
    if call.is_served or call.stays_here:
        return None
    queue = call.group.tools_queue
    text, owner = f"No worker serves the queue {queue}.", WaitOwner(kind=OwnerKind.QUEUE, id=queue)
    return _reason(call, WaitCause.NO_WORKER, owner, text, remedy=reasons.worker_for(queue))


def _next_sweep(call: OpenCall, clock: WaitClock) -> Finding | None:
    if call.status is not CallStatus.RUNNING and not is_past(call.lease_until, clock):
        return None
    text = f"No worker has {call.tool}; rescue sends it again."
    until = clock.next_sweep if call.lease_until is None else max(call.lease_until, clock.next_sweep)
    return _reason(call, WaitCause.NEXT_SWEEP, CLOCK, text, until=until, remedy=reasons.STATUS)


def _queued(call: OpenCall, _clock: WaitClock) -> Finding:
    queue = call.group.tools_queue
    if call.stays_here:
        text = f"{call.tool} runs in the process that holds run {call.run_id}."
        owner = WaitOwner(kind=OwnerKind.RUN, id=call.run_id)
    else:
        text = f"{call.tool} is in the queue {queue}, or a worker has just begun it."
        owner = WaitOwner(kind=OwnerKind.QUEUE, id=queue)
    return _reason(call, WaitCause.CALL_QUEUED, owner, text, until=call.lease_until)


TESTS = (_suspended, _behind_call, _claimed, _lost_worker, _no_worker, _next_sweep, _queued)


def of_call(call: OpenCall, clock: WaitClock) -> Finding:
    return first_match(TESTS, call, clock)
