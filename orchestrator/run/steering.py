"""Messages that a run takes in while it is at work: they become further turns of it.

A message is taken in where the run would ask its model next: behind the results of a round, or behind the reply that
would have ended it. Its entry in the history, the end of its turn and the move of the run are one transaction, in
which the row of the run is locked; the flag `steers` on that row says, without a statement of its own, whether there
is anybody to take in. A run that has to stop takes in nobody: who waited is then the next of the line.
"""

from __future__ import annotations

from collections.abc import Sequence

import structlog

from chordage.orchestrator.core.agent import Limits
from chordage.orchestrator.core.intents import Advance, Intent
from chordage.orchestrator.core.limits import of_run
from chordage.orchestrator.core.model import Usage
from chordage.orchestrator.core.records import Checkpoint, Phase, Run, Turn
from chordage.orchestrator.core.status import Disposition, RunStatus
from chordage.orchestrator.core.transcript import message_of
from chordage.orchestrator.run.waiting import NO_USAGE, NOT_OURS, Transition, owed_rows
from chordage.orchestrator.runtime import Runtime
from chordage.orchestrator.store import journal, outbox, runs, steering
from chordage.orchestrator.store.database import Tx
from chordage.orchestrator.store.runs import RunClaim

log = structlog.get_logger()


def before_the_model(rt: Runtime, at: RunClaim) -> list[Intent] | None:
    """Take in who waits, before the prompt is made. What follows; None when nobody waits any more and the model may be
    asked.
    """
    crossing = rt.store.insist(lambda tx: _pass(tx, rt, at))
    if crossing is None:
        return None
    tell(rt, at.run, crossing)
    return crossing.intents


def _pass(tx: Tx, rt: Runtime, at: RunClaim) -> Transition | None:
    if (run := _locked(tx, at)) is None:
        return NOT_OURS
    if not (waiting := steering.pending(tx, run, rt.now())):
        steering.clear_pending(tx, run.id)
        return None
    return take_in(tx, rt, at, waiting, first=at.step, behind=owed_rows(tx, rt, run))


def who_waits(tx: Tx, rt: Runtime, at: RunClaim, limits: Limits) -> list[Turn] | None:
    """For whom a run goes on that would have ended of itself. None: it is not at this step any more."""
    if (run := _locked(tx, at)) is None:
        return None
    return [] if _must_stop(rt, run, limits) else steering.pending(tx, run, rt.now())


def _locked(tx: Tx, at: RunClaim) -> Run | None:
    run = runs.lock(tx, at.run.id)
    if run is None or run.status is not RunStatus.RUNNING or run.epoch != at.run.epoch:
        return None
    return run if run.steers and run.next_inference == at.step else None


def _must_stop(rt: Runtime, run: Run, limits: Limits) -> bool:
    """To go on behind a reply counts as a round, or a run that is steered all the time would never end."""
    limits = of_run(limits, run)
    if limits.max_rounds is not None and run.rounds >= limits.max_rounds:
        return True
    return limits.timeout is not None and run.worked(rt.now()) >= limits.timeout


def take_in(
    tx: Tx,
    rt: Runtime,
    at: RunClaim,
    waiting: Sequence[Turn],
    *,
    first: int,
    behind: Sequence[journal.Row],
    rounds: int = 0,
    usage: Usage = NO_USAGE,
) -> Transition:
    """Each message is a step of its own, the first of them `first`; behind the last the model is asked."""
    run, now = at.run, rt.now()
    to = (first + len(waiting), Phase.INFERENCE)
    if not runs.open_step(tx, at, to=to, rounds=rounds, usage=usage, lease_until=rt.leases.until(now)):
        return NOT_OURS
    targets = steering.take_in(tx, run, [turn.id for turn in waiting], now)
    heard = [
        journal.entry(run.thread_id, run.id, step, Checkpoint.USER_MESSAGE, message_of(turn), now)
        for step, turn in enumerate(waiting, first)
    ]
    journal.append(tx, [*behind, *heard])
    for turn_id, target in targets.items():
        if target is not None:
            body = {"reason": Disposition.STEERED.value, "code": None, "detail": run.id, "text": None}
            outbox.add(tx, run.thread_id, turn_id, target=target, body=body, now=now)
    return Transition(
        intents=[Advance(run_id=run.id, group=run.group, of=run.subject)], steered=tuple(turn.id for turn in waiting)
    )


def tell(rt: Runtime, run: Run, crossing: Transition) -> None:
    """After the commit: whoever waits for such a turn may look."""
    for turn_id in crossing.steered:
        rt.events.emit(run.id, "turn.steered", turn=turn_id)
        rt.events.turn_done(turn_id)
        log.info("turn ended", turn=turn_id, run=run.id, thread=run.thread_id, disposition=Disposition.STEERED.value)
