"""A turn is stored in a transaction that is open already: alone, or with what must be true in the same commit."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from chordage.orchestrator import answering, double_texting
from chordage.orchestrator.answering import Decided
from chordage.orchestrator.core import busy
from chordage.orchestrator.core.agent import AgentSpec, WhenBusy
from chordage.orchestrator.core.errors import Conflict
from chordage.orchestrator.core.intents import Dispatch, Hint, Intent
from chordage.orchestrator.core.message import TurnRequest, group_of
from chordage.orchestrator.core.records import Run
from chordage.orchestrator.core.stepping import Control, StepTerms
from chordage.orchestrator.core.suspending import Suspension
from chordage.orchestrator.double_texting import Arrival
from chordage.orchestrator.runtime import Runtime
from chordage.orchestrator.store import runs, stepped, threads, turns
from chordage.orchestrator.store.tx import Tx


@dataclass(frozen=True, kw_only=True, slots=True)
class Admitted:
    turn_id: str
    thread_id: str
    duplicate: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Stored:
    admitted: Admitted
    intents: list[Intent]
    decided: list[Decided]
    ended: Run | None  # the run that was open there


def store_in(
    tx: Tx, rt: Runtime, agent: AgentSpec, request: TurnRequest, asked: list[Suspension], now: datetime
) -> Stored:
    """Raises LostRace when a turn with that dedupe key is there: the transaction must then be undone."""
    turn_id = rt.new_id()
    thread_id = request.message.thread_id or f"{request.message.origin.value}:{turn_id}"
    manner = busy.manner_of(request, agent, now)
    if manner is WhenBusy.REJECT:
        _refuse_if_busy(tx, thread_id)
    arrival = threads.arrive(tx, thread_id, agent.name, now)
    decided, moved = _take_decisions(tx, rt, request, asked, thread_id) if asked else ([], [])
    steers = {"steers": int(manner is WhenBusy.STEER)}
    ready = turns.admit(tx, _fields(turn_id, thread_id, arrival, agent, request, now) | steers)
    if request.control is Control.STEP:
        stepped.lay_down(tx, turn_id, request.step or StepTerms())
    came = Arrival(turn_id=turn_id, thread_id=thread_id, request=request, manner=manner, ready=ready)
    met = double_texting.meet(tx, rt, agent, came)
    hint = Hint(turn_id, thread_id)
    intents = [*moved, *(met.intents or [Dispatch(group=group_of(request), hint=hint)])]
    admitted = Admitted(turn_id=turn_id, thread_id=thread_id)
    return Stored(admitted=admitted, intents=intents, decided=decided, ended=met.ended)


def _take_decisions(
    tx: Tx, rt: Runtime, request: TurnRequest, asked: list[Suspension], thread_id: str
) -> tuple[list[Decided], list[Intent]]:
    """The message will look at the run of its own thread: messages with decisions for each other's threads must not
    wait for each other.
    """
    beside = runs.open_on(tx, thread_id)
    return answering.take(tx, rt, request.decisions, asked, request.source, beside=beside)


def _refuse_if_busy(tx: Tx, thread_id: str) -> None:
    run = runs.open_on(tx, thread_id)
    if run is not None:
        raise Conflict(f"thread {thread_id!r} is busy with run {run.id}; send it later, or with when_busy 'enqueue'")


def _fields(
    turn_id: str, thread_id: str, arrival: int, agent: AgentSpec, request: TurnRequest, now: datetime
) -> dict[str, Any]:
    message, group = request.message, group_of(request)
    return {
        "id": turn_id,
        "thread_id": thread_id,
        "arrival": arrival,
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
        "reply_target": request.reply_target,
        "not_before": request.not_before,
        "due_at": max(request.not_before or now, now),
        "deadline": request.deadline,
        "queued_at": now,
        "nudge_at": now,
    }
