"""1. A message becomes a queued turn.

It is stored whole or refused with an error; nothing in between. The same dedupe key finds the turn that is there
already, so a message handed in twice, by a retrying caller or a redelivered Celery message, is one turn.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import structlog

from chordage.orchestrator import answering, coalescing, crowding, double_texting, ending, stepping
from chordage.orchestrator.answering import Decided
from chordage.orchestrator.coalescing import Place
from chordage.orchestrator.core import busy, merging, turn_limits
from chordage.orchestrator.core.agent import AgentSpec, WhenBusy
from chordage.orchestrator.core.errors import Conflict, InvalidMessage, LostRace, Unavailable
from chordage.orchestrator.core.intents import Dispatch, Hint, Intent
from chordage.orchestrator.core.message import Origin, TurnRequest, check, group_of
from chordage.orchestrator.core.message_threads import thread_of
from chordage.orchestrator.core.records import Run
from chordage.orchestrator.core.stepping import Control, StepTerms
from chordage.orchestrator.core.suspending import Suspension
from chordage.orchestrator.double_texting import Arrival
from chordage.orchestrator.runtime import Runtime
from chordage.orchestrator.store import runs, stepped, turns
from chordage.orchestrator.store.tx import Tx
from chordage.orchestrator.strategies import STRATEGIES
from chordage.orchestrator.strategies.loading import names

log = structlog.get_logger()

TRIES = 50  # that may be lost to others with the same work


@dataclass(frozen=True, kw_only=True, slots=True)
class Admitted:
    turn_id: str
    thread_id: str
    duplicate: bool = False


def admit(rt: Runtime, request: TurnRequest) -> tuple[Admitted, list[Intent]]:
    now = rt.now()
    agent = _checked(rt, request, now)
    if (seen := _already_there(rt, agent, request)) is not None:
        return seen, []
    if request.control is Control.STEP:
        stepping.check_terms(request.step or StepTerms())
    asked = answering.checked(rt, request.decisions) if request.decisions else []
    coalescing.defer_will(rt, request, agent.name)
    for _ in range(TRIES):
        try:
            stored = _store(rt, agent, request, asked, now)
        except LostRace:  # the same dedupe key came in beside us and was first, or the same work was
            if (seen := _already_there(rt, agent, request)) is not None:
                return seen, []
        else:
            return _told(rt, stored), stored.intents
    raise Unavailable(f"{TRIES} others were first, one after the other, with work that is the same: try again")


def _told(rt: Runtime, stored: _Stored) -> Admitted:
    """After the commit, whoever waits for what it has ended may look."""
    answering.tell(rt, stored.decided)
    if stored.ended is not None:
        ending.tell_the_end(rt, stored.ended)
    for turn_id in stored.over:
        rt.events.turn_done(turn_id)
    return stored.admitted


Result = tuple[Admitted, list[Intent]] | Exception


def admit_all(rt: Runtime, requests: Sequence[TurnRequest]) -> list[Result]:
    """Each as `admit` would have it, in as few transactions as may be: the commit is most of what a message costs.

    One transaction takes messages of one group that bring threads of their own, for which they can wait for nobody, or
    those of one thread. So it never holds one thread while it waits for another.
    """
    found: dict[int, Result] = {}
    for places in _apart(requests):
        found.update(zip(places, _together(rt, [requests[place] for place in places]), strict=True))
    return [found[place] for place in range(len(requests))]


def _apart(requests: Sequence[TurnRequest]) -> list[list[int]]:
    """Those without a thread in the order of their dedupe keys, so that two transactions never wait crosswise."""
    alike: dict[object, list[int]] = defaultdict(list)
    for place, request in enumerate(requests):
        key = (group_of(request), request.message.thread_id)
        alike[key if _is_plain(request) else place].append(place)
    for places in alike.values():
        if requests[places[0]].message.thread_id is None:
            places.sort(key=lambda place: (requests[place].source, requests[place].dedupe_key or ""))
    return list(alike.values())


def _is_plain(request: TurnRequest) -> bool:
    """It touches its own thread alone."""
    own = request.message.origin in {Origin.INVOKE, Origin.CHAT} and request.coalesce_key is None
    return own and request.control is Control.AUTO and not request.decisions


def _together(rt: Runtime, requests: Sequence[TurnRequest]) -> list[Result]:
    """One that is refused takes no other with it: each is then looked at alone."""
    if len(requests) > 1:
        try:
            return _as_one(rt, requests)
        except Unavailable as error:
            return [error] * len(requests)
        except Exception as error:
            log.debug("messages are admitted one by one", error=repr(error))
    return [_alone(rt, request) for request in requests]


def _as_one(rt: Runtime, requests: Sequence[TurnRequest]) -> list[Result]:
    now = rt.now()
    agents = [_checked(rt, request, now) for request in requests]
    with rt.store.write() as tx:
        stored = [_store_once(tx, rt, *one, now) for one in zip(agents, requests, strict=True)]
    return [(_told(rt, one), one.intents) for one in stored]


def _alone(rt: Runtime, request: TurnRequest) -> Result:
    try:
        return admit(rt, request)
    except Exception as error:
        return error


def _checked(rt: Runtime, request: TurnRequest, now: datetime) -> AgentSpec:
    check(request, rt.bounds, now)
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


def _already_there(rt: Runtime, agent: AgentSpec, request: TurnRequest) -> Admitted | None:
    if request.dedupe_key is None:
        return None
    with rt.store.read() as tx:
        return _seen(tx, agent, request)


def _seen(tx: Tx, agent: AgentSpec, request: TurnRequest) -> Admitted | None:
    if request.dedupe_key is None:
        return None
    turn_id = turns.by_dedupe_key(tx, agent.name, request.source, request.dedupe_key)
    turn = turns.load(tx, turn_id) if turn_id else None
    return Admitted(turn_id=turn.id, thread_id=turn.thread_id, duplicate=True) if turn else None


@dataclass(frozen=True, kw_only=True, slots=True)
class _Stored:
    admitted: Admitted
    intents: list[Intent] = field(default_factory=list)
    decided: list[Decided] = field(default_factory=list)
    ended: Run | None = None  # the run that was open there
    over: list[str] = field(default_factory=list)  # turns that were merged, or gave way


def _store(rt: Runtime, agent: AgentSpec, request: TurnRequest, asked: list[Suspension], now: datetime) -> _Stored:
    with rt.store.write() as tx:
        return _store_in(tx, rt, agent, request, asked, now)


def _store_once(tx: Tx, rt: Runtime, agent: AgentSpec, request: TurnRequest, now: datetime) -> _Stored:
    seen = _seen(tx, agent, request)
    return _Stored(admitted=seen) if seen else _store_in(tx, rt, agent, request, [], now)


def _store_in(
    tx: Tx, rt: Runtime, agent: AgentSpec, request: TurnRequest, asked: list[Suspension], now: datetime
) -> _Stored:
    turn_id = rt.new_id()
    thread_id = thread_of(request.message, agent.name, turn_id)
    manner = busy.manner_of(request, agent, now)
    crowding.lock(tx, rt, group_of(request))
    if manner is WhenBusy.REJECT:
        _refuse_if_busy(tx, thread_id)
    place = coalescing.line_up(tx, request, agent.name, thread_id, now)
    decided, moved = _take_decisions(tx, rt, request, asked, place.threads(thread_id)) if asked else ([], [])
    place, freed = coalescing.replace_older(tx, rt, place, turn_id)
    fields = _fields(turn_id, thread_id, place, agent, request, now) | {"steers": int(manner is WhenBusy.STEER)}
    if request.control is Control.STEP:
        stepped.lay_down(tx, turn_id, request.step or StepTerms())
    admitted = Admitted(turn_id=turn_id, thread_id=thread_id)
    if place.will is not None:
        coalescing.end_at_once(tx, fields, place)
        return _Stored(admitted=admitted, intents=moved, decided=decided, over=[turn_id])
    room = crowding.make_room(tx, rt, group_of(request), turn_id, thread_id)
    ready = turns.admit(tx, fields)
    came = Arrival(turn_id=turn_id, thread_id=thread_id, request=request, manner=manner, ready=ready)
    met = double_texting.meet(tx, rt, agent, came)
    hint = Hint(turn_id, thread_id)
    intents = [*moved, *freed, *room.intents, *(met.intents or [Dispatch(group=group_of(request), hint=hint)])]
    over = [gone for gone in (place.older.id if place.older else None, room.dropped) if gone]
    return _Stored(admitted=admitted, intents=intents, decided=decided, ended=met.ended, over=over)


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
