"""What a message does that finds its thread busy: what it says itself, and what its agent says where it is silent."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from chordage.orchestrator.core.agent import AgentSpec, WhenBusy, WhileWaiting
from chordage.orchestrator.core.errors import InvalidMessage
from chordage.orchestrator.core.groups import Group
from chordage.orchestrator.core.message import (
    SELF_MADE,
    SELF_MADE_THREADS,
    Origin,
    TurnRequest,
    check_will,
    group_of,
    name_in,
)
from chordage.orchestrator.core.reasons import Ending, Reason, interrupted_by, rolled_back_by, superseded_by
from chordage.orchestrator.core.records import Run
from chordage.orchestrator.core.status import RunStatus
from chordage.orchestrator.core.stepping import Control

ENDS_RUNS = frozenset({WhenBusy.INTERRUPT, WhenBusy.ROLLBACK})
AT_ONCE = ENDS_RUNS | {WhenBusy.STEER}
LATER = "a later message came"


def effective_when_busy(request: TurnRequest, agent: AgentSpec, now: datetime) -> WhenBusy:
    """A message for later touches nothing now. One that comes with decisions lets the run go on that they are about,
    unless it says itself that it does not. Standing work waits for its turn, whatever the habit of its agent is, and
    limits of one's own are for a run of one's own.
    """
    habit = WhenBusy.ENQUEUE if request.message.origin in SELF_MADE else agent.when_busy
    manner = request.when_busy or habit
    for_later = request.not_before is not None and request.not_before > now
    # The consumer of a stepped turn wants to see each reply.
    by_hand = manner is WhenBusy.STEER and (request.control is Control.STEP or bool(request.limits))
    lets_go_on = request.when_busy is None and manner in ENDS_RUNS and bool(request.decisions)
    return WhenBusy.ENQUEUE if (manner in AT_ONCE and for_later) or lets_go_on or by_hand else manner


def end_of(
    run: Run, request: TurnRequest, agent: AgentSpec, manner: WhenBusy, *, children_work: bool = False
) -> Ending | None:
    """With what this message ends the run that is open on its thread; None when it lets it be. A run is at work also
    while it lies with its consumer, or waits for its sub-agents alone: then nobody was asked anything.
    """
    is_at_work = run.status is RunStatus.RUNNING or run.reason is Reason.HELD or children_work
    if not is_at_work:
        if not supersedes(request, agent, run.group):
            return None
        return rolled_back_by(LATER) if manner is WhenBusy.ROLLBACK else superseded_by(LATER)
    if manner not in ENDS_RUNS or not _may_end(run, request):
        return None
    return rolled_back_by(LATER) if manner is WhenBusy.ROLLBACK else interrupted_by(LATER)


def _may_end(run: Run, request: TurnRequest) -> bool:
    """What an agent does by habit must not let its chores end a chat."""
    return request.when_busy is not None or group_of(request).rank <= run.group.rank


def supersedes(request: TurnRequest, agent: AgentSpec, of_run: Group) -> bool:
    """Whether this message ends a run of its thread that waits for decisions, instead of waiting with it. Its own
    words come before those of the agent, and whoever ends a run at work ends one that waits, unless told to hold.
    """
    is_own = request.message.origin in SELF_MADE
    by_habit = request.when_busy is None and not is_own and group_of(request).rank <= of_run.rank
    of_group = WhileWaiting.SUPERSEDE if group_of(request) is Group.CHAT else WhileWaiting.HOLD
    said = (
        request.while_waiting,
        _implied(request.when_busy),
        agent.while_waiting,
        _implied(agent.when_busy) if by_habit else None,
        of_group,
    )
    return next(word for word in said if word is not None) is WhileWaiting.SUPERSEDE


def _implied(manner: WhenBusy | None) -> WhileWaiting | None:
    return WhileWaiting.SUPERSEDE if manner in ENDS_RUNS else None


# Which messages are the same work: of those that are queued, only the latest is kept.


def check_work(request: TurnRequest, agent: str) -> None:
    """What bears the name of an agent's own work is for that work alone: nobody else's message takes its place."""
    check_will(request.message, agent)
    message = request.message
    key = request.coalesce_key and name_in(request.space, request.coalesce_key)
    if message.origin is Origin.WILL:
        _check_will(request)
    if key is None:
        return
    own = message.thread_id if message.origin in SELF_MADE else None
    if key == own or not key.startswith(SELF_MADE_THREADS):
        return
    told = f"coalesce_key {key!r} names work of the agent's own: choose one that begins otherwise"
    raise InvalidMessage(told, field="coalesce_key")


def _check_will(request: TurnRequest) -> None:
    """There is one of each agent, and a further one changes nothing."""
    if request.coalesce_key is not None:
        raise InvalidMessage("a will takes no coalesce_key: there is one of each agent", field="coalesce_key")
    if request.when_busy not in {None, WhenBusy.ENQUEUE}:
        told = f"a will takes no when_busy {request.when_busy.value!r}: while one is at work, it is merged into that"
        raise InvalidMessage(told, field="when_busy")


def key_of(request: TurnRequest, thread_id: str) -> str | None:
    """By its own word, else for standing work its thread. None: it is merged with nothing."""
    if request.message.origin is Origin.WILL:
        return thread_id
    return request.coalesce_key or (thread_id if request.message.origin in SELF_MADE else None)


def due_at(own: datetime, now: datetime, replaced: datetime | None) -> datetime:
    """Work that is triggered again and again keeps its place in time; it starts no earlier than it asks for itself."""
    return own if replaced is None or own > now else min(own, replaced)


# How many turns may be queued in a group, and what happens to a message that comes when they are.


class Overflow(StrEnum):
    REJECT = "reject"  # the message
    DROP_OLDEST = "drop_oldest"  # of the group: it is superseded by the message
    REPLACE_PENDING = "replace_pending"  # the newest of its thread is superseded by it; where there is none, as reject


@dataclass(frozen=True, kw_only=True, slots=True)
class QueueBound:
    max_queued: int
    overflow: Overflow = Overflow.REJECT
