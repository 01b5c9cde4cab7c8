"""2. A queued turn starts: within its group's budget, one per thread, first come first served.

Two things keep a second run off a thread. The Redis lock answers without touching SQL; the partial unique index is what
makes it true, also while Redis is empty, paused or wrong. Either alone is enough, and each is tested without the other.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import structlog

from chordage.orchestrator import decider
from chordage.orchestrator.core.errors import LostRace
from chordage.orchestrator.core.groups import Group
from chordage.orchestrator.core.intents import Hint, Intent
from chordage.orchestrator.core.records import Checkpoint, Run, Turn
from chordage.orchestrator.runtime import Runtime
from chordage.orchestrator.store import claims, journal, runs, turns
from chordage.orchestrator.store.tx import Tx

log = structlog.get_logger()

LONG_AGO = datetime(1970, 1, 1, tzinfo=UTC)
TRIES = 20  # turns that others are just starting are passed over; who passes this many leaves it to rescue
BACKLOG = timedelta(seconds=1)  # a turn that is due for longer than this has been waiting for budget


def dispatch(rt: Runtime, group: Group, hint: Hint | None = None, *, only: bool = False) -> list[Intent]:
    """Start the turn of the hint, unless others have waited for longer; else the one that has. `only`: that one or none.

    In a burst every wake-up starts the turn it came with, so that a hundred of them do not fight for the oldest.
    """
    if hint is not None:
        since = LONG_AGO if only else rt.now() - BACKLOG
        if (run := _start_on(rt, group, *hint, unless_due_before=since)) is not None:
            return decider.after_rest(rt, run)
        if only:
            return []
    return _start_the_oldest(rt, group)


def _start_the_oldest(rt: Runtime, group: Group) -> list[Intent]:
    passed: list[str] = []
    while len(passed) < TRIES:
        with rt.store.read() as tx:
            head = turns.head(tx, group, rt.now(), default=rt.budgets[group], passing=passed)
        if head is None or head.full:
            return []
        run = _start_on(rt, group, head.turn_id, head.thread_id, unless_due_before=LONG_AGO)
        if run is not None:
            return decider.after_rest(rt, run)
        passed.append(head.turn_id)
    return []


def _start_on(rt: Runtime, group: Group, turn_id: str, thread_id: str, *, unless_due_before: datetime) -> Run | None:
    run_id = rt.new_id()
    owner = f"{run_id}:1"
    if not _take_thread(rt, thread_id, owner):
        return None
    run: Run | None = None
    try:
        with rt.store.write() as tx:
            run = _start(tx, rt, group, turn_id, run_id, unless_due_before)
    except LostRace:
        log.info("thread was busy after all", thread=thread_id, turn=turn_id)
    finally:
        if run is None:
            rt.locks.release(thread_id, owner)
    if run is not None:
        rt.events.emit(run_id, "run.started", turn=turn_id, thread=thread_id)
    return run


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


def _start(tx: Tx, rt: Runtime, group: Group, turn_id: str, run_id: str, unless_due_before: datetime) -> Run | None:
    now = rt.now()
    budget = claims.lock_budget(tx, group, rt.budgets[group])
    turn = claims.start_turn(tx, turn_id, run_id, budget=budget, now=now, unless_due_before=unless_due_before)
    if turn is None:
        return None
    run = claims.open_run(tx, turn, run_id, now=now, lease_until=rt.leases.until(now))
    if run is None:
        raise LostRace
    journal.append(tx, [journal.entry(turn.thread_id, run_id, 0, Checkpoint.USER_MESSAGE, _said(turn), now)])
    return run


def _said(turn: Turn) -> dict[str, object]:
    return {"text": turn.text, "turn": turn.id, "origin": turn.origin, "channel": turn.channel, "sender": turn.sender}
