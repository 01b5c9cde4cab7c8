"""One task, chore or will is seen to: its row moves on, and where that calls for a turn, the turn is stored with it.

Both are one transaction, guarded by what was seen of the row. Whoever dies before its commit has done nothing, whoever
dies behind it has done all of it but send the wake-up, which rescue does; and of several who see to the same item at
once, one commits and the others find the row moved. A turn's file is read behind its row: what a tool has made of the
file since is either in that row, or has moved it.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import datetime

import structlog

from chordage.orchestrator.core.agent import AgentSpec, WhenBusy, WhileWaiting
from chordage.orchestrator.core.errors import Conflict, LostRace, NotFound, RoomError, UserError
from chordage.orchestrator.core.intents import Intent
from chordage.orchestrator.core.message import Message, Origin, Sender, TurnRequest
from chordage.orchestrator.core.standing_work import Item, Kind, Row, State, Step, by_hand, next_step
from chordage.orchestrator.gateways.work.room_work import RoomWork
from chordage.orchestrator.run import arrivals
from chordage.orchestrator.run.arrivals import Admitted, check_request, store_in, tell
from chordage.orchestrator.runtime import Runtime
from chordage.orchestrator.store import pulse, turns

log = structlog.get_logger()
SOURCE = "pulse"


@dataclass(frozen=True, kw_only=True, slots=True)
class Seen:
    """What came of looking at one item."""

    settled: bool = False  # until the file changes or its time comes, there is nothing to do
    moved: bool = False
    put: Step | None = None  # its row is to be moved on, without a turn
    intents: list[Intent] = field(default_factory=list)
    fault: RoomError | None = None
    put_off: bool = False  # it calls for a turn, and none was tried


def see_to(rt: Runtime, work: RoomWork, item: Item, row: Row | None, *, turns: bool = True) -> Seen:
    """Raises QueueFull when its group takes no more: then nothing has moved, and the next tick tries again. `turns`:
    whether one is to be tried at all; a row that needs none moves on in any case.
    """
    now = rt.now()
    step = next_step(item, row, now)
    if step.dedupe_key is not None and not turns:
        return Seen(put_off=True)
    if step.dedupe_key is not None or (row is not None and step.row != row):
        now_item = work.again(item)
        if now_item is None:
            return Seen()
        item, step = now_item, next_step(now_item, row, now)
    if step.dedupe_key is None:
        return _without_turn(row, step)
    if not turns:
        return Seen(put_off=True)
    try:
        agent, request = _asked(rt, item, step.dedupe_key, now)
    except UserError as error:
        return Seen(fault=RoomError(f"{item.path}:1: {error}"))
    try:
        admitted = _stored(rt, agent, request, step.row, row, now)
    except LostRace:
        return Seen(moved=_after_an_earlier_life(rt, agent, step, row))
    return Seen(settled=True, moved=True, intents=admitted[1]) if admitted else Seen()


def _without_turn(row: Row | None, step: Step) -> Seen:
    return Seen(settled=not step.waits) if step.row == row else Seen(put=step)


def _asked(rt: Runtime, item: Item, dedupe_key: str, now: datetime) -> tuple[AgentSpec, TurnRequest]:
    agent = rt.agents.get(item.agent)
    thread = f"will:{agent.name}" if item.kind is Kind.WILL else item.name
    message = Message(
        origin=Origin(item.kind.value), channel=None, sender=Sender.SELF, thread_id=thread, text=item.text,
        meta={"path": item.path},
    )  # fmt: skip
    request = TurnRequest(
        message=message, agent=agent.name, source=SOURCE, dedupe_key=dedupe_key, when_busy=WhenBusy.ENQUEUE,
        while_waiting=WhileWaiting.HOLD,
    )  # fmt: skip
    return check_request(rt, request, now), request


def _stored(
    rt: Runtime, agent: AgentSpec, request: TurnRequest, row: Row, seen: Row | None, now: datetime
) -> tuple[Admitted, list[Intent]] | None:
    """None: somebody else has moved the row first. Raises QueueFull for a will that has to wait for others."""
    arrivals.defer_will(rt, request, agent.name)
    with rt.store.write() as tx:
        if not pulse.put(tx, replace(row, open=False), seen=seen):
            return None
        stored = store_in(tx, rt, agent, request, [], now)
        pulse.note_turn(tx, row, stored.admitted.turn_id)
    log.info("pulse", thread=stored.admitted.thread_id, turn=stored.admitted.turn_id, slot=request.dedupe_key)
    return tell(rt, stored), stored.intents


def _after_an_earlier_life(rt: Runtime, agent: AgentSpec, step: Step, seen: Row | None) -> bool:
    """Its file had been away for long, and there is a turn under this key from before. A slot is not filled twice; a
    task that is there anew gets the next number.
    """
    assert step.dedupe_key is not None
    with rt.store.write() as tx:
        turn_id = turns.by_dedupe_key(tx, agent.name, SOURCE, step.dedupe_key)
        if turn_id is None:
            return False
        if step.row.kind is Kind.TASK:
            anew = replace(seen or replace(step.row, seen=None, own=None), open=False, count=step.row.count)
            return pulse.put(tx, anew, seen=seen)
        moved = pulse.put(tx, replace(step.row, open=False), seen=seen)
        if moved:
            pulse.note_turn(tx, step.row, turn_id)
    return moved


def run_now(rt: Runtime, work: RoomWork, wanted: str) -> tuple[Admitted, list[Intent]]:
    """A turn because somebody asks for it. A schedule does not notice."""
    item = _named(work, wanted)
    with rt.store.read() as tx:
        row = pulse.load(tx, item.kind, item.key)
        turn = turns.load(tx, row.turn_id) if row and row.open and row.turn_id else None
    if turn is not None and turn.done_at is None:
        raise Conflict(f"{item.name} has turn {turn.id}, which is {turn.status.value}: wait for its end, or cancel it")
    if item.closed:
        raise Conflict(f"{item.path} is done or cancelled: set its status to todo, and it runs by itself")
    now = rt.now()
    agent, request = _asked(rt, item, f"{item.name}:by-hand:{rt.new_id()}", now)
    done = _stored(rt, agent, request, replace(by_hand(item, row, now), paused=item.paused), row, now)
    if done is None:
        raise Conflict(f"{item.name} was moved by the pulse at this moment: look at `chordage pulse`, and try again")
    return done


def _named(work: RoomWork, wanted: str) -> Item:
    look = work.look(give_ids=True)
    found = [item for item in look.items.values() if wanted in {item.name, item.key, item.path}]
    exact = [item for item in found if wanted in {item.name, item.path}]
    if len(one := exact or found) == 1:
        return one[0]
    if one:
        raise NotFound(f"{wanted!r} may be {' or '.join(item.name for item in one)}: say which")
    if wanted in look.faults:
        raise look.faults[wanted]
    known = ", ".join(sorted(item.name for item in look.items.values())[:20]) or "none"
    raise NotFound(f"there is no task, chore or will {wanted!r} in {work.room}; there are: {known}")


def taken_away(row: Row, now: datetime) -> Row:
    return replace(row, state=State.GONE, gone_at=now)
