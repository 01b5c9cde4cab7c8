"""How a message is stored: checked, lined up on its thread, and all that follows, in a transaction that is open.

Whoever stores something else with it, such as the cursor that it came with, does so in the same transaction. Behind
the commit: `tell`, and the intents are sent.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from chordage.orchestrator import answering, coalescing, crowding, double_texting, ending
from chordage.orchestrator.answering import Decided
from chordage.orchestrator.coalescing import Place
from chordage.orchestrator.core import busy, merging, turn_limits
from chordage.orchestrator.core.agent import AgentSpec, WhenBusy
from chordage.orchestrator.core.errors import Conflict, InvalidMessage, LostRace
from chordage.orchestrator.core.intents import Dispatch, Hint, Intent
from chordage.orchestrator.core.message import TurnRequest, check, group_of
from chordage.orchestrator.core.message_threads import thread_of
from chordage.orchestrator.core.records import Run, Subject
from chordage.orchestrator.core.status import Disposition
from chordage.orchestrator.core.stepping import Control, StepTerms
from chordage.orchestrator.core.suspending import Suspension
from chordage.orchestrator.double_texting import Arrival
from chordage.orchestrator.runtime import Runtime
from chordage.orchestrator.store import replays, runs, stepped, turns
from chordage.orchestrator.store.database import Tx
from chordage.orchestrator.strategies import STRATEGIES
from chordage.orchestrator.strategies.loading import names


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


def checked(rt: Runtime, request: TurnRequest, now: datetime) -> AgentSpec:
    check(request, rt.bounds, now)
    if request.space is not None and request.reply_target is not None:
        rt.replies.check(request.reply_target)
    agent = rt.agents.get(request.agent)
    merging.check_work(request, agent.name)
    turn_limits.check_within(request.limits, agent.limits, agent.name)
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
    manner = busy.manner_of(request, agent, now)
    crowding.lock(tx, rt, group_of(request))
    if manner is WhenBusy.REJECT:
        _refuse_if_busy(tx, thread_id)
    place = coalescing.line_up(tx, request, agent.name, thread_id, now)
    _take_once(tx, request, turn_id, now)  # behind the lock of the thread, so that nobody waits crosswise
    decided, moved = _take_decisions(tx, rt, request, asked, place.threads(thread_id)) if asked else ([], [])
    place, freed = coalescing.replace_older(tx, rt, place, turn_id)
    fields = _fields(turn_id, thread_id, place, agent, request, now) | {"steers": int(manner is WhenBusy.STEER)}
    if request.control is Control.STEP:
        stepped.create(tx, turn_id, request.step or StepTerms())
    admitted = Admitted(turn_id=turn_id, thread_id=thread_id)
    if place.will is not None:
        coalescing.end_at_once(tx, fields, place)
        return Stored(admitted=admitted, intents=moved, decided=decided, over=[(turn_id, Disposition.MERGED)])
    needs_room = place.older is None  # or it has the place of the one that it replaces
    room = crowding.make_room(tx, rt, group_of(request), turn_id, thread_id) if needs_room else crowding.ENOUGH
    ready = turns.admit(tx, fields)
    came = Arrival(turn_id=turn_id, thread_id=thread_id, request=request, manner=manner, ready=ready)
    met = double_texting.meet(tx, rt, agent, came)
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
    return answering.take(tx, rt, request.decisions, asked, request.source, beside=beside)


def _refuse_if_busy(tx: Tx, thread_id: str) -> None:
    run = runs.open_on(tx, thread_id)
    if run is not None:
        raise Conflict(f"thread {thread_id!r} is busy with run {run.id}; send it later, or with when_busy 'enqueue'")


def _fields(
    turn_id: str, thread_id: str, place: Place, agent: AgentSpec, request: TurnRequest, now: datetime
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
        "timeout_ms": turn_limits.in_ms(request.limits.timeout),
        "reply_target": request.reply_target,
        "not_before": request.not_before,
        "due_at": place.due_at(max(request.not_before or now, now), now),
        "deadline": request.deadline,
        "queued_at": now,
        "nudge_at": now,
    }


def tell(rt: Runtime, stored: Stored) -> Admitted:
    """After the commit, whoever waits for what it has ended may look."""
    answering.tell(rt, stored.decided)
    if stored.ended is not None:
        ending.tell_the_end(rt, stored.ended)
    for turn_id, disposition in stored.over:
        rt.events.turn_done(turn_id)
        ending.log_unstarted(turn_id, disposition)
    return stored.admitted
