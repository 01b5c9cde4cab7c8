"""Why a queued turn has not started. An active turn waits for the reason of its run."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from chordage.orchestrator.core.groups import Group
from chordage.orchestrator.core.reasons import Reason
from chordage.orchestrator.core.status import RunStatus
from chordage.orchestrator.core.text import counted
from chordage.orchestrator.core.why import reasons
from chordage.orchestrator.core.why.reasons import (
    CLOCK,
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

HOLDERS = 5  # runs of a full group that are named


@dataclass(frozen=True, kw_only=True, slots=True)
class LineState:
    """The thread of a queued turn."""

    open_run: str | None = None
    open_turn: str | None = None  # of that run
    run_status: RunStatus | None = None
    run_reason: Reason | None = None
    head: str | None = None  # the queued turn that is next on the thread


@dataclass(frozen=True, kw_only=True, slots=True)
class GroupState:
    group: Group
    budget: int
    running: int
    holders: tuple[str, ...]  # the first of the runs that hold its places
    next_tenant: str | None
    all_fit: bool  # there is a free place for each ready turn
    is_served: bool = True  # a process takes messages from its queue, as far as is known
    names_others: bool = True  # False: who asks may not see the runs and names of other tenants

    @property
    def free(self) -> int:
        return max(0, self.budget - self.running)


@dataclass(frozen=True, kw_only=True, slots=True)
class QueuedTurn:
    id: str
    thread_id: str
    agent: str
    tenant: str
    ready: int  # as in the row: 0 behind another, 1 ready, 2 asleep
    steers: bool
    queued_at: datetime
    due_at: datetime
    not_before: datetime | None
    deadline: datetime | None
    sent_at: datetime  # its newest wake-up
    lost_at: datetime  # when that counts as lost
    is_unwanted: bool  # a child whose result is no longer needed
    line: LineState
    group: GroupState
    ahead: int = 0  # turns that start before it, counted up to a bound
    ahead_or_more: bool = False

    @property
    def ready_since(self) -> datetime:
        return max(self.queued_at, self.not_before or self.queued_at)


def _reason(
    turn: QueuedTurn,
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
        kind=RowKind.TURN, id=turn.id, cause=cause, owner=owner, since=since or turn.queued_at, until=until,
        remedy=remedy or reasons.cancel(turn.id), text=text,
    )  # fmt: skip
    return Finding(reason=reason, next=next_row)


def _unwanted(turn: QueuedTurn, clock: WaitClock) -> Finding | None:
    if not turn.is_unwanted:
        return None
    text = "The run that asked for it no longer needs its result; the next sweep cancels it."
    return _reason(turn, WaitCause.UNWANTED, CLOCK, text, until=clock.next_sweep)


def _deadline_passed(turn: QueuedTurn, clock: WaitClock) -> Finding | None:
    if not is_past(turn.deadline, clock):
        return None
    text = "Its deadline has passed before it could start; the next sweep ends it as expired."
    return _reason(turn, WaitCause.DEADLINE_PASSED, CLOCK, text, since=turn.deadline, until=clock.next_sweep)


def _joins_run(turn: QueuedTurn, _clock: WaitClock) -> Finding | None:
    line = turn.line
    if not turn.steers or line.open_run is None or line.run_status is not RunStatus.RUNNING:
        return None
    owner, text = WaitOwner(kind=OwnerKind.RUN, id=line.open_run), f"It joins run {line.open_run} at its next step."
    return _reason(turn, WaitCause.JOINS_RUN, owner, text, next_row=RowKey(RowKind.RUN, line.open_run))


def _behind_waiting_run(turn: QueuedTurn, _clock: WaitClock) -> Finding | None:
    line = turn.line
    if line.open_run is None or line.run_status is not RunStatus.WAITING:
        return None
    held = line.run_reason is Reason.HELD
    what = "is held for its consumer" if held else "waits for decisions"
    return _reason(
        turn, WaitCause.BEHIND_WAITING_RUN, WaitOwner(kind=OwnerKind.RUN, id=line.open_run),
        f"Run {line.open_run} on its thread {what}, and messages are kept until it has ended.",
        remedy=reasons.show_run(line.open_run) if held else reasons.questions_of(line.open_run),
        next_row=RowKey(RowKind.RUN, line.open_run),
    )  # fmt: skip


def _behind_run(turn: QueuedTurn, _clock: WaitClock) -> Finding | None:
    ahead = turn.line.open_turn
    if ahead is None:
        return None
    text = f"It waits behind turn {ahead} on its thread, which is at work."
    owner = WaitOwner(kind=OwnerKind.TURN, id=ahead)
    return _reason(
        turn, WaitCause.BEHIND_TURN, owner, text, remedy=reasons.cancel(ahead), next_row=RowKey(RowKind.TURN, ahead)
    )


def _behind_turn(turn: QueuedTurn, _clock: WaitClock) -> Finding | None:
    ahead = turn.line.head
    if turn.ready != 0 or ahead is None or ahead == turn.id:
        return None
    text = f"It waits behind turn {ahead}, which is queued on the same thread and starts first."
    owner = WaitOwner(kind=OwnerKind.TURN, id=ahead)
    return _reason(
        turn, WaitCause.BEHIND_TURN, owner, text, remedy=reasons.cancel(ahead), next_row=RowKey(RowKind.TURN, ahead)
    )


def _not_before(turn: QueuedTurn, clock: WaitClock) -> Finding | None:
    if turn.not_before is None or turn.not_before <= clock.now:
        return None
    text = f"It starts no earlier than {at(turn.not_before)}, as its sender asked."
    return _reason(turn, WaitCause.NOT_BEFORE, CLOCK, text, until=turn.not_before)


def _broken_agent(turn: QueuedTurn, clock: WaitClock) -> Finding | None:
    if turn.ready != 2 or turn.due_at <= clock.now:
        return None
    text = f"The files of agent {turn.agent} are broken; it starts when they are repaired."
    owner = WaitOwner(kind=OwnerKind.AGENT, id=turn.agent)
    return _reason(turn, WaitCause.BROKEN_AGENT, owner, text, until=turn.due_at, remedy=reasons.CHECK)


def _next_sweep(turn: QueuedTurn, clock: WaitClock) -> Finding | None:
    if turn.ready == 1:
        return None
    text = "It is next on its thread; the next sweep makes it ready."
    return _reason(turn, WaitCause.NEXT_SWEEP, CLOCK, text, until=clock.next_sweep, remedy=reasons.STATUS)


def _group_paused(turn: QueuedTurn, _clock: WaitClock) -> Finding | None:
    group = turn.group.group.value
    if turn.group.budget > 0:
        return None
    text = f"Group {group} is paused: its budget is 0."
    remedy, owner = reasons.budget(group, "NUMBER"), WaitOwner(kind=OwnerKind.GROUP, id=group)
    return _reason(turn, WaitCause.GROUP_PAUSED, owner, text, since=turn.ready_since, remedy=remedy)


def _no_worker(turn: QueuedTurn, _clock: WaitClock) -> Finding | None:
    queue = turn.group.group.queue
    if turn.group.is_served:
        return None
    text, owner = f"No worker serves the queue {queue}.", WaitOwner(kind=OwnerKind.QUEUE, id=queue)
    remedy = reasons.worker_for(queue)
    return _reason(turn, WaitCause.NO_WORKER, owner, text, since=turn.ready_since, remedy=remedy)


def _group_full(turn: QueuedTurn, _clock: WaitClock) -> Finding | None:
    state = turn.group
    if state.free:
        return None
    group, more = state.group.value, state.running - len(state.holders)
    named = ", ".join(state.holders) + (f" and {more} more" if more > 0 else "")
    by = f" by run {named}" if state.names_others and state.holders else ""
    text = (
        f"The budget of group {group} is spent: {state.running} of {state.budget} places are taken{by}; {_ahead(turn)}."
    )
    return _reason(
        turn, WaitCause.GROUP_FULL, WaitOwner(kind=OwnerKind.GROUP, id=group), text, since=turn.ready_since,
        remedy=reasons.budget(group, state.budget + 1),
        next_row=RowKey(RowKind.RUN, state.holders[0]) if state.names_others and state.holders else None,
    )  # fmt: skip


def _ahead(turn: QueuedTurn) -> str:
    if turn.ahead_or_more:
        return f"more than {turn.ahead} turns are ahead of it"
    return f"about {turn.ahead} ahead of it" if turn.ahead else "it is next"


def _other_tenant(turn: QueuedTurn, _clock: WaitClock) -> Finding | None:
    state = turn.group
    if state.all_fit or state.next_tenant in {None, turn.tenant}:
        return None
    places, name = counted(state.free, "place"), state.next_tenant if state.names_others else None
    who = "another tenant" if name is None else f"tenant {name}"
    text = f"Tenants take turns, and {who} is next for {places} of group {state.group.value}."
    owner = WaitOwner(kind=OwnerKind.TENANT, id=name)
    remedy = reasons.budget(state.group.value, state.budget + 1)
    return _reason(turn, WaitCause.OTHER_TENANT, owner, text, since=turn.ready_since, remedy=remedy)


def _message_sent(turn: QueuedTurn, clock: WaitClock) -> Finding:
    queue = turn.group.group.queue
    return _reason(
        turn, WaitCause.MESSAGE_SENT, WaitOwner(kind=OwnerKind.QUEUE, id=queue),
        f"It may start; its wake-up is in the queue {queue}, and no worker has taken it yet.",
        since=max(turn.ready_since, turn.sent_at), until=max(clock.next_sweep, turn.lost_at), remedy=reasons.STATUS,
    )  # fmt: skip


TESTS = (
    _unwanted,
    _deadline_passed,
    _joins_run,
    _behind_waiting_run,
    _behind_run,
    _behind_turn,
    _not_before,
    _broken_agent,
    _next_sweep,
    _group_paused,
    _no_worker,
    _group_full,
    _other_tenant,
    _message_sent,
)


def of_queued_turn(turn: QueuedTurn, clock: WaitClock) -> Finding:
    return first_match(TESTS, turn, clock)
