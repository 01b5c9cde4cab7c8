"""How a message is stored: checked, lined up on its thread, and all that follows, in a transaction that is open.

Whoever stores something else with it, such as the cursor that it came with, does so in the same transaction. Behind
the commit: `tell`, and the intents are sent.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any

from chordage.orchestrator.core import arrivals, limits
from chordage.orchestrator.core.agent import AgentSpec, WhenBusy
from chordage.orchestrator.core.approvals import Suspension
from chordage.orchestrator.core.arrivals import Overflow, QueueBound
from chordage.orchestrator.core.errors import Conflict, InvalidMessage, LostRace, QueueFull
from chordage.orchestrator.core.groups import Group
from chordage.orchestrator.core.intents import Dispatch, Hint, Intent
from chordage.orchestrator.core.message import Origin, TurnRequest, check, group_of, thread_of
from chordage.orchestrator.core.reasons import INTERRUPTED, ROLLED_BACK, SUPERSEDED, Ending
from chordage.orchestrator.core.records import Run, Subject
from chordage.orchestrator.core.status import Disposition
from chordage.orchestrator.core.stepping import Control, StepTerms
from chordage.orchestrator.run import approvals, endings, subagents
from chordage.orchestrator.run.approvals import Decided
from chordage.orchestrator.runtime import Runtime
from chordage.orchestrator.store import fairness, groups, outbox, replays, runs, steering, stepped, threads, turns
from chordage.orchestrator.store.database import Tx
from chordage.orchestrator.store.turns import QueuedWork
from chordage.orchestrator.strategies.loading import names
from chordage.orchestrator.strategies.shipped import STRATEGIES


@dataclass(frozen=True, kw_only=True, slots=True)
class Admitted:
    turn_id: str
    thread_id: str
    duplicate: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Stored:
    admitted: Admitted
    intents: list[Intent] = field(default_factory=list)
    decided: list[Decided] = field(default_factory=list)
    ended: Run | None = None  # the run that was open there
    over: list[tuple[str, Disposition]] = field(default_factory=list)  # turns that were merged, or gave way


def check_request(rt: Runtime, request: TurnRequest, now: datetime) -> AgentSpec:
    check(request, rt.bounds, now)
    if request.space is not None and request.reply_target is not None:
        rt.replies.check(request.reply_target)
    agent = rt.agents.get(request.agent)
    arrivals.check_work(request, agent.name)
    limits.check_within(request.limits, agent.limits, agent.name)
    _check_strategy(agent, request)
    return agent


def _check_strategy(agent: AgentSpec, request: TurnRequest) -> None:
    """Whoever sends a message names no code of ours: an import path is for the agent's own file."""
    wanted = request.strategy
    if wanted not in {None, agent.strategy, *STRATEGIES} and wanted not in (known := names()):
        raise InvalidMessage(f"strategy {wanted!r} is not known; use one of: {', '.join(known)}", field="strategy")


def can_come_again(request: TurnRequest) -> bool:
    return request.dedupe_key is not None or request.once is not None


def seen_before(tx: Tx, agent: AgentSpec, request: TurnRequest, now: datetime) -> Admitted | None:
    """By its key; or, under another one, by what was signed."""
    turn_id = None
    if request.dedupe_key is not None:
        turn_id = turns.by_dedupe_key(tx, agent.name, request.source, request.dedupe_key)
    if turn_id is None and request.once is not None:
        turn_id = replays.turn_of(tx, request.source, request.once.digest, now)
    turn = turns.load(tx, turn_id) if turn_id else None
    return Admitted(turn_id=turn.id, thread_id=turn.thread_id, duplicate=True) if turn else None


def store_in(
    tx: Tx, rt: Runtime, agent: AgentSpec, request: TurnRequest, asked: list[Suspension], now: datetime
) -> Stored:
    turn_id = rt.new_id()
    thread_id = thread_of(request.message, agent.name, turn_id, request.space)
    manner = arrivals.effective_when_busy(request, agent, now)
    lock_bounded_group(tx, rt, group_of(request))
    if manner is WhenBusy.REJECT:
        _refuse_if_busy(tx, thread_id)
    place = queue_turn(tx, request, agent.name, thread_id, now)
    _take_once(tx, request, turn_id, now)  # behind the lock of the thread, so that nobody waits crosswise
    decided, moved = _take_decisions(tx, rt, request, asked, place.threads(thread_id)) if asked else ([], [])
    place, freed = replace_older(tx, rt, place, turn_id)
    fields = _fields(turn_id, thread_id, place, agent, request, now) | {"steers": int(manner is WhenBusy.STEER)}
    if request.control is Control.STEP:
        stepped.create(tx, turn_id, request.step or StepTerms())
    admitted = Admitted(turn_id=turn_id, thread_id=thread_id)
    if place.will is not None:
        end_at_once(tx, fields, place)
        return Stored(admitted=admitted, intents=moved, decided=decided, over=[(turn_id, Disposition.MERGED)])
    needs_room = place.older is None  # or it has the place of the one that it replaces
    room = make_room(tx, rt, group_of(request), turn_id, thread_id) if needs_room else ENOUGH
    ready = turns.admit(tx, fields)
    came = Arrival(turn_id=turn_id, thread_id=thread_id, request=request, manner=manner, ready=ready)
    met = apply_to_open_run(tx, rt, agent, came)
    hint = Hint(turn_id, thread_id)
    wake_up = Dispatch(group=group_of(request), hint=hint, of=Subject(thread_id, agent.name))
    intents = [*moved, *freed, *room.intents, *(met.intents or [wake_up])]
    over = [(place.older.id, Disposition.MERGED)] if place.older else []
    over += [(room.dropped, Disposition.SUPERSEDED)] if room.dropped else []
    return Stored(admitted=admitted, intents=intents, decided=decided, ended=met.ended, over=over)


def _take_once(tx: Tx, request: TurnRequest, turn_id: str, now: datetime) -> None:
    """Raises LostRace where the same signed bytes were taken under another id."""
    if (once := request.once) is None:
        return
    until = now + timedelta(seconds=once.seconds)
    if not replays.take(tx, request.source, once.digest, turn_id=turn_id, until=until, now=now):
        raise LostRace


def _take_decisions(
    tx: Tx, rt: Runtime, request: TurnRequest, asked: list[Suspension], thread_ids: Collection[str]
) -> tuple[list[Decided], list[Intent]]:
    """The message will look at the run of its own thread: messages with decisions for each other's threads must not
    wait for each other.
    """
    beside = [run for thread_id in thread_ids if (run := runs.open_on(tx, thread_id))]
    return approvals.take_decisions(tx, rt, request.decisions, asked, request.source, beside=beside)


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
        "arrival": place.arrival,
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
        "space": request.space,
        "dedupe_key": request.dedupe_key,
        "coalesce_key": place.key,
        "max_rounds": request.limits.max_rounds,
        "timeout_ms": limits.in_ms(request.limits.timeout),
        "reply_target": request.reply_target,
        "not_before": request.not_before,
        "due_at": place.due_at(max(request.not_before or now, now), now),
        "deadline": request.deadline,
        "queued_at": now,
        "nudge_at": now,
    }


def tell(rt: Runtime, stored: Stored) -> Admitted:
    """After the commit, whoever waits for what it has ended may look."""
    approvals.tell(rt, stored.decided)
    if stored.ended is not None:
        endings.tell_the_end(rt, stored.ended)
    for turn_id, disposition in stored.over:
        rt.events.turn_done(turn_id)
        endings.log_unstarted(turn_id, disposition)
    return stored.admitted


# A message for work that is queued already takes the place of the older one, which ends `merged`.
#
# At most one turn of a key is queued: a partial unique index. Two admissions of one key come one after the other, by
# the row of their thread or by that index; the loser undoes everything and looks again. A turn that starts at this
# moment is not queued any more, and both stand. Of an agent's will one is queued or at work, and any other ends as
# it comes.
#
# What is locked: both threads in the order of their ids, then their runs, then the turns. It is not promised that the
# later message was sent later, only that the one stored last is the one that is kept.

BEFORE_A_WILL = (Group.CHAT, Group.TASK)


@dataclass(frozen=True, kw_only=True, slots=True)
class QueuePlace:
    """Where a message comes to stand: its number on its thread, and the same work that is queued there or elsewhere."""

    arrival: int
    key: str | None = None
    older: QueuedWork | None = None
    will: str | None = None  # of this agent, that is queued or at work

    def due_at(self, own: datetime, now: datetime) -> datetime:
        return arrivals.due_at(own, now, self.older.due_at if self.older else None)

    def threads(self, own: str) -> set[str]:
        return {own, self.older.thread_id} if self.older else {own}


def defer_will(rt: Runtime, request: TurnRequest, agent: str) -> None:
    """A will is the least of all work: while people or tasks wait for budget, it is not even stored."""
    if request.message.origin is not Origin.WILL:
        return
    for group in BEFORE_A_WILL:
        budget = rt.budgets[group]
        with rt.store.read() as tx:
            free = groups.places(tx, group, default=budget).free
            wait = fairness.count_ready(tx, group, rt.now(), free + 1) > free
        if wait:
            raise QueueFull(
                f"the will of agent {agent!r} is put off: turns of group {group.value!r} are queued beyond its budget, "
                "and come first; send it again at the next pulse"
            )


def queue_turn(tx: Tx, request: TurnRequest, agent: str, thread_id: str, now: datetime) -> QueuePlace:
    """The next arrival on its thread, which stays locked, as does that of the same work."""
    key = arrivals.key_of(request, thread_id)
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
        raise LostRace  # it was merged meanwhile, into one on a thread that is not ours to lock any more
    if older is not None and elsewhere is not None:
        runs.lock_open_on_threads(tx, thread_id, elsewhere)
    return QueuePlace(arrival=arrival, key=key, older=older)


def replace_older(tx: Tx, rt: Runtime, place: QueuePlace, turn_id: str) -> tuple[QueuePlace, list[Intent]]:
    """The older one is merged into this turn; without it in the place, if it was just starting."""
    if place.older is None:
        return place, []
    told = f"merged into turn {turn_id}, the same work by key {place.key!r}"
    moved = endings.drop_queued(tx, rt, place.older.id, Disposition.MERGED, told, into=turn_id)
    return (replace(place, older=None), []) if moved is None else (place, moved)


def end_at_once(tx: Tx, fields: Mapping[str, Any], place: QueuePlace) -> None:
    """A will while another of its agent is queued or at work: it is on record, and it is over."""
    assert place.will is not None
    told = f"merged into turn {place.will}: the will of its agent is queued or at work"
    turns.record_merged(tx, fields, place.will, told)
    if fields["reply_target"] is not None:
        body = {"reason": Disposition.MERGED.value, "code": None, "detail": told, "text": None}
        target, now = fields["reply_target"], fields["queued_at"]
        outbox.add(tx, fields["thread_id"], fields["id"], target=target, body=body, now=now)


# A message comes to a group whose queue may be full: it is refused, or another gives way, in the same transaction.
#
# Exact however many come at once: the row of the group is locked first, by whoever comes to a group that has a bound.
# Who starts a turn takes the same lock, and only makes room. Without a bound nothing is asked and nothing locked.


@dataclass(frozen=True, kw_only=True, slots=True)
class Room:
    """Who gave way, and what follows from it."""

    dropped: str | None = None
    intents: list[Intent] = field(default_factory=list)


ENOUGH = Room()


def lock_bounded_group(tx: Tx, rt: Runtime, group: Group) -> None:
    """Before anything else is locked."""
    if group in rt.queue_bounds:
        groups.lock(tx, group)


def make_room(tx: Tx, rt: Runtime, group: Group, turn_id: str, thread_id: str) -> Room:
    """Where the message takes a place of its own: one that replaces another of its key needs none. Raises QueueFull."""
    bound = rt.queue_bounds.get(group)
    if bound is None:
        return ENOUGH
    if not groups.is_full(tx, group, bound.max_queued):
        return ENOUGH
    while (dropped := _gives_way(tx, group, bound, thread_id)) is not None:
        told = f"turn {turn_id} came while {_full(group, bound)}"
        intents = endings.drop_queued(tx, rt, dropped, Disposition.SUPERSEDED, told)
        if intents is not None:
            return Room(dropped=dropped, intents=intents)
    raise QueueFull(f"{_full(group, bound)}: send it again later, or raise CHORDAGE_BOUNDS__{group.name}__MAX_QUEUED")


def _gives_way(tx: Tx, group: Group, bound: QueueBound, thread_id: str) -> str | None:
    match bound.overflow:
        case Overflow.REJECT:
            return None
        case Overflow.DROP_OLDEST:
            return groups.oldest_queued(tx, group)
        case Overflow.REPLACE_PENDING:
            return groups.newest_queued_on(tx, group, thread_id)


def _full(group: Group, bound: QueueBound) -> str:
    if bound.max_queued == 0:
        return f"group {group.value} takes no messages, its bound is 0"
    return f"the queue of group {group.value} is full, with {bound.max_queued} queued"


# What a message does to the run that is open on its thread, in the transaction in which it is stored.
#
# Storing it has locked the run that was open then, so one that is just ending is waited for. Another may have started
# while it waited. The one that is looked at here is locked in any case, and stays as it is seen until the commit.

_CUT_OFF = "This call was cut off: a later message came. If it had started, it may have taken effect."
TOLD = {
    SUPERSEDED: "This call was not executed: a later message came before anybody had decided about it.",
    INTERRUPTED: _CUT_OFF,
    ROLLED_BACK: _CUT_OFF,
}


@dataclass(frozen=True, kw_only=True, slots=True)
class OpenRunOutcome:
    """What a message has met with on its thread."""

    ended: Run | None = None
    intents: list[Intent] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True, slots=True)
class Arrival:
    turn_id: str
    thread_id: str
    request: TurnRequest
    manner: WhenBusy
    ready: bool  # nothing was open on the thread, and nobody ahead


def apply_to_open_run(tx: Tx, rt: Runtime, agent: AgentSpec, came: Arrival) -> OpenRunOutcome:
    if came.ready and came.manner not in arrivals.AT_ONCE:
        return OpenRunOutcome()
    run = runs.lock_open_on(tx, came.thread_id)
    if run is None:
        return OpenRunOutcome()
    children_work = subagents.are_at_work(tx, run)
    how = arrivals.end_of(run, came.request, agent, came.manner, children_work=children_work)
    if how is not None:
        return _end(tx, rt, run, how, came)
    if came.manner is WhenBusy.STEER:
        steering.mark_pending(tx, run.id)
    return OpenRunOutcome()


def _end(tx: Tx, rt: Runtime, run: Run, how: Ending, came: Arrival) -> OpenRunOutcome:
    """Who ends a run does not do so for those who were queued behind it: the message comes before them."""
    if came.manner in arrivals.ENDS_RUNS:
        steering.move_to_front(tx, came.thread_id, came.turn_id)
    ended = endings.end_run(tx, rt, run, how, content=TOLD[how.code or SUPERSEDED])
    if ended is not None:
        return OpenRunOutcome(ended=run, intents=ended)
    freed = turns.make_next_ready(tx, came.thread_id, rt.now())
    return OpenRunOutcome(intents=[Dispatch(group=freed)] if freed else [])
