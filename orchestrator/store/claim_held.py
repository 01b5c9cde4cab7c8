"""Guarded changes of runs that lie with their consumer."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import Update, update

from chordage.orchestrator.core.reasons import Ending, Reason
from chordage.orchestrator.core.records import Phase, Run
from chordage.orchestrator.core.status import RunStatus
from chordage.orchestrator.store.predicates import STILL_RUNNING, still
from chordage.orchestrator.store.schema import runs
from chordage.orchestrator.store.tx import Tx

_FREE = {"claim_token": None, "claim_worker": None, "resends": 0, "expiries": 0, "stalled": 0}


def hold_again(tx: Tx, run: Run, *, to: tuple[int, Phase], now: datetime) -> bool:
    """Without a new reply: before the first request, behind a round that was only looked at, or after a failure."""
    step, phase = to
    held = (
        update(runs)
        .where(runs.c.id == run.id, runs.c.epoch == run.epoch, runs.c.step == run.step, STILL_RUNNING)
        .values(
            status=RunStatus.WAITING.value, reason=Reason.HELD.value, step=step, phase=phase.value, lease_until=None,
            rested_since=now, **_FREE,
        )
    )  # fmt: skip
    return tx.execute(held).rowcount == 1


def _held(run: Run) -> Update:
    return update(runs).where(
        runs.c.id == run.id,
        runs.c.epoch == run.epoch,
        runs.c.step == run.step,
        still(runs.c.status, RunStatus.WAITING),
        runs.c.reason == Reason.HELD.value,
    )


def go_from_held(
    tx: Tx,
    run: Run,
    *,
    to: tuple[int, Phase],
    rounds: int,
    rested_ms: int,
    lease_until: datetime,
    replay_from: int | None = None,
) -> bool:
    """Waiting -> Running, at the step where its consumer sends it."""
    step, phase = to
    gone = _held(run).values(
        status=RunStatus.RUNNING.value, reason=None, step=step, phase=phase.value, rounds=run.rounds + rounds,
        rested_ms=rested_ms, rested_since=None, lease_until=lease_until, replay_from=replay_from, **_FREE,
    )  # fmt: skip
    return tx.execute(gone).rowcount == 1


def finish_held(tx: Tx, run: Run, ending: Ending, now: datetime) -> bool:
    """The reply that is held was the last one."""
    ended = _held(run).values(
        status=RunStatus.DONE.value, reason=ending.reason.value, code=ending.code, detail=ending.detail, ended_at=now,
        lease_until=None, **_FREE,
    )  # fmt: skip
    return tx.execute(ended).rowcount == 1


def go_on_with_news(tx: Tx, run: Run, *, lease_until: datetime) -> bool:
    """Something was put behind what the run stands at; the model is asked at the next step."""
    moved = (
        update(runs)
        .where(runs.c.id == run.id, runs.c.epoch == run.epoch, runs.c.step == run.step, STILL_RUNNING)
        .values(
            step=run.step + 1, phase=Phase.INFERENCE.value, replay_from=None, lease_until=lease_until, **_FREE,
        )
    )  # fmt: skip
    return tx.execute(moved).rowcount == 1
