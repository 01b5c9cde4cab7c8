"""How a message becomes a queued turn, in a transaction that is open.

A message for work that is queued already replaces the older one, which ends `merged`. One that finds its group full is
refused, or another turn gives way. One that finds a run at work on its thread waits, ends it or steers it. What is
stored together with it, such as the cursor it came with, is stored in the same unit.

Locks, in this order: the row of a group that has a bound, both threads in the order of their ids, then runs, then
turns. At most one turn of a coalesce key is queued: a partial unique index. Two admissions of one key come one after
the other, by the row of their thread or by that index; the loser undoes everything and looks again. It is not
promised that the later message was sent later, only that the one stored last is kept.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from chordage.orchestrator.core import arrivals as rules
from chordage.orchestrator.core import client_tools as brought
from chordage.orchestrator.core import drill, limits
from chordage.orchestrator.core.agent import AgentSpec, WhenBusy
from chordage.orchestrator.core.approvals import Suspension
from chordage.orchestrator.core.arrivals import Overflow, QueueBound
from chordage.orchestrator.core.audit import Actor
from chordage.orchestrator.core.errors import Conflict, InvalidMessage, LostRace, QueueFull
from chordage.orchestrator.core.groups import Group
from chordage.orchestrator.core.intents import Dispatch, Hint
from chordage.orchestrator.core.message import Origin, TurnRequest, check, group_of, thread_of
from chordage.orchestrator.core.reasons import INTERRUPTED, ROLLED_BACK, SUPERSEDED
from chordage.orchestrator.core.records import Subject
from chordage.orchestrator.core.status import Disposition
from chordage.orchestrator.core.stepping import Control, StepTerms
from chordage.orchestrator.run import approvals, client_tools, endings, starting, subagents
from chordage.orchestrator.run.unit import TurnDropped, Unit
from chordage.orchestrator.runtime import Runtime
from chordage.orchestrator.store import (
    audit,
    fairness,
    fork_record,
    groups,
    outbox,
    replays,
    runs,
    steering,
    stepped,
    threads,
    turns,
)
from chordage.orchestrator.store.database import Tx
from chordage.orchestrator.store.turns import QueuedWork
from chordage.orchestrator.strategies.loading import names
from chordage.orchestrator.strategies.shipped import STRATEGIES

BEFORE_A_WILL = (Group.CHAT, Group.TASK)
_CUT_OFF = "This call was cut off: a later message came. If it had started, it may have taken effect."
CUT_OFF = {
    SUPERSEDED: "This call was not executed: a later message came before anybody had decided about it.",
    INTERRUPTED: _CUT_OFF,
    ROLLED_BACK: _CUT_OFF,
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Admitted:
    turn_id: str
    thread_id: str
    duplicate: bool = False


# Before the transaction.


def check_request(rt: Runtime, request: TurnRequest, now: datetime) -> AgentSpec:
    check(request, rt.bounds, now)
    if request.space is not None and request.reply_target is not None:
        rt.replies.check(request.reply_target)
    agent = rt.agents.get(request.agent)
    if (agent.name == drill.AGENT_NAME) != (request.space == drill.SPACE):
        problem = f"agent {drill.AGENT_NAME!r} takes messages of `chordage drill` alone: name another agent"
        raise InvalidMessage(problem, field="agent")
    rules.check_work(request, agent.name)
    limits.check_within(request.limits, agent.limits, agent.name)
    # A sender names none of our code: an import path is for the agent's own file.
    if request.strategy not in {None, agent.strategy, *STRATEGIES} and request.strategy not in (known := names()):
        problem = f"strategy {request.strategy!r} is not known; use one of: {', '.join(known)}"
        raise InvalidMessage(problem, field="strategy")
    if request.client_tools:
        client_tools.check_for(rt, agent, request.strategy or agent.strategy, request.client_tools)
    return agent


def defer_will(rt: Runtime, request: TurnRequest, agent: str) -> None:
    """A will is the least of all work: while people or tasks wait for budget, it is not even stored."""
    if request.message.origin is not Origin.WILL:
        return
    for group in BEFORE_A_WILL:
        with rt.store.read() as tx:
            free = groups.places(tx, group, default=rt.budgets[group]).free
            wait = fairness.count_ready(tx, group, rt.now(), free + 1) > free
        if wait:
            raise QueueFull(
                f"the will of agent {agent!r} is put off: turns of group {group.value!r} are queued beyond its budget, "
                "and come first; send it again at the next pulse"
            )


def can_come_again(request: TurnRequest) -> bool:
    return request.dedupe_key is not None or request.once is not None


def find_duplicate(tx: Tx, agent: AgentSpec, request: TurnRequest, now: datetime) -> Admitted | None:
    """By its key; or, under another one, by what was signed."""
    turn_id = None
    if request.dedupe_key is not None:
        turn_id = turns.by_dedupe_key(tx, agent.name, request.source, request.dedupe_key)
    if turn_id is None and request.once is not None:
        turn_id = replays.turn_of(tx, request.source, request.once.digest, now)
    turn = turns.load(tx, turn_id) if turn_id else None
    return Admitted(turn_id=turn.id, thread_id=turn.thread_id, duplicate=True) if turn else None


# Inside it.


def admit(
    unit: Unit, agent: AgentSpec, request: TurnRequest, asked: list[Suspension], *, here: bool = False
) -> Admitted:
    """Store the message as a queued turn, with everything that follows from it. `here`: start it too, if it can start
    and there is budget for all that are ready. This process then carries it on.
    """
    turn_id, now, group = unit.rt.new_id(), unit.now, group_of(request)
    thread_id = thread_of(request.message, agent.name, turn_id, request.space)
    when_busy = rules.effective_when_busy(request, agent, now)
    lock_bounded_group(unit, group)
    if when_busy is WhenBusy.REJECT:
        _refuse_if_busy(unit.tx, thread_id)
    place = _queue_turn(unit.tx, request, agent.name, thread_id, now)
    _take_once(unit.tx, request, turn_id, now)  # behind the lock of the thread, so that waits cannot cross
    if asked:
        _take_decisions(unit, request, asked, place.threads(thread_id))
    place = _replace_older(unit, place, turn_id)
    fields = _fields(turn_id, thread_id, place, agent, request, now)
    fields["steers"] = int(when_busy is WhenBusy.STEER)
    if request.control is Control.STEP:
        stepped.create(unit.tx, turn_id, request.step or StepTerms())
    if request.fork is not None:
        fork_record.create(unit.tx, turn_id, request.fork)
    if place.will is None:
        if place.older is None:  # otherwise it has the place of the one that it replaces
            _make_room(unit, group, turn_id, thread_id)
        ready = turns.admit(unit.tx, fields)
        if ready and when_busy not in rules.AT_ONCE:
            has_ended = False
        else:
            has_ended = _apply_to_open_run(unit, agent, request, when_busy, turn_id, thread_id)
        if here and ready and not has_ended:
            starting.start_admitted(unit, turns.admitted({**fields, "arrival": place.arrival()}))
        elif not has_ended:
            unit.follow(Dispatch(group=group, hint=Hint(turn_id, thread_id), of=Subject(thread_id, agent.name)))
    else:
        _merge_into_will(unit, fields, place)
    if request.audited is not None:
        assert request.by is not None
        audit.record(unit.tx, request.by, request.audited, turn_id, now=now, detail={"thread": thread_id})
    return Admitted(turn_id=turn_id, thread_id=thread_id)


def _take_once(tx: Tx, request: TurnRequest, turn_id: str, now: datetime) -> None:
    """Raises LostRace where the same signed bytes were taken under another id."""
    if (once := request.once) is None:
        return
    until = now + timedelta(seconds=once.seconds)
    if not replays.take(tx, request.source, once.digest, turn_id=turn_id, until=until, now=now):
        raise LostRace


def _take_decisions(unit: Unit, request: TurnRequest, asked: list[Suspension], thread_ids: Collection[str]) -> None:
    """The message will look at the run of its own thread: messages with decisions for each other's threads must not
    wait for each other.
    """
    beside = [run for thread_id in thread_ids if (run := runs.open_on(unit.tx, thread_id))]
    by = request.by or Actor(id=request.source)
    approvals.take_decisions(unit, request.decisions, asked, request.source, by=by, beside=beside)


def _refuse_if_busy(tx: Tx, thread_id: str) -> None:
    run = runs.open_on(tx, thread_id)
    if run is not None:
        raise Conflict(f"thread {thread_id!r} is busy with run {run.id}; send it later, or with when_busy 'enqueue'")


def _fields(
    turn_id: str, thread_id: str, place: QueuePlace, agent: AgentSpec, request: TurnRequest, now: datetime
) -> dict[str, Any]:
    message, group = request.message, group_of(request)
    return {
        "id": turn_id,
        "thread_id": thread_id,
        "agent": agent.name,
        "grp": group.value,
        "rank": group.rank,
        "tenant": request.tenant or agent.tenant or agent.name,
        "origin": message.origin.value,
        "channel": message.channel,
        "sender": message.sender.value,
        "text": message.text,
        "meta": message.meta,
        "strategy": request.strategy or agent.strategy,
        "control": request.control.value,
        "source": request.source,
        "sent_by": None if request.by is None else request.by.name,
        "space": request.space,
        "dedupe_key": request.dedupe_key,
        "coalesce_key": place.key,
        "max_rounds": request.limits.max_rounds,
        "timeout_ms": limits.in_ms(request.limits.timeout),
        "fork_of": request.fork.run_id if request.fork else None,
        "traceparent": request.traceparent,
        "client_tools": brought.stored(request.client_tools) if request.client_tools else None,
        "reply_target": request.reply_target,
        "not_before": request.not_before,
        "due_at": place.due_at(max(request.not_before or now, now), now),
        "deadline": request.deadline,
        "queued_at": now,
        "nudge_at": now,
    }


# The same work: of the messages with one key that are queued, only the latest is kept.


@dataclass(frozen=True, kw_only=True, slots=True)
class QueuePlace:
    """The number of a message on its thread, read with the next result, and the same work that is queued there or
    elsewhere.
    """

    arrival: Callable[[], int]
    key: str | None = None
    older: QueuedWork | None = None
    will: str | None = None  # the turn of this agent's will that is queued or at work

    def due_at(self, own: datetime, now: datetime) -> datetime:
        return rules.due_at(own, now, self.older.due_at if self.older else None)

    def threads(self, own: str) -> set[str]:
        return {own, self.older.thread_id} if self.older else {own}


def _queue_turn(tx: Tx, request: TurnRequest, agent: str, thread_id: str, now: datetime) -> QueuePlace:
    """The next arrival on its thread, which stays locked, as does the thread of the same work."""
    key = rules.key_of(request, thread_id)
    if key is None:
        return QueuePlace(arrival=threads.arrive(tx, thread_id, agent, now))
    if request.message.origin is Origin.WILL:
        arrival = threads.arrive(tx, thread_id, agent, now)
        return QueuePlace(arrival=arrival, key=key, will=turns.open_will(tx, agent))
    group = group_of(request)
    seen = turns.queued_work(tx, agent, group, key)
    elsewhere = seen.thread_id if seen and seen.thread_id != thread_id else None
    if elsewhere is not None and elsewhere < thread_id:
        threads.lock(tx, elsewhere)
    arrival = threads.arrive(tx, thread_id, agent, now)
    if elsewhere is not None and elsewhere > thread_id:
        threads.lock(tx, elsewhere)
    older = turns.queued_work(tx, agent, group, key)
    if older is not None and older.thread_id not in {thread_id, elsewhere}:
        raise LostRace  # it was merged meanwhile, into one on a thread that cannot be locked in order any more
    if older is not None and elsewhere is not None:
        runs.lock_open_on_threads(tx, thread_id, elsewhere)
    return QueuePlace(arrival=arrival, key=key, older=older)


def _replace_older(unit: Unit, place: QueuePlace, turn_id: str) -> QueuePlace:
    """The older one is merged into this turn, unless it has just started."""
    if place.older is None:
        return place
    detail = f"merged into turn {turn_id}, the same work by key {place.key!r}"
    merged = endings.drop_queued(unit, place.older.id, Disposition.MERGED, detail, into=turn_id)
    return place if merged else replace(place, older=None)


def _merge_into_will(unit: Unit, fields: Mapping[str, Any], place: QueuePlace) -> None:
    """While a will of its agent is queued or at work, a further one is recorded and done at once."""
    assert place.will is not None
    detail = f"merged into turn {place.will}: the will of its agent is queued or at work"
    turns.record_merged(unit.tx, {**fields, "arrival": place.arrival()}, place.will, detail)
    if fields["reply_target"] is not None:
        body = {"reason": Disposition.MERGED.value, "code": None, "detail": detail, "text": None}
        outbox.add(unit.tx, fields["thread_id"], fields["id"], target=fields["reply_target"], body=body, now=unit.now)
    unit.announce(TurnDropped(turn_id=fields["id"], disposition=Disposition.MERGED))


# A bounded queue.


def lock_bounded_group(unit: Unit, group: Group) -> None:
    """Before anything else is locked, so that the bound is exact however many come at once. A start takes no such
    lock, and only makes room. Without a bound nothing is asked and nothing locked.
    """
    if group in unit.rt.queue_bounds:
        groups.lock(unit.tx, group)


def _make_room(unit: Unit, group: Group, turn_id: str, thread_id: str) -> None:
    """Raises QueueFull."""
    bound = unit.rt.queue_bounds.get(group)
    if bound is None or not groups.is_full(unit.tx, group, bound.max_queued):
        return
    if bound.max_queued == 0:
        full = f"group {group.value} takes no messages, its bound is 0"
    else:
        full = f"the queue of group {group.value} is full, with {bound.max_queued} queued"
    while (dropped := _gives_way(unit.tx, group, bound, thread_id)) is not None:
        if endings.drop_queued(unit, dropped, Disposition.SUPERSEDED, f"turn {turn_id} came while {full}"):
            return
    raise QueueFull(f"{full}: send it again later, or raise CHORDAGE_BOUNDS__{group.name}__MAX_QUEUED")


def _gives_way(tx: Tx, group: Group, bound: QueueBound, thread_id: str) -> str | None:
    match bound.overflow:
        case Overflow.REJECT:
            return None
        case Overflow.DROP_OLDEST:
            return groups.oldest_queued(tx, group)
        case Overflow.REPLACE_PENDING:
            return groups.newest_queued_on(tx, group, thread_id)


# A run is open on the thread.


def _apply_to_open_run(
    unit: Unit, agent: AgentSpec, request: TurnRequest, when_busy: WhenBusy, turn_id: str, thread_id: str
) -> bool:
    """What the message does to the run that is open on its thread. True: it ended it, and the next start is on its way.

    Storing the message has locked the run that was open then, so that an end under way is waited for. Another may have
    started meanwhile: the run that is read here is locked, and stays as it is seen until the commit.
    """
    run = runs.lock_open_on(unit.tx, thread_id)
    if run is None:
        return False
    children_work = subagents.are_at_work(unit.tx, run)
    ending = rules.end_of(run, request, agent, when_busy, unit.now, children_work=children_work)
    if ending is None:
        if when_busy is WhenBusy.STEER:
            steering.mark_pending(unit.tx, run.id)
        return False
    if when_busy in rules.ENDS_RUNS:  # the run is not ended for those that were queued behind it
        steering.move_to_front(unit.tx, thread_id, turn_id)
    before = len(unit.intents)
    if not endings.end_run(unit, run, ending, content=CUT_OFF[ending.code or SUPERSEDED]):
        endings.make_next_ready(unit, thread_id)
    return len(unit.intents) > before
