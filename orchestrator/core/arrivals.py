"""What a message does that finds its thread busy, its work queued already, or its group full.

For a busy thread the message decides, and its agent where the message does not say. Of queued turns of the same work
only the latest is kept. The number of queued turns of a group may be bounded.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from chordage.orchestrator.core.agent import AgentSpec, WhenBusy, WhileWaiting
from chordage.orchestrator.core.errors import InvalidMessage
from chordage.orchestrator.core.groups import Group
from chordage.orchestrator.core.message import (
    OF_WILL,
    SELF_MADE,
    SELF_MADE_THREADS,
    Origin,
    TurnRequest,
    group_of,
    name_in,
)  # fmt: skip
from chordage.orchestrator.core.reasons import INTERRUPTED, ROLLED_BACK, SUPERSEDED, Ending, Reason
from chordage.orchestrator.core.records import Run
from chordage.orchestrator.core.status import RunStatus
from chordage.orchestrator.core.stepping import Control

ENDS_RUNS = frozenset({WhenBusy.INTERRUPT, WhenBusy.ROLLBACK})
AT_ONCE = ENDS_RUNS | {WhenBusy.STEER}


def effective_when_busy(request: TurnRequest, agent: AgentSpec, now: datetime) -> WhenBusy:
    """The request's own value, else the agent's; scheduled work ignores the agent's and is queued. Four requests are
    queued whatever the value is:

    - one for later, which must not end or steer a run now;
    - a stepped one instead of steering, because its consumer drives each request to the model;
    - one with limits of its own instead of steering, because limits belong to a run;
    - one with decisions, where only its agent would end runs: the decisions resume that run.
    """
    default = WhenBusy.ENQUEUE if request.message.origin in SELF_MADE else agent.when_busy
    when_busy = request.when_busy or default
    for_later = is_for_later(request, now)
    needs_own_run = request.control is Control.STEP or bool(request.limits)
    resumes = request.when_busy is None and bool(request.decisions)
    is_queued = (
        (for_later and when_busy in AT_ONCE)
        or (needs_own_run and when_busy is WhenBusy.STEER)
        or (resumes and when_busy in ENDS_RUNS)
    )
    return WhenBusy.ENQUEUE if is_queued else when_busy


def is_for_later(request: TurnRequest, now: datetime) -> bool:
    """Such a message only queues: it does nothing to the run that is open when it comes."""
    return request.not_before is not None and request.not_before > now


def end_of(
    run: Run, request: TurnRequest, agent: AgentSpec, when_busy: WhenBusy, now: datetime, *, children_work: bool = False
) -> Ending | None:
    """How this message ends the open run of its thread; None when it does not. A run also counts as working while its
    consumer holds it, or while it waits for sub-agents alone: no person was asked anything.
    """
    if is_for_later(request, now):
        return None
    is_working = run.status is RunStatus.RUNNING or run.reason is Reason.HELD or children_work
    # An agent's default must not let its chores end a chat.
    may_end = request.when_busy is not None or group_of(request).rank <= run.group.rank
    ends = when_busy in ENDS_RUNS and may_end if is_working else supersedes(request, agent, run.group)
    if not ends:
        return None
    code = INTERRUPTED if is_working else SUPERSEDED
    code = ROLLED_BACK if when_busy is WhenBusy.ROLLBACK else code
    return Ending(reason=Reason.CANCELLED, code=code, detail="a later message came")


def supersedes(request: TurnRequest, agent: AgentSpec, of_run: Group) -> bool:
    """Whether this message ends a run of its thread that waits for decisions, instead of waiting behind it. The request
    comes before the agent, and a `when_busy` that ends working runs ends a waiting one too, unless `while_waiting`
    says hold.
    """
    is_own = request.message.origin in SELF_MADE
    by_default = request.when_busy is None and not is_own and group_of(request).rank <= of_run.rank
    values = (
        request.while_waiting,
        _implied(request.when_busy),
        agent.while_waiting,
        _implied(agent.when_busy) if by_default else None,
        WhileWaiting.SUPERSEDE if group_of(request) is Group.CHAT else WhileWaiting.HOLD,
    )
    return next(value for value in values if value is not None) is WhileWaiting.SUPERSEDE


def _implied(when_busy: WhenBusy | None) -> WhileWaiting | None:
    return WhileWaiting.SUPERSEDE if when_busy in ENDS_RUNS else None


def check_work(request: TurnRequest, agent: str) -> None:
    """Refuse a message that would take the place of another's scheduled work. Raises InvalidMessage."""
    message = request.message
    if message.origin is Origin.WILL:
        _check_will(request, agent)
    if request.coalesce_key is None:
        return
    key = name_in(request.space, request.coalesce_key)
    is_own = message.origin in SELF_MADE and key == message.thread_id
    if key.startswith(SELF_MADE_THREADS) and not is_own:
        problem = f"coalesce_key {key!r} names work of the agent's own: choose one that begins otherwise"
        raise InvalidMessage(problem, field="coalesce_key")


def _check_will(request: TurnRequest, agent: str) -> None:
    """An agent has one will, on a thread of its own, and a further one changes nothing."""
    thread_id, own = request.message.thread_id, f"{OF_WILL}{agent}"
    if thread_id not in {None, own}:
        problem = f"a will of agent {agent!r} goes on thread '{own}', not {thread_id!r}: leave it out"
        raise InvalidMessage(problem, field="thread_id")
    if request.coalesce_key is not None:
        raise InvalidMessage("a will takes no coalesce_key: there is one of each agent", field="coalesce_key")
    if request.when_busy not in {None, WhenBusy.ENQUEUE}:
        problem = f"a will takes no when_busy {request.when_busy.value!r}: while one is at work, it is merged into that"
        raise InvalidMessage(problem, field="when_busy")


def key_of(request: TurnRequest, thread_id: str) -> str | None:
    """The key under which queued turns are the same work; scheduled work has its thread. None: no other is."""
    if request.message.origin is Origin.WILL:
        return thread_id
    return request.coalesce_key or (thread_id if request.message.origin in SELF_MADE else None)


def due_at(own: datetime, now: datetime, replaced: datetime | None) -> datetime:
    """When a turn is due that replaces an older one: it keeps that place in time, and does not start before its own."""
    return own if replaced is None or own > now else min(own, replaced)


class Overflow(StrEnum):
    """What happens to a message that finds its group full."""

    REJECT = "reject"
    DROP_OLDEST = "drop_oldest"  # it supersedes the oldest of the group
    REPLACE_PENDING = "replace_pending"  # it supersedes the newest of its thread; without one, as reject


@dataclass(frozen=True, kw_only=True, slots=True)
class QueueBound:
    max_queued: int
    overflow: Overflow = Overflow.REJECT
