"""2. A queued turn starts: within its group's budget, one per thread, first come first served.

Two things keep a second run off a thread. The Redis lock answers without touching SQL; the partial unique index is what
makes it true, also while Redis is empty, paused or wrong. Either alone is enough, and each is tested without the other.
"""

from __future__ import annotations

import structlog

from chordage.orchestrator.core.errors import LostRace
from chordage.orchestrator.core.groups import Group
from chordage.orchestrator.core.intents import Advance, Intent
from chordage.orchestrator.core.records import Checkpoint, Turn
from chordage.orchestrator.runtime import Runtime
from chordage.orchestrator.store import claims, journal, runs, turns
from chordage.orchestrator.store.tx import Tx

log = structlog.get_logger()

TRIES = 50  # turns that others are just starting are passed over; who passes this many leaves it to rescue


def dispatch(rt: Runtime, group: Group, *, only: str | None = None) -> list[Intent]:
    """Start the turn that has been due longest in this group; or `only` this one, once it is its turn."""
    passed: list[str] = []
    while len(passed) < TRIES:
        with rt.store.read() as tx:
            found = turns.next_ready(tx, group, rt.now(), passing=passed, only=only)
        if found is None:
            return []
        turn_id, thread_id = found
        passed.append(turn_id)
        if (run_id := _start_on(rt, group, turn_id, thread_id)) is not None:
            return [Advance(run_id=run_id, group=group)]
        if _is_full(rt, group):
            return []
    return []


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


def _is_full(rt: Runtime, group: Group) -> bool:
    with rt.store.read() as tx:
        return runs.count_running(tx, group) >= claims.budget_of(tx, group, rt.budgets[group])
