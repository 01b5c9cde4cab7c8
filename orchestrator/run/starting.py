"""How a turn starts inside another transaction: the one that ends a run of its group, or the one that admits it.

The start and what it is part of are one commit, so a backlog costs no message and no commit for a turn that waited. The
process carries the run on, or sends for it (tasks/follow.py). If it dies between the two, the run is found when its
lease has run out, as after any start.

The lock of the thread is taken after the commit, where Redis answers and no other process has it: the index has
decided.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import NamedTuple

import structlog

from chordage.orchestrator.core.errors import BrokenAgent, UserError, WrongKey
from chordage.orchestrator.core.intents import Advance, Dispatch
from chordage.orchestrator.core.records import Checkpoint, History, Run, Turn
from chordage.orchestrator.core.transcript import message_of
from chordage.orchestrator.run.unit import RunStarted, Unit
from chordage.orchestrator.store import fairness, journal, starts
from chordage.orchestrator.store.fairness import StartRule
from chordage.orchestrator.store.starts import Start
from chordage.orchestrator.strategies import shipped

log = structlog.get_logger()


class StartedRun(NamedTuple):
    """`past`: the history of its thread, with the message that it starts with."""

    run: Run
    past: History


def send_start(
    unit: Unit, turn: Turn, run_id: str, rule: StartRule, *, takes_thread: bool = False
) -> Callable[[], StartedRun | None]:
    """Nothing is waited for. After the commit: the run, or None where the turn could not start."""
    start = Start(
        turn=turn, run_id=run_id, words=_words(unit, turn, run_id), rule=rule, budget=unit.rt.budgets[turn.group],
        now=unit.now, lease_until=unit.lease(), worker=unit.rt.worker, digest=unit.rt.agents.digests().get(turn.agent),
    )  # fmt: skip
    sent = starts.send(unit.tx, start)
    history = _send_history(unit, turn, run_id)

    @cache
    def started() -> StartedRun | None:
        run = starts.opened_run(start, sent)
        return None if run is None else StartedRun(run, history())

    unit.announce(lambda: RunStarted(run=known.run, takes_thread=takes_thread) if (known := started()) else None)
    return started


def start_admitted(unit: Unit, turn: Turn) -> None:
    """Start a turn that this transaction has admitted, if the budget covers every ready turn. Otherwise a wake-up looks
    which turn is next.
    """
    started = send_start(unit, turn, unit.rt.new_id(), StartRule.ALL_FIT, takes_thread=True)
    unit.follow_result(lambda: Dispatch(group=turn.group) if (known := started()) is None else _begin(*known))


def start_next(unit: Unit, ended: Run, *, several: bool) -> bool:
    """Start the turn that is next in the place of a run that this transaction has ended. `several`: tenants take turns,
    and one transaction at a time may move their order. False: a wake-up has to do it.
    """
    rt, group, run_id = unit.rt, ended.group, unit.rt.new_id()
    if several and not fairness.TRY_LOCK_ORDER.rows(unit.tx, {"group": group.value}):
        return False
    try:
        opened = starts.open_next(
            unit.tx, group, ended=ended.id, run_id=run_id, budget=rt.budgets[group], now=unit.now,
            lease_until=unit.lease(), worker=rt.worker, digests=rt.agents.digests(),
        )  # fmt: skip
    except WrongKey as error:  # the turn that is next waits for its key; the end of this run does not
        log.error("work waits for a key", error=str(error))  # noqa: TRY400 - it says all
        starts.undo(unit.tx, run_id)
        return False
    if opened is None:
        return False
    turn, run = opened
    if _is_broken(unit, turn):
        starts.undo(unit.tx, run_id)
        return False
    if (digest := rt.agents.digests().get(turn.agent)) != run.agent_digest:  # its file has changed just now
        starts.set_digest(unit.tx, run_id, digest)
        run = replace(run, agent_digest=digest)
    if several:
        starts.set_last_tenant(unit.tx, group, turn, run_id, unit.now)
    journal.append(unit.tx, [_words(unit, turn, run_id)])
    history = _send_history(unit, turn, run_id)
    unit.announce(RunStarted(run=run, takes_thread=True))
    unit.follow_result(lambda: _begin(run, history()))
    return True


def hand_on(unit: Unit, ended: Run, *, several: bool) -> None:
    """The place of a run that this transaction has ended goes to the turn that is next, or a wake-up is sent for it."""
    if not (unit.rt.hands_on and start_next(unit, ended, several=several)):
        unit.follow(Dispatch(group=ended.group))


def _begin(run: Run, past: History) -> Advance:
    return Advance(run_id=run.id, group=run.group, of=run.subject, seen=run, past=past)


def _send_history(unit: Unit, turn: Turn, run_id: str) -> Callable[[], History]:
    """In the trip of the start, so that the first request of the run needs none."""
    return journal.send_history(unit.tx, turn.thread_id, plans_of=run_id if shipped.plans(turn.strategy) else None)


def _words(unit: Unit, turn: Turn, run_id: str) -> journal.Row:
    return journal.entry(turn.thread_id, run_id, 0, Checkpoint.USER_MESSAGE, message_of(turn), unit.now)


def _is_broken(unit: Unit, turn: Turn) -> bool:
    """The wake-up puts the turns of such an agent to sleep."""
    try:
        unit.rt.agents.get(turn.agent)
    except BrokenAgent:
        return True
    except UserError:  # its run will meet the same, where it is counted
        return False
    return False
