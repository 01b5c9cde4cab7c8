"""2. A queued turn starts: within its group's budget, one per thread, in the order of store/fairness.py.

Two things keep a second run off a thread. The Redis lock answers without touching SQL; the partial unique index makes
it true, also while Redis is empty, paused or wrong. Either alone is enough, and each is tested without the other.
"""

from __future__ import annotations

import zlib
from datetime import timedelta

import structlog

from chordage.orchestrator.core.errors import BrokenAgent, UserError
from chordage.orchestrator.core.groups import Group
from chordage.orchestrator.core.intents import Dispatch, Hint, Intent
from chordage.orchestrator.core.records import Turn
from chordage.orchestrator.core.status import TurnStatus
from chordage.orchestrator.run import agent_versions, starting, transitions
from chordage.orchestrator.run.starting import StartedRun
from chordage.orchestrator.run.unit import Unit
from chordage.orchestrator.runtime import Runtime
from chordage.orchestrator.store import fairness, groups, runs, turns
from chordage.orchestrator.store.fairness import StartRule

log = structlog.get_logger()
AT_ONCE = 20  # turns that are next, looked at together
REPAIR = timedelta(seconds=10)  # after which the turns of a broken agent are tried again
TRIES = 5  # lots of them that may be lost to others, who then send for the rest when they end


def dispatch(rt: Runtime, group: Group, hint: Hint | None = None, *, only: bool = False) -> list[Intent]:
    """Start the turn of the hint, if there is budget for it and for all that are ready; else one that is next.

    `only`: that turn or none, whatever else is waiting. In a burst every wake-up so starts the turn it came with.
    """
    if hint is not None:
        if (started := _start_on(rt, *hint, StartRule.HAS_ROOM if only else StartRule.ALL_FIT)) is not None:
            return transitions.next_step(rt, *started)
        if only:
            return []
    return _start_next(rt, group, continue_after=hint is None)


def _start_next(rt: Runtime, group: Group, *, continue_after: bool) -> list[Intent]:
    """As many as there is budget for may start now, so each dispatcher begins at another of them.

    `continue_after`: this wake-up came from places that became free, perhaps several; while there is another and a turn
    for it, another wake-up follows. A dispatcher that leaves a turn behind marks that, before it stops.
    """
    while True:
        for _ in range(TRIES):
            with rt.store.read() as tx:
                free, hand_on = groups.places(tx, group, default=rt.budgets[group])
                heads = fairness.next_turns(tx, group, rt.now(), min(free, AT_ONCE)) if free else []
            if not free:
                if hand_on:
                    return []
                break
            if not heads:
                if hand_on and groups.clear_awaited(rt.store, group):
                    continue  # a turn that came just now may have relied on the mark
                return []
            rule = StartRule.FIRST if free == 1 else StartRule.HAS_SLOT
            first = zlib.crc32(rt.new_id().encode()) % len(heads)
            for turn_id, thread_id in (*heads[first:], *heads[:first]):
                if (started := _start_on(rt, turn_id, thread_id, rule)) is not None:
                    more: list[Intent] = [Dispatch(group=group)] if continue_after and len(heads) > 1 else []
                    return [*more, *_first_step(rt, started)]
        if not groups.await_place(rt.store, group):
            return []
        continue_after = True


def _first_step(rt: Runtime, started: StartedRun) -> list[Intent]:
    """What fails here is met again when rescue sends for the run; here it must not cost the turns behind it their
    wake-up.
    """
    run = started.run
    try:
        return transitions.next_step(rt, *started)
    except UserError as error:
        log.warning("a run has started and cannot continue yet", run=run.id, turn=run.turn_id, error=str(error))
    except Exception:
        log.exception("a run failed as it started", run=run.id, turn=run.turn_id)
    return []


def _start_on(rt: Runtime, turn_id: str, thread_id: str, rule: StartRule) -> StartedRun | None:
    with rt.store.read() as tx:
        turn = turns.load(tx, turn_id)
    if turn is None or turn.status is not TurnStatus.QUEUED or not _is_usable(rt, turn):
        return None
    run_id = rt.new_id()
    owner = f"{run_id}:1"
    if not _take_thread(rt, thread_id, owner):
        return None
    started: StartedRun | None = None
    try:
        started = _start(rt, turn, run_id, rule)
    finally:
        if started is None:
            rt.locks.release(thread_id, owner)
    return started


def _is_usable(rt: Runtime, turn: Turn) -> bool:
    """The turns of an agent whose files are broken stay queued, behind those of all others: a run of it would hold a
    place in the budget and could do nothing.
    """
    try:
        agent = rt.agents.get(turn.agent)
        if agent.digest and agent.digest not in rt.noted_versions:
            agent_versions.note(rt, agent)
    except BrokenAgent as error:
        with Unit(rt) as unit:
            number = fairness.put_to_sleep(unit.tx, turn.group, turn.agent, unit.now + REPAIR)
        log.info("turns wait for a broken agent", agent=turn.agent, turns=number, fault=str(error))
        return False
    except Exception as error:  # its run will meet the same, where it is counted
        log.info("agent not found", agent=turn.agent, error=repr(error))
    return True


def _take_thread(rt: Runtime, thread_id: str, owner: str) -> bool:
    """The lock of a run that is done is taken over: its holder died between its last commit and the release."""
    holder = rt.locks.take(thread_id, owner)
    if holder is None:
        return True
    with rt.store.read() as tx:
        if not runs.is_done(tx, holder.rpartition(":")[0]):
            return False
    return rt.locks.take(thread_id, owner, instead_of=holder) is None


def _start(rt: Runtime, turn: Turn, run_id: str, rule: StartRule) -> StartedRun | None:
    with Unit(rt, rt.store.one_trip) as unit:
        started = starting.send_start(unit, turn, run_id, rule)
    return started()
