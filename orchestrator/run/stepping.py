"""How a stepped run is held for its consumer.

A run that is held waits as one does for decisions: no worker, no lock, no lease, no place in the budget. `going` says
that its consumer has sent it on: while it is not set, the run is held again before its next request. Where its consumer
has said in advance what shall follow (`drive`), a wake-up is sent; rescue sends it again after `held_until`.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any

from chordage.orchestrator.core import text
from chordage.orchestrator.core.agent import AgentSpec
from chordage.orchestrator.core.errors import ModelFailed
from chordage.orchestrator.core.intents import Intent, advance, step_on
from chordage.orchestrator.core.model import Reply, Said
from chordage.orchestrator.core.reasons import Ending
from chordage.orchestrator.core.records import Checkpoint, Phase, Run
from chordage.orchestrator.core.status import RunStatus
from chordage.orchestrator.core.stepping import Control, Drive, RequestTerms, Stepped, digest
from chordage.orchestrator.core.transcript import attempts_of
from chordage.orchestrator.plugins.planners import FAULT, PlannerFailed
from chordage.orchestrator.run import approvals, checkpoints, waiting
from chordage.orchestrator.run.unit import RunHeld, Unit, insist
from chordage.orchestrator.runtime import Runtime
from chordage.orchestrator.store import journal, runs, stepped
from chordage.orchestrator.store.runs import RunClaim


class Recorded(StrEnum):
    """What has just been recorded of a run."""

    REPLY = "reply"
    RESULTS = "results"  # of the calls of a reply
    PLAN = "plan"
    ROUND = "round"  # the results of a plan


_HOLD = frozenset({Recorded.REPLY, Recorded.PLAN, Recorded.ROUND})


def holds(run: Run, recorded: Recorded) -> bool:
    """The one place that says after what a run is held."""
    return run.control is Control.STEP and recorded in _HOLD


def terms(rt: Runtime, run: Run, said: Sequence[Said]) -> RequestTerms:
    with rt.store.read() as tx:
        row = stepped.load(tx, run.turn_id)
    assert row is not None
    return RequestTerms(row=row, sent=digest(said, row.params))


def hold_reply(
    unit: Unit,
    claim: RunClaim,
    reply: Reply,
    rows: Sequence[journal.Row],
    *,
    kept: Ending | None,
    withheld: Sequence[str],
    sent: str,
) -> None:
    """Record a reply that is no part of the history yet, and hold the run."""
    run = claim.run
    kept = kept or run.kept
    runs.hold(unit.tx, claim, to=claim.step, kept=kept, usage=reply.usage, now=unit.now)
    journal.append(unit.tx, rows)
    row = _locked(unit, run)
    _hold(
        unit, run, row, reply_step=claim.step, iteration=row.iteration + 1, withheld=sorted(withheld), sent_hash=sent,
        mutated=False, verdicts={}, error=None,
    )  # fmt: skip


def _locked(unit: Unit, run: Run) -> Stepped:
    row = stepped.load(unit.tx, run.turn_id, lock=True)
    assert row is not None
    return row


def _hold(unit: Unit, run: Run, row: Stepped, **changes: Any) -> None:
    changes = {"going": False, "parked": False, "held_until": _held_until(unit, row), **changes}
    stepped.change(unit.tx, row, **changes)
    if row.drive is not Drive.STEP:
        unit.follow(step_on(run))
    elif run.suspended:  # a decision may have come, and then it continues at once
        waiting.hand_on_place(unit, run.group)
    else:
        waiting.hand_on(unit, run)
    unit.announce(RunHeld(run=run))


def _held_until(unit: Unit, row: Stepped) -> datetime | None:
    """When rescue looks at it: the wake-up that was sent may get lost."""
    if row.drive is not Drive.STEP:
        return unit.lease()
    return None if row.hold_seconds is None else unit.now + timedelta(seconds=row.hold_seconds)


def hold_again(rt: Runtime, run: Run, agent: AgentSpec) -> list[Intent] | None:
    """Hold a run that is before its next request. None: its consumer has sent it there."""
    with rt.store.read() as tx:
        row = stepped.load(tx, run.turn_id)
    if row is None or row.going:
        return None
    return insist(rt, lambda unit: _hold_again(unit, run, agent))[1]


def _hold_again(unit: Unit, seen: Run, agent: AgentSpec) -> None:
    run = runs.lock(unit.tx, seen.id)
    if run is None or _moved(run, seen):
        return
    row = _locked(unit, run)
    if row.going or (run.suspended and approvals.replay_if_due(unit, run, agent)):
        return
    is_new = run.phase is Phase.INFERENCE and row.sent_hash is None and row.error is None
    runs.hold_again(unit.tx, run, to=(0, Phase.HELD) if is_new else (run.step, run.phase), now=unit.now)
    if not row.parked:
        _hold(unit, run, row)
        return
    # A decision has come to a run whose consumer has parked it.
    stepped.change(unit.tx, row)
    waiting.hand_on_place(unit, run.group)
    unit.announce(RunHeld(run=run))


def _moved(run: Run, seen: Run) -> bool:
    is_elsewhere = (run.epoch, run.step, run.phase) != (seen.epoch, seen.step, seen.phase)
    return run.status is not RunStatus.RUNNING or run.next_inference is None or is_elsewhere


def add_steers(rt: Runtime, run: Run) -> list[Intent] | None:
    """Right before a request, put what was said meanwhile behind the results. None: nothing was said."""
    with rt.store.read() as tx:
        row = stepped.load(tx, run.turn_id)
    if row is None or not row.steers:
        return None
    return insist(rt, lambda unit: _add_steers(unit, run))[1]


def _add_steers(unit: Unit, seen: Run) -> None:
    run = runs.lock(unit.tx, seen.id)
    if run is None or _moved(run, seen):
        return
    row = _locked(unit, run)
    rows = [*checkpoints.of_round(unit, run), steers_row(unit, run, run.step, row.steers)]
    runs.open_next_inference(unit.tx, run, lease_until=unit.lease())
    journal.append(unit.tx, rows)
    stepped.change(unit.tx, row, steers=[])
    unit.follow(advance(run))


def steers_row(unit: Unit, run: Run, step: int, texts: Sequence[str]) -> journal.Row:
    return journal.entry(run.thread_id, run.id, step, Checkpoint.CLIENT_STEERS, {"texts": list(texts)}, unit.now)


def hold_failed(rt: Runtime, claim: RunClaim, error: ModelFailed | PlannerFailed) -> list[Intent] | None:
    """The model, or the planner function, failed: its consumer may try again. None: the run is driven automatically,
    and ends with the failure.
    """
    if isinstance(error, PlannerFailed):
        fault: dict[str, Any] = {"fault": FAULT, "attempts": []}
    else:
        fault = {"fault": error.fault.value, "attempts": attempts_of(error.attempts)}
    details = {**fault, "detail": text.clean_text(str(error))}
    is_held, intents = insist(rt, lambda unit: _hold_failed(unit, claim, details))
    return intents if is_held else None


def _hold_failed(unit: Unit, claim: RunClaim, error: dict[str, Any]) -> bool:
    """Also where another worker was first."""
    run = runs.lock(unit.tx, claim.run.id)
    is_ours = run is not None and run.epoch == claim.run.epoch and run.claim_token in {None, claim.token}
    if run is None or not is_ours or run.status is not RunStatus.RUNNING or run.next_inference != claim.step:
        return True
    row = _locked(unit, run)
    if row.drive is Drive.AUTO:
        return False
    runs.hold_again(unit.tx, run, to=(run.step, run.phase), now=unit.now)
    _hold(unit, run, row, error=error, reply_step=None, drive=Drive.STEP)
    return True
