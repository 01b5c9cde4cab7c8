"""What a message does that finds its thread busy: what it says itself, and what its agent says where it is silent."""

from __future__ import annotations

from datetime import datetime

from chordage.orchestrator.core.agent import AgentSpec, WhenBusy, WhileWaiting
from chordage.orchestrator.core.groups import Group
from chordage.orchestrator.core.message import SELF_MADE, TurnRequest, group_of
from chordage.orchestrator.core.reasons import Ending, Reason, interrupted_by, rolled_back_by, superseded_by
from chordage.orchestrator.core.records import Run
from chordage.orchestrator.core.status import RunStatus
from chordage.orchestrator.core.stepping import Control

ENDS_RUNS = frozenset({WhenBusy.INTERRUPT, WhenBusy.ROLLBACK})
AT_ONCE = ENDS_RUNS | {WhenBusy.STEER}
LATER = "a later message came"


def manner_of(request: TurnRequest, agent: AgentSpec, now: datetime) -> WhenBusy:
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
