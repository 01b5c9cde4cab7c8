"""Why an open run is where it is. Its turn waits for the same reason."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from chordage.orchestrator.core.groups import Group
from chordage.orchestrator.core.status import RunStatus
from chordage.orchestrator.core.stepping import Drive, OnHeld
from chordage.orchestrator.core.text import counted
from chordage.orchestrator.core.why import calls, reasons
from chordage.orchestrator.core.why.calls import OpenCall, OpenSuspension
from chordage.orchestrator.core.why.reasons import (
    CLOCK,
    CONSUMER,
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

_ON_HELD = {
    OnHeld.PARK: "then it is parked",
    OnHeld.RESUME: "then it makes one more request by itself",
    OnHeld.CANCEL: "then it is cancelled",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class HoldState:
    """Of a run that is held for its consumer."""

    drive: Drive
    is_parked: bool
    held_until: datetime | None
    on_held: OnHeld
    has_failed: bool  # the last model call failed


@dataclass(frozen=True, kw_only=True, slots=True)
class OpenRun:
    id: str
    turn_id: str
    agent: str
    group: Group
    status: RunStatus
    is_held: bool
    is_stalled: bool
    since: datetime  # when its step was opened, or it began to wait
    lease_until: datetime | None
    resends: int
    holder: str | None  # the process that calls the model, by the row or by Redis
    is_holder_lost: bool  # it is gone, or its lease has run out
    backs_off_until: datetime | None
    is_served: bool  # a process takes messages from the queue of its group
    in_flight: Sequence[OpenCall] = ()  # of its open step
    round_size: int = 0
    questions: Sequence[OpenSuspension] = ()  # oldest first
    hold: HoldState | None = None


def _reason(
    run: OpenRun,
    cause: WaitCause,
    owner: WaitOwner,
    text: str,
    *,
    until: datetime | None = None,
    remedy: Remedy | None = None,
    next_row: RowKey | None = None,
) -> Finding:
    reason = WaitReason(
        kind=RowKind.RUN, id=run.id, cause=cause, owner=owner, since=run.since, until=until,
        remedy=remedy or reasons.cancel(run.turn_id), text=text,
    )  # fmt: skip
    return Finding(reason=reason, next=next_row)


# a run that waits


def _held(run: OpenRun, clock: WaitClock) -> Finding | None:
    hold = run.hold
    if run.status is not RunStatus.WAITING or not run.is_held or hold is None:
        return None
    if hold.drive is not Drive.STEP:
        text = "Its consumer has moved it on; a worker resumes it."
        until = hold.held_until and max(hold.held_until, clock.next_sweep)
        return _reason(run, WaitCause.MESSAGE_SENT, _queue(run), text, until=until, remedy=reasons.STATUS)
    what = "after a failed model call" if hold.has_failed else "for its consumer"
    if hold.is_parked or hold.held_until is None:
        text = f"It is {'parked' if hold.is_parked else 'held'} {what}, without a limit."
        return _reason(run, WaitCause.HELD, CONSUMER, text)
    text = f"It is held {what} until {at(hold.held_until)}; {_ON_HELD[hold.on_held]}."
    return _reason(run, WaitCause.HELD, CONSUMER, text, until=hold.held_until)


def _asks(run: OpenRun, clock: WaitClock) -> Finding | None:
    """The oldest open question to a person, or else the oldest sub-agent."""
    if run.status is not RunStatus.WAITING or not run.questions:
        return None
    to_people = [asked for asked in run.questions if asked.asks_a_person]
    undecided = [asked for asked in run.questions if asked.is_open]
    first = (to_people or undecided or run.questions)[0]
    finding = calls.of_suspension(first, clock).of(RowKind.RUN, run.id)
    return calls.with_more(finding, len(undecided) - 1) if len(undecided) > 1 else finding


def _resumes(run: OpenRun, _clock: WaitClock) -> Finding | None:
    if run.status is not RunStatus.WAITING:
        return None
    text = "Nothing it waited for is open any more; a worker resumes it."
    return _reason(run, WaitCause.MESSAGE_SENT, _queue(run), text, remedy=reasons.STATUS)


# a run that is at work


def _broken_agent(run: OpenRun, _clock: WaitClock) -> Finding | None:
    if not run.is_stalled:
        return None
    text = f"The files of agent {run.agent} are broken; it continues when they are repaired, and has left its place."
    owner = WaitOwner(kind=OwnerKind.AGENT, id=run.agent)
    return _reason(run, WaitCause.BROKEN_AGENT, owner, text, until=run.lease_until, remedy=reasons.CHECK)


def _tool_round(run: OpenRun, _clock: WaitClock) -> Finding | None:
    if not run.in_flight:
        return None
    running = [call for call in run.in_flight if call.is_running]
    first = (running or run.in_flight)[0]
    settled = run.round_size - len(run.in_flight)
    text = f"{settled} of {counted(run.round_size, 'call')} of its round {'is' if settled == 1 else 'are'} done"
    if running:
        workers = sorted({str(call.worker) for call in running})
        tools = ", ".join(sorted({call.tool for call in running}))
        text += f"; {tools} {'runs' if len(running) == 1 else 'run'} on {', '.join(workers)}."
        owner = WaitOwner(kind=OwnerKind.PROCESS, id=first.worker)
    else:
        text += f"; {first.tool} has not been taken by a worker, as far as is known."
        owner = WaitOwner(kind=OwnerKind.CALL, id=first.id)
    return _reason(
        run, WaitCause.TOOL_ROUND, owner, text, until=first.lease_until, next_row=RowKey(RowKind.CALL, first.id)
    )


def _backs_off(run: OpenRun, clock: WaitClock) -> Finding | None:
    if run.holder is None or run.is_holder_lost or run.backs_off_until is None or run.backs_off_until <= clock.now:
        return None
    text = f"The model refused or failed; worker {run.holder} calls it again at {at(run.backs_off_until)}."
    owner = WaitOwner(kind=OwnerKind.PROCESS, id=run.holder)
    return _reason(run, WaitCause.MODEL_BACKOFF, owner, text, until=run.backs_off_until)


def _model_call(run: OpenRun, _clock: WaitClock) -> Finding | None:
    if run.holder is None or run.is_holder_lost:
        return None
    text = f"Worker {run.holder} calls the model, and renews its lease while it does."
    owner = WaitOwner(kind=OwnerKind.PROCESS, id=run.holder)
    return _reason(run, WaitCause.MODEL_CALL, owner, text, until=run.lease_until)


def _no_worker(run: OpenRun, _clock: WaitClock) -> Finding | None:
    if run.is_served:
        return None
    queue = run.group.queue
    return _reason(
        run, WaitCause.NO_WORKER, _queue(run), f"No worker serves the queue {queue}.",
        remedy=reasons.worker_for(queue),
    )  # fmt: skip


def _lost_worker(run: OpenRun, clock: WaitClock) -> Finding | None:
    if run.holder is None:
        return None
    text = f"Worker {run.holder} is gone, which called the model; rescue sends the run to another."
    owner = WaitOwner(kind=OwnerKind.PROCESS, id=run.holder)
    return _reason(run, WaitCause.LOST_WORKER, owner, text, until=clock.next_sweep, remedy=reasons.STATUS)


def _next_sweep(run: OpenRun, clock: WaitClock) -> Finding | None:
    if not is_past(run.lease_until, clock):
        return None
    text = "Its wake-up was lost; the next sweep sends it again."
    return _reason(run, WaitCause.NEXT_SWEEP, CLOCK, text, until=clock.next_sweep, remedy=reasons.STATUS)


def _message_sent(run: OpenRun, _clock: WaitClock) -> Finding:
    again = f" It was sent again {counted(run.resends, 'time')}." if run.resends else ""
    text = f"Its wake-up is in the queue {run.group.queue}, or a worker has just taken it.{again}"
    return _reason(run, WaitCause.MESSAGE_SENT, _queue(run), text, until=run.lease_until, remedy=reasons.STATUS)


def _queue(run: OpenRun) -> WaitOwner:
    return WaitOwner(kind=OwnerKind.QUEUE, id=run.group.queue)


TESTS = (
    _held,
    _asks,
    _resumes,
    _broken_agent,
    _tool_round,
    _backs_off,
    _model_call,
    _no_worker,
    _lost_worker,
    _next_sweep,
    _message_sent,
)


def of_run(run: OpenRun, clock: WaitClock) -> Finding:
    return first_match(TESTS, run, clock)
