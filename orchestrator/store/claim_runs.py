"""Guarded changes of runs. The WHERE holds what the caller saw: the epoch, the step, the token."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement, and_, bindparam, or_, select, update

from chordage.orchestrator.core.groups import Group
from chordage.orchestrator.core.model import TOKENS, Usage
from chordage.orchestrator.core.reasons import Ending, Reason
from chordage.orchestrator.core.records import Phase, Run
from chordage.orchestrator.core.status import RUN, RunStatus, sources
from chordage.orchestrator.store.hot import Hot
from chordage.orchestrator.store.predicates import STILL_RUNNING, has, still
from chordage.orchestrator.store.schema import runs
from chordage.orchestrator.store.tx import Tx


def _stands_at(step: ColumnElement[int]) -> ColumnElement[bool]:
    """The run may record this inference: its step is open, or the round before it is the open one."""
    return or_(
        and_(runs.c.step == step, has(runs.c.phase, Phase.INFERENCE)),
        and_(runs.c.step == step - 1, has(runs.c.phase, Phase.TOOL_ROUND, Phase.REPLAY, Phase.HELD)),
    )


_MOVE = update(runs).where(
    runs.c.id == bindparam("run"),
    runs.c.epoch == bindparam("of_epoch"),
    STILL_RUNNING,
    _stands_at(bindparam("at_step", type_=runs.c.step.type)),
    or_(runs.c.claim_token.is_(None), runs.c.claim_token == bindparam("token")),
)
_SPENT = {name: runs.c[name] + bindparam(f"add_{name}") for name in TOKENS}
_CLEAN = {"resends": 0, "expiries": 0, "stalled": 0, "claim_token": None, "claim_worker": None}
_GO_ON = Hot(
    _MOVE.values(
        replay_from=None,  # a run stands at a crossing only when no call of it is out
        step=bindparam("to_step"),
        phase=bindparam("to_phase"),
        rounds=runs.c.rounds + bindparam("add_rounds"),
        lease_until=bindparam("until"),
        **_SPENT,
        **_CLEAN,
    )
)
_ENDED = {
    "status": RunStatus.DONE.value,
    "reason": bindparam("why"),
    "code": bindparam("why_code"),
    "detail": bindparam("why_detail"),
    "ended_at": bindparam("now"),
    "lease_until": None,
    **_SPENT,
    **_CLEAN,
}
_FINISH = Hot(_MOVE.values(_ENDED))
_NOBODY_WRITES = has(runs.c.steers, 0)  # what is guarded so does not happen over the head of a message that steers
_FINISH_UNSTEERED = Hot(_MOVE.where(_NOBODY_WRITES).values(_ENDED))


_KEPT: dict[str, Any] = {f"kept_{name}": bindparam(f"kept_{name}") for name in ("reason", "code", "detail")}
_RESTING = {
    "status": RunStatus.WAITING.value,
    "reason": Reason.SUSPENDED.value,
    "step": bindparam("to_step"),
    "phase": Phase.REPLAY.value,
    "rounds": runs.c.rounds + bindparam("add_rounds"),
    "lease_until": None,
    "replay_from": None,
    "rested_since": bindparam("now"),
    **_KEPT,
    **_SPENT,
    **_CLEAN,
}
_REST = Hot(_MOVE.values(_RESTING))
_REST_UNSTEERED = Hot(_MOVE.where(_NOBODY_WRITES).values(_RESTING))


_HOLD = Hot(
    _MOVE.values(
        status=RunStatus.WAITING.value,
        reason=Reason.HELD.value,
        step=bindparam("to_step"),
        phase=Phase.HELD.value,
        lease_until=None,
        replay_from=None,
        rested_since=bindparam("now"),
        **_KEPT,
        **_SPENT,
        **_CLEAN,
    )
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Position:
    """By what right somebody writes about a run: the run as it was when the work began."""

    run: Run
    step: int
    token: str | None

    def binds(self) -> dict[str, Any]:
        return {"run": self.run.id, "of_epoch": self.run.epoch, "at_step": self.step, "token": self.token}


def _spent(usage: Usage) -> dict[str, int]:
    return {f"add_{name}": getattr(usage, name) for name in TOKENS}


def go_on(tx: Tx, at: Position, *, to: tuple[int, Phase], rounds: int, usage: Usage, lease_until: datetime) -> bool:
    """The open step is done and the next one is open."""
    step, phase = to
    binds = {"to_step": step, "to_phase": phase.value, "add_rounds": rounds, "until": lease_until}
    return _GO_ON.changed(tx, {**at.binds(), **binds, **_spent(usage)}) == 1


def finish(tx: Tx, at: Position, ending: Ending, *, usage: Usage, now: datetime, unless_steered: bool = False) -> bool:
    """The run ends where it stands. `unless_steered`: not while a message waits to be taken in."""
    binds = {"why": ending.reason.value, "why_code": ending.code, "why_detail": ending.detail, "now": now}
    finished = _FINISH_UNSTEERED if unless_steered else _FINISH
    return finished.changed(tx, {**at.binds(), **binds, **_spent(usage)}) == 1


def rest(
    tx: Tx,
    at: Position,
    *,
    to: int,
    kept: Ending | None,
    rounds: int,
    usage: Usage,
    now: datetime,
    unless_steered: bool = False,
) -> bool:
    """The run waits for decisions: no lease, no budget, and what it will end with is kept."""
    keeps = {
        "kept_reason": kept.reason.value if kept else None,
        "kept_code": kept.code if kept else None,
        "kept_detail": kept.detail if kept else None,
    }
    rested = _REST_UNSTEERED if unless_steered else _REST
    binds = {"to_step": to, "now": now, "add_rounds": rounds}
    return rested.changed(tx, {**at.binds(), **binds, **keeps, **_spent(usage)}) == 1


def hold(tx: Tx, at: Position, *, to: int, kept: Ending | None, usage: Usage, now: datetime) -> bool:
    """The run lies with its consumer: no lease, no budget. `kept`: with what it is to end once it goes on."""
    keeps = {
        "kept_reason": kept.reason.value if kept else None,
        "kept_code": kept.code if kept else None,
        "kept_detail": kept.detail if kept else None,
    }
    return _HOLD.changed(tx, {**at.binds(), "to_step": to, "now": now, **keeps, **_spent(usage)}) == 1


def keep(tx: Tx, run_id: str, ending: Ending) -> None:
    """With what the run ends once its round is settled."""
    kept = {"kept_reason": ending.reason.value, "kept_code": ending.code, "kept_detail": ending.detail}
    tx.execute(update(runs).where(runs.c.id == run_id, STILL_RUNNING).values(kept))


def wake_run(tx: Tx, run: Run, *, rested_ms: int, lease_until: datetime) -> bool:
    """A decision is there: the run goes on where it rested."""
    woken = update(runs).where(runs.c.id == run.id, still(runs.c.status, RunStatus.WAITING))
    values = {
        "status": RunStatus.RUNNING.value, "reason": None, "lease_until": lease_until, "resends": 0,
        "rested_ms": rested_ms, "rested_since": None,
    }  # fmt: skip
    return tx.execute(woken.values(values)).rowcount == 1


def note_suspension(tx: Tx, run_id: str) -> None:
    """From now on it is looked at more closely. Also the lock that whoever suspends a call takes first."""
    tx.execute(update(runs).where(runs.c.id == run_id).values(suspended=1))


def open_replay(tx: Tx, run: Run, *, to: int, replay_from: int, lease_until: datetime) -> bool:
    """A step in which calls are carried out again; with `to` the step it is at, they join the round that is out."""
    opened = (
        update(runs)
        .where(runs.c.id == run.id, runs.c.epoch == run.epoch, runs.c.step == run.step, STILL_RUNNING)
        .values(
            step=to, phase=Phase.REPLAY.value if to != run.step else runs.c.phase, replay_from=replay_from,
            lease_until=lease_until, **_CLEAN,
        )
    )  # fmt: skip
    return tx.execute(opened).rowcount == 1


def end_run(tx: Tx, run: Run, ending: Ending, now: datetime) -> bool:
    """The run ends from outside, wherever it stands; the new epoch turns everybody away who still works on it."""
    ended = (
        update(runs)
        .where(runs.c.id == run.id, runs.c.epoch == run.epoch, still(runs.c.status, *sources(RUN, RunStatus.DONE)))
        .values(
            status=RunStatus.DONE.value, reason=ending.reason.value, code=ending.code, detail=ending.detail,
            ended_at=now, epoch=runs.c.epoch + 1, lease_until=None, claim_token=None, claim_worker=None, stalled=0,
        )
    )  # fmt: skip
    return tx.execute(ended).rowcount == 1


def claim_run(tx: Tx, run: Run, token: str, worker: str, lease_until: datetime) -> bool:
    """A run whose wake-up had to be sent again is worked on by one worker at a time, and truth knows by whom."""
    claimed = (
        update(runs)
        .where(
            runs.c.id == run.id,
            runs.c.epoch == run.epoch,
            runs.c.step == run.step,
            STILL_RUNNING,
            runs.c.claim_token.is_(None),  # a lease that is past is judged by rescue, which then frees the run
        )
        .values(claim_token=token, claim_worker=worker, lease_until=lease_until)
    )
    return tx.execute(claimed).rowcount == 1


def unclaim_run(tx: Tx, run_id: str, token: str, lease_until: datetime) -> None:
    """The holder lets go: it did not die, so this is no expiry, and whoever comes next may claim at once."""
    freed = update(runs).where(runs.c.id == run_id, runs.c.claim_token == token)
    tx.execute(freed.values(claim_token=None, claim_worker=None, lease_until=lease_until))


def stall(tx: Tx, run_id: str) -> Group | None:
    """The run cannot go on until its agent is repaired: it leaves its place in the budget of this group. None: it has
    none. Whatever moves it takes a place again.
    """
    left = update(runs).where(runs.c.id == run_id, STILL_RUNNING, has(runs.c.stalled, 0))
    group = tx.execute(left.values(stalled=1).returning(runs.c.grp)).scalar()
    return Group(group) if group else None


def count_crash(tx: Tx, run: Run, lease_until: datetime) -> None:
    """The work on this step ended in a way nobody foresaw: that counts like the death of a worker."""
    crashed = update(runs).where(runs.c.id == run.id, runs.c.epoch == run.epoch, runs.c.step == run.step, STILL_RUNNING)
    tx.execute(
        crashed.values(expiries=runs.c.expiries + 1, claim_token=None, claim_worker=None, lease_until=lease_until)
    )


def push_lease(tx: Tx, run: Run, *, lease_until: datetime, resends: int, expiries: int) -> None:
    """Rescue has seen to a run (its row is locked): the next look is due when this lease is up."""
    tx.execute(
        update(runs)
        .where(runs.c.id == run.id, runs.c.epoch == run.epoch)
        .values(lease_until=lease_until, resends=resends, expiries=expiries, claim_token=None, claim_worker=None)
    )


def renew_runs(
    tx: Tx, held: Collection[tuple[str, int]], tokens: Collection[str], worker: str, lease_until: datetime
) -> set[str]:
    """The heartbeat of everything a process holds: this is where a short optimistic start becomes a claim on record. A
    row that another transaction holds is not waited for. Those that were renewed.
    """
    ours = or_(runs.c.claim_token.is_(None), runs.c.claim_token.in_(sorted(tokens)))
    renewed: set[str] = set()
    for epoch in {epoch for _, epoch in held}:
        row = runs.alias()
        ids = sorted(run_id for run_id, of in held if of == epoch)
        unlocked = select(row.c.id).where(row.c.id.in_(ids)).with_for_update(skip_locked=True)
        found = (
            update(runs)
            .where(runs.c.id.in_(unlocked), runs.c.epoch == epoch, STILL_RUNNING, ours)
            .values(lease_until=lease_until, claim_worker=worker)
            .returning(runs.c.id)
        )
        renewed.update(tx.execute(found).scalars())
    return renewed
