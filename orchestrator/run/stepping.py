"""How a stepped run comes to lie with its consumer, and what it takes with it to its requests.

A run that is held waits as one does for decisions: no worker, no lock, no lease, no budget. `going` tells where it was
sent: while it is not set, the run comes back to its consumer at the next crossing, and nothing of it moves on its own.
Where its consumer has said before what shall follow (`drive`), a wake-up is left; rescue finds what it was about by
`held_until`.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any

from chordage.orchestrator.core import text
from chordage.orchestrator.core.agent import AgentSpec
from chordage.orchestrator.core.errors import ModelFailed
from chordage.orchestrator.core.intents import Advance, Intent, StepOn
from chordage.orchestrator.core.model import Reply, Said
from chordage.orchestrator.core.reasons import Ending
from chordage.orchestrator.core.records import Checkpoint, Phase, Run
from chordage.orchestrator.core.status import RunStatus
from chordage.orchestrator.core.stepping import Control, Drive, RequestTerms, Stepped, digest
from chordage.orchestrator.core.transcript import attempts_of
from chordage.orchestrator.plugins.planners import FAULT, PlannerFailed
from chordage.orchestrator.run import approvals, waiting
from chordage.orchestrator.run.waiting import Transition
from chordage.orchestrator.runtime import Runtime
from chordage.orchestrator.store import journal, runs, stepped
from chordage.orchestrator.store.database import Tx
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
    tx: Tx,
    rt: Runtime,
    at: RunClaim,
    reply: Reply,
    rows: Sequence[journal.Row],
    *,
    kept: Ending | None,
    withheld: Sequence[str],
    sent: str,
) -> Transition:
    """The reply lies with the consumer: recorded, and no part of the history yet."""
    run = at.run
    if not runs.hold(tx, at, to=at.step, kept=kept or run.kept, usage=reply.usage, now=rt.now()):
        return waiting.NOT_OURS
    journal.append(tx, rows)
    row = _locked(tx, run)
    changes: dict[str, Any] = {
        "reply_step": at.step, "iteration": row.iteration + 1, "withheld": sorted(withheld), "sent_hash": sent,
        "mutated": False, "verdicts": {}, "error": None,
    }  # fmt: skip
    return _left_with_consumer(tx, rt, run, row, changes)


def _locked(tx: Tx, run: Run) -> Stepped:
    row = stepped.load(tx, run.turn_id, lock=True)
    assert row is not None
    return row


def _left_with_consumer(tx: Tx, rt: Runtime, run: Run, row: Stepped, changes: dict[str, Any]) -> Transition:
    stepped.change(tx, row, going=False, parked=False, held_until=_until(rt, row), **changes)
    if row.drive is not Drive.STEP:
        return Transition(intents=[StepOn(run_id=run.id, group=run.group, of=run.subject)], held=True)
    return Transition(intents=waiting.hand_on(tx, run.group), held=True)


def _until(rt: Runtime, row: Stepped) -> datetime | None:
    """When rescue looks at it. A wake-up that is on its way may get lost."""
    if row.drive is not Drive.STEP:
        return rt.leases.until(rt.now())
    return None if row.hold_seconds is None else rt.now() + timedelta(seconds=row.hold_seconds)


def at_rest(rt: Runtime, run: Run, agent: AgentSpec) -> list[Intent] | None:
    """The run stands at a crossing without a reply. None: it is on its way to a request."""
    with rt.store.read() as tx:
        row = stepped.load(tx, run.turn_id)
    if row is None or row.going:
        return None
    crossing = rt.store.insist(lambda tx: _back_to_consumer(tx, rt, run, agent))
    if crossing.held:
        tell(rt, run)
    return crossing.intents


def _back_to_consumer(tx: Tx, rt: Runtime, seen: Run, agent: AgentSpec) -> Transition:
    run = runs.lock(tx, seen.id)
    if run is None or _moved(run, seen):
        return waiting.NOT_OURS
    row = _locked(tx, run)
    if row.going:
        return waiting.NOT_OURS
    if run.suspended and (replayed := approvals.replay_if_due(tx, rt, run, agent)) is not None:
        return Transition(intents=replayed)
    is_new = run.phase is Phase.INFERENCE and row.sent_hash is None and row.error is None
    runs.hold_again(tx, run, to=(0, Phase.HELD) if is_new else (run.step, run.phase), now=rt.now())
    if row.parked:  # a decision has come to a run that nobody drives
        stepped.change(tx, row)
        return Transition(intents=waiting.hand_on(tx, run.group), held=True)
    return _left_with_consumer(tx, rt, run, row, {})


def _moved(run: Run, seen: Run) -> bool:
    is_elsewhere = (run.epoch, run.step, run.phase) != (seen.epoch, seen.step, seen.phase)
    return run.status is not RunStatus.RUNNING or run.next_inference is None or is_elsewhere


def with_news(rt: Runtime, run: Run) -> list[Intent] | None:
    """Right before a request: what was said meanwhile stands behind the results. None: nothing was."""
    with rt.store.read() as tx:
        row = stepped.load(tx, run.turn_id)
    if row is None or not row.steers:
        return None
    return rt.store.insist(lambda tx: _put_behind(tx, rt, run))


def _put_behind(tx: Tx, rt: Runtime, seen: Run) -> list[Intent]:
    run = runs.lock(tx, seen.id)
    if run is None or _moved(run, seen):
        return []
    row = _locked(tx, run)
    rows = [*waiting.owed_rows(tx, rt, run), steers_row(rt, run, run.step, row.steers)]
    runs.open_next_inference(tx, run, lease_until=rt.leases.until(rt.now()))
    journal.append(tx, rows)
    stepped.change(tx, row, steers=[])
    return [Advance(run_id=run.id, group=run.group, of=run.subject)]


def steers_row(rt: Runtime, run: Run, step: int, texts: Sequence[str]) -> journal.Row:
    return journal.entry(run.thread_id, run.id, step, Checkpoint.CLIENT_STEERS, {"texts": list(texts)}, rt.now())


def hold_failed(rt: Runtime, at: RunClaim, error: ModelFailed | PlannerFailed) -> list[Intent] | None:
    """The model, or a function that plans, could not be asked: the consumer may try again. None: a run that goes on by
    itself ends with it.
    """
    told = {**_fault_of(error), "detail": text.clean_text(str(error))}
    crossing = rt.store.insist(lambda tx: _give_back(tx, rt, at, told))
    if crossing is None:
        return None
    if crossing.held:
        tell(rt, at.run)
    return crossing.intents


def _fault_of(error: ModelFailed | PlannerFailed) -> dict[str, Any]:
    if isinstance(error, PlannerFailed):
        return {"fault": FAULT, "attempts": []}
    return {"fault": error.fault.value, "attempts": attempts_of(error.attempts)}


def _give_back(tx: Tx, rt: Runtime, at: RunClaim, told: dict[str, Any]) -> Transition | None:
    run = runs.lock(tx, at.run.id)
    is_ours = run is not None and run.epoch == at.run.epoch and run.claim_token in {None, at.token}
    if run is None or not is_ours or run.status is not RunStatus.RUNNING or run.next_inference != at.step:
        return waiting.NOT_OURS
    row = _locked(tx, run)
    if row.drive is Drive.AUTO:
        return None
    runs.hold_again(tx, run, to=(run.step, run.phase), now=rt.now())
    return _left_with_consumer(tx, rt, run, row, {"error": told, "reply_step": None, "drive": Drive.STEP})


def tell(rt: Runtime, run: Run) -> None:
    """After the commit: the lock is let go, and whoever waits for the turn may look at it."""
    rt.locks.release(run.thread_id, run.owner)
    rt.events.emit(run.id, "run.held", turn=run.turn_id)
    rt.events.turn_done(run.turn_id)
