"""2. A queued turn starts: within its group's budget, one per thread, first come first served.

Two things keep a second run off a thread. The Redis lock answers without touching SQL; the partial unique index is what
makes it true, also while Redis is empty, paused or wrong. Either alone is enough, and each is tested without the other.
"""

from __future__ import annotations

from datetime import datetime, timedelta

import structlog

from chordage.orchestrator.core.errors import LostRace
from chordage.orchestrator.core.groups import Group
from chordage.orchestrator.core.intents import Advance, Intent
from chordage.orchestrator.core.records import Checkpoint, Turn
from chordage.orchestrator.runtime import Runtime
from chordage.orchestrator.store import claims, journal, runs, turns
from chordage.orchestrator.store.tx import Tx

log = structlog.get_logger()

TRIES = 20  # turns that others are just starting are passed over; who passes this many leaves it to rescue
BACKLOG = timedelta(seconds=1)  # a turn that is due for longer than this has been waiting for budget


def dispatch(rt: Runtime, group: Group, turn_id: str | None = None, *, only: bool = False) -> list[Intent]:
    """Start `turn_id` if it may start, or else the turn that has been due longest. With `only`, that one or none.

    In a burst every wake-up starts the turn it came with, so that a hundred of them do not fight for the oldest.
    """
    passed: list[str] = []
    while len(passed) < TRIES:
        now = rt.now()
        with rt.store.read() as tx:
            head = turns.head(tx, group, now, default=rt.budgets[group], passing=passed)
            wanted = turn_id if turn_id and (only or _is_burst(head, now)) else None
            chosen = turns.ready(tx, wanted, now) if wanted else head and (head.turn_id, head.thread_id)
        if head is None or head.full or chosen is None:
            return []
        if (run_id := _start_on(rt, group, *chosen)) is not None:
            return [Advance(run_id=run_id, group=group)]
        if only:
            return []
        passed.append(chosen[0])
        turn_id = None
    return []


def _is_burst(head: turns.Head | None, now: datetime) -> bool:
    return head is not None and now - head.due_at < BACKLOG


def _start_on(rt: Runtime, group: Group, turn_id: str, thread_id: str) -> str | None:
    run_id = rt.new_id()
    owner = f"{run_id}:1"
    if not _take_thread(rt, thread_id, owner):
        return None
    started = False
    try:
        with rt.store.write() as tx:
            started = _start(tx, rt, group, turn_id, run_id)
    except LostRace:
        log.info("thread was busy after all", thread=thread_id, turn=turn_id)
    finally:
        if not started:
            rt.locks.release(thread_id, owner)
    if not started:
        return None
    rt.events.emit(run_id, "run.started", turn=turn_id, thread=thread_id)
    return run_id


def _take_thread(rt: Runtime, thread_id: str, owner: str) -> bool:
    """A lock left behind by a run that is done is taken over: its holder died between its last commit and the release."""
    holder = rt.locks.take(thread_id, owner)
    if holder is None:
        return True
    with rt.store.read() as tx:
        if not runs.is_done(tx, holder.rpartition(":")[0]):
            return False
    rt.locks.release(thread_id, holder)
    return rt.locks.take(thread_id, owner) is None


def _start(tx: Tx, rt: Runtime, group: Group, turn_id: str, run_id: str) -> bool:
    now = rt.now()
    budget = claims.lock_budget(tx, group, rt.budgets[group])
    turn = claims.start_turn(tx, turn_id, run_id, budget=budget, now=now)
    if turn is None:
        return False
    if not claims.open_run(tx, turn, run_id, now=now, lease_until=rt.leases.until(now)):
        raise LostRace
    journal.append(tx, [journal.entry(turn.thread_id, run_id, 0, Checkpoint.USER_MESSAGE, _said(turn), now)])
    return True


def _said(turn: Turn) -> dict[str, object]:
    return {"text": turn.text, "turn": turn.id, "origin": turn.origin, "channel": turn.channel, "sender": turn.sender}
