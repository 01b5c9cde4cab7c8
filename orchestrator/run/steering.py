"""Messages that a run takes in while it is at work: they become further turns of it.

A message is taken in where the run would ask its model next: behind the results of a round, or behind the reply that
would have ended it. Its entry in the history, the end of its turn and the move of the run are one transaction that
locks the run's row. The flag `steers` on that row says, without a statement of its own, whether a message waits. A run
that has to stop takes in none: what waits is then next in line.
"""

from __future__ import annotations

from collections.abc import Sequence

from chordage.orchestrator.core.agent import Limits
from chordage.orchestrator.core.errors import LostRace
from chordage.orchestrator.core.intents import Intent, advance
from chordage.orchestrator.core.model import Usage
from chordage.orchestrator.core.records import Checkpoint, Phase, Run, Turn
from chordage.orchestrator.core.status import Disposition, RunStatus
from chordage.orchestrator.core.transcript import message_of
from chordage.orchestrator.run import checkpoints
from chordage.orchestrator.run.unit import NO_USAGE, TurnSteered, Unit, insist
from chordage.orchestrator.runtime import Runtime
from chordage.orchestrator.store import journal, outbox, runs, steering
from chordage.orchestrator.store.runs import RunClaim


def take_in_before_request(rt: Runtime, claim: RunClaim) -> list[Intent] | None:
    """Take in what waits, before the prompt is made. None: nothing waits any more, and the model may be asked."""
    try:
        may_ask, intents = insist(rt, lambda unit: _nothing_waits(unit, claim))
    except LostRace:
        return []
    return None if may_ask else intents


def _nothing_waits(unit: Unit, claim: RunClaim) -> bool:
    run = _locked(unit, claim)
    if run is None:
        return False
    messages = steering.pending(unit.tx, run, unit.now)
    if not messages:
        steering.clear_pending(unit.tx, run.id)
        return True
    take_in(unit, claim, messages, first=claim.step, behind=checkpoints.of_round(unit, run))
    return False


def waiting_messages(unit: Unit, claim: RunClaim, limits: Limits) -> list[Turn] | None:
    """For which a run continues that would have ended by itself. None: it is not at this step any more."""
    run = _locked(unit, claim)
    if run is None:
        return None
    return [] if _must_stop(unit, run, limits) else steering.pending(unit.tx, run, unit.now)


def _locked(unit: Unit, claim: RunClaim) -> Run | None:
    run = runs.lock(unit.tx, claim.run.id)
    if run is None or run.status is not RunStatus.RUNNING or run.epoch != claim.run.epoch:
        return None
    return run if run.steers and run.next_inference == claim.step else None


def _must_stop(unit: Unit, run: Run, limits: Limits) -> bool:
    """To continue behind a reply counts as a round, or a run that is steered all the time would never end."""
    limits = run.limits(limits)
    if limits.max_rounds is not None and run.rounds >= limits.max_rounds:
        return True
    return limits.timeout is not None and run.worked(unit.now) >= limits.timeout


def take_in(
    unit: Unit,
    claim: RunClaim,
    messages: Sequence[Turn],
    *,
    first: int,
    behind: Sequence[journal.Row],
    rounds: int = 0,
    usage: Usage = NO_USAGE,
) -> None:
    """Each message is a step of its own, the first of them `first`; behind the last the model is asked."""
    tx, run = unit.tx, claim.run
    to = (first + len(messages), Phase.INFERENCE)
    runs.open_step(tx, claim, to=to, rounds=rounds, usage=usage, lease_until=unit.lease(), by=unit.rt.worker)
    targets = steering.take_in(tx, run, [turn.id for turn in messages], unit.now)
    entries = [
        journal.entry(run.thread_id, run.id, step, Checkpoint.USER_MESSAGE, message_of(turn), unit.now)
        for step, turn in enumerate(messages, first)
    ]
    journal.append(tx, [*behind, *entries])
    for turn_id, target in targets.items():
        if target is not None:
            body = {"reason": Disposition.STEERED.value, "code": None, "detail": run.id, "text": None}
            outbox.add(tx, run.thread_id, turn_id, target=target, body=body, now=unit.now)
    unit.follow(advance(run))
    for turn in messages:
        unit.announce(TurnSteered(turn_id=turn.id, run=run))
