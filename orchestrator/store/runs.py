"""Runs: one row per continuous active interval on a thread, with the step it stands at.

Guarded changes of runs. The WHERE holds what the caller saw: the epoch, the step, the token.

Guarded changes of runs that lie with their consumer.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement, Update, and_, bindparam, func, or_, select, update

from chordage.orchestrator.core import kinship, limits
from chordage.orchestrator.core.errors import Crossed
from chordage.orchestrator.core.groups import Group
from chordage.orchestrator.core.model import TOKENS, Usage
from chordage.orchestrator.core.reasons import Ending, Reason
from chordage.orchestrator.core.records import Phase, Run
from chordage.orchestrator.core.status import RUN, RunStatus, sources
from chordage.orchestrator.core.stepping import Control
from chordage.orchestrator.store.database import Tx
from chordage.orchestrator.store.predicates import (
    OPEN_RUNS,
    RUNNING_IN_GROUP,
    RUNNING_RUNS,
    STILL_IN_FLIGHT,
    STILL_RUNNING,
    has,
    in_code_points,
    still,
)
from chordage.orchestrator.store.schema import calls, runs
from chordage.orchestrator.store.statements import PreparedStatement, Row, readable_rows

in_flight = (
    select(func.count())
    .where(calls.c.run_id == runs.c.id, calls.c.step >= func.coalesce(runs.c.replay_from, runs.c.step), STILL_IN_FLIGHT)
    .scalar_subquery()
    .label("in_flight")
)
_LOAD = select(*(column for column in runs.c if column.name != "stalled"), in_flight)
_BY_ID = PreparedStatement(_LOAD.where(runs.c.id == bindparam("run_id")))


def from_row(row: Row) -> Run:
    fields = dict(row)
    reason = fields.pop("reason")
    kept = {name: fields.pop(f"kept_{name}") for name in ("reason", "code", "detail")}
    typed: dict[str, Any] = {
        "group": Group(fields.pop("grp")),
        "status": RunStatus(fields.pop("status")),
        "phase": Phase(fields.pop("phase")),
        "control": Control(fields.pop("control")),
        "reason": Reason(reason) if reason else None,
        "kept": Ending(**{**kept, "reason": Reason(kept["reason"])}) if kept["reason"] else None,
        "timeout": limits.in_seconds(fields.pop("timeout_ms")),
        "kin": kinship.taken_from(fields),
        "usage": Usage(**{name: fields.pop(name) for name in TOKENS}),
    }
    return Run(**fields, **typed)


def load(tx: Tx, run_id: str) -> Run | None:
    row = _BY_ID.first(tx, {"run_id": run_id})
    return from_row(row) if row else None


def lock(tx: Tx, run_id: str) -> Run | None:
    """As it is now, and as it stays until we are done."""
    # Two statements: one that waits for the lock would count calls in flight as they were before it waited.
    locked = tx.execute(select(runs.c.id).where(runs.c.id == run_id).with_for_update()).first()
    return load(tx, run_id) if locked else None


def open_on(tx: Tx, thread_id: str) -> Run | None:
    found = _LOAD.where(runs.c.thread_id == thread_id, OPEN_RUNS)
    row = tx.execute(found).first()
    return from_row(dict(row._mapping)) if row else None  # noqa: SLF001 - SQLAlchemy's documented way to names


def lock_open_on(tx: Tx, thread_id: str) -> Run | None:
    """The run that is open there, as it stays until we are done.

    For whoever holds rows of turns already, which come after runs: a run in the hand of another transaction is not
    waited for. That raises Crossed; begun anew, the transaction finds the run before any turn, and waits for it there.
    """
    found = select(runs.c.id).where(runs.c.thread_id == thread_id, OPEN_RUNS)
    locked = tx.execute(found.with_for_update(skip_locked=True)).scalar()
    if locked is not None:
        return load(tx, locked)
    if (other := tx.execute(found).scalar()) is not None:
        raise Crossed(f"run {other} of thread {thread_id!r} is just being written; nothing was stored: try again")
    return None


def count_running(tx: Tx, group: Group) -> int:
    running = select(func.count()).select_from(runs).where(runs.c.grp == group.value, RUNNING_IN_GROUP)
    return int(tx.execute(running).scalar_one())


def lock_open_on_threads(tx: Tx, *thread_ids: str) -> None:
    """The runs that are open there, in the order of everybody who locks several."""
    found = select(runs.c.id).where(runs.c.thread_id.in_(thread_ids), OPEN_RUNS)
    tx.execute(found.order_by(in_code_points(tx, runs.c.id).desc()).with_for_update())


def is_done(tx: Tx, run_id: str) -> bool:
    return tx.execute(select(runs.c.status).where(runs.c.id == run_id)).scalar() == RunStatus.DONE.value


def expired(tx: Tx, now: datetime, limit: int, among: Collection[str] | None = None) -> list[Run]:
    """Running runs nobody has renewed in time. With `among`, those of these that are free, locked for this sweeper."""
    found = _LOAD.where(RUNNING_RUNS, runs.c.lease_until < now).order_by(runs.c.lease_until).limit(limit)
    if among is not None:
        found = found.where(runs.c.id.in_(among)).with_for_update(skip_locked=True, of=runs)
    return readable_rows(tx.execute(found).mappings(), lambda row: from_row(dict(row)))


def maybe_limited(tx: Tx, agents: Collection[str], *, before: datetime) -> list[Run]:
    """Running runs, started before then, that may have a time limit: by their agent, their turn or a run above them."""
    limited = or_(runs.c.agent.in_(agents), runs.c.timeout_ms.is_not(None), runs.c.parent_run.is_not(None))
    found = _LOAD.where(RUNNING_RUNS, runs.c.started_at < before, limited)
    return readable_rows(tx.execute(found).mappings(), lambda row: from_row(dict(row)))


def lost(tx: Tx, held: Collection[tuple[str, int]]) -> set[str]:
    """Which of these runs are no longer running under the epoch we hold them by."""
    ids = [run_id for run_id, _ in held]
    found = select(runs.c.id, runs.c.epoch).where(runs.c.id.in_(ids), STILL_RUNNING)
    running = {(row.id, row.epoch) for row in tx.execute(found)}
    return {run_id for run_id, epoch in held if (run_id, epoch) not in running}


def _is_at(step: ColumnElement[int]) -> ColumnElement[bool]:
    """The run may record this inference: its step is open, or the round before it is the open one."""
    return or_(
        and_(runs.c.step == step, has(runs.c.phase, Phase.INFERENCE)),
        and_(runs.c.step == step - 1, has(runs.c.phase, Phase.TOOL_ROUND, Phase.REPLAY, Phase.HELD)),
    )


_MOVE = update(runs).where(
    runs.c.id == bindparam("run"),
    runs.c.epoch == bindparam("of_epoch"),
    STILL_RUNNING,
    _is_at(bindparam("at_step", type_=runs.c.step.type)),
    or_(runs.c.claim_token.is_(None), runs.c.claim_token == bindparam("token")),
)
_SPENT = {name: runs.c[name] + bindparam(f"add_{name}") for name in TOKENS}
_UNCLAIMED = {"resends": 0, "expiries": 0, "stalled": 0, "claim_token": None, "claim_worker": None}
_OPEN_STEP = PreparedStatement(
    _MOVE.values(
        replay_from=None,  # a run stands at a crossing only when no call of it is out
        step=bindparam("to_step"),
        phase=bindparam("to_phase"),
        rounds=runs.c.rounds + bindparam("add_rounds"),
        lease_until=bindparam("until"),
        **_SPENT,
        **_UNCLAIMED,
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
    **_UNCLAIMED,
}
_FINISH = PreparedStatement(_MOVE.values(_ENDED))
_UNSTEERED = has(runs.c.steers, 0)  # what is guarded so does not happen over the head of a message that steers
_FINISH_UNSTEERED = PreparedStatement(_MOVE.where(_UNSTEERED).values(_ENDED))


_KEPT: dict[str, Any] = {f"kept_{name}": bindparam(f"kept_{name}") for name in ("reason", "code", "detail")}
_SUSPENDED = {
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
    **_UNCLAIMED,
}
_SUSPEND = PreparedStatement(_MOVE.values(_SUSPENDED))
_SUSPEND_UNSTEERED = PreparedStatement(_MOVE.where(_UNSTEERED).values(_SUSPENDED))


_HOLD = PreparedStatement(
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
        **_UNCLAIMED,
    )
)


@dataclass(frozen=True, kw_only=True, slots=True)
class RunClaim:
    """By what right somebody writes about a run: the run as it was when the work began."""

    run: Run
    step: int
    token: str | None

    def binds(self) -> dict[str, Any]:
        return {"run": self.run.id, "of_epoch": self.run.epoch, "at_step": self.step, "token": self.token}


def _spent(usage: Usage) -> dict[str, int]:
    return {f"add_{name}": getattr(usage, name) for name in TOKENS}


def open_step(tx: Tx, at: RunClaim, *, to: tuple[int, Phase], rounds: int, usage: Usage, lease_until: datetime) -> bool:
    """The open step is done and the next one is open."""
    step, phase = to
    binds = {"to_step": step, "to_phase": phase.value, "add_rounds": rounds, "until": lease_until}
    return _OPEN_STEP.changed(tx, {**at.binds(), **binds, **_spent(usage)}) == 1


def finish(tx: Tx, at: RunClaim, ending: Ending, *, usage: Usage, now: datetime, unless_steered: bool = False) -> bool:
    """The run ends where it stands. `unless_steered`: not while a message waits to be taken in."""
    binds = {"why": ending.reason.value, "why_code": ending.code, "why_detail": ending.detail, "now": now}
    finished = _FINISH_UNSTEERED if unless_steered else _FINISH
    return finished.changed(tx, {**at.binds(), **binds, **_spent(usage)}) == 1


def suspend(
    tx: Tx,
    at: RunClaim,
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
    rested = _SUSPEND_UNSTEERED if unless_steered else _SUSPEND
    binds = {"to_step": to, "now": now, "add_rounds": rounds}
    return rested.changed(tx, {**at.binds(), **binds, **keeps, **_spent(usage)}) == 1


def hold(tx: Tx, at: RunClaim, *, to: int, kept: Ending | None, usage: Usage, now: datetime) -> bool:
    """The run lies with its consumer: no lease, no budget. `kept`: with what it is to end once it goes on."""
    keeps = {
        "kept_reason": kept.reason.value if kept else None,
        "kept_code": kept.code if kept else None,
        "kept_detail": kept.detail if kept else None,
    }
    return _HOLD.changed(tx, {**at.binds(), "to_step": to, "now": now, **keeps, **_spent(usage)}) == 1


def keep_ending(tx: Tx, run_id: str, ending: Ending) -> None:
    """With what the run ends once its round is settled."""
    kept = {"kept_reason": ending.reason.value, "kept_code": ending.code, "kept_detail": ending.detail}
    tx.execute(update(runs).where(runs.c.id == run_id, STILL_RUNNING).values(kept))


def resume(tx: Tx, run: Run, *, rested_ms: int, lease_until: datetime) -> bool:
    """A decision is there: the run goes on where it rested."""
    woken = update(runs).where(runs.c.id == run.id, still(runs.c.status, RunStatus.WAITING))
    values = {
        "status": RunStatus.RUNNING.value, "reason": None, "lease_until": lease_until, "resends": 0,
        "rested_ms": rested_ms, "rested_since": None,
    }  # fmt: skip
    return tx.execute(woken.values(values)).rowcount == 1


def mark_suspended(tx: Tx, run_id: str) -> None:
    """From now on it is looked at more closely. Also the lock that whoever suspends a call takes first."""
    tx.execute(update(runs).where(runs.c.id == run_id).values(suspended=1))


def open_replay(tx: Tx, run: Run, *, to: int, replay_from: int, lease_until: datetime) -> bool:
    """A step in which calls are carried out again; with `to` the step it is at, they join the round that is out."""
    opened = (
        update(runs)
        .where(runs.c.id == run.id, runs.c.epoch == run.epoch, runs.c.step == run.step, STILL_RUNNING)
        .values(
            step=to, phase=Phase.REPLAY.value if to != run.step else runs.c.phase, replay_from=replay_from,
            lease_until=lease_until, **_UNCLAIMED,
        )
    )  # fmt: skip
    return tx.execute(opened).rowcount == 1


def end(tx: Tx, run: Run, ending: Ending, now: datetime) -> bool:
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


def claim(tx: Tx, run: Run, token: str, worker: str, lease_until: datetime) -> bool:
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


def unclaim(tx: Tx, run_id: str, token: str, lease_until: datetime) -> None:
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


def record_crash(tx: Tx, run: Run, lease_until: datetime) -> None:
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


def renew(
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


_UNCLAIMED = {"claim_token": None, "claim_worker": None, "resends": 0, "expiries": 0, "stalled": 0}


def hold_again(tx: Tx, run: Run, *, to: tuple[int, Phase], now: datetime) -> bool:
    """Without a new reply: before the first request, behind a round that was only looked at, or after a failure."""
    step, phase = to
    held = (
        update(runs)
        .where(runs.c.id == run.id, runs.c.epoch == run.epoch, runs.c.step == run.step, STILL_RUNNING)
        .values(
            status=RunStatus.WAITING.value, reason=Reason.HELD.value, step=step, phase=phase.value, lease_until=None,
            rested_since=now, **_UNCLAIMED,
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


def resume_held(
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
        rested_ms=rested_ms, rested_since=None, lease_until=lease_until, replay_from=replay_from, **_UNCLAIMED,
    )  # fmt: skip
    return tx.execute(gone).rowcount == 1


def finish_held(tx: Tx, run: Run, ending: Ending, now: datetime) -> bool:
    """The reply that is held was the last one."""
    ended = _held(run).values(
        status=RunStatus.DONE.value, reason=ending.reason.value, code=ending.code, detail=ending.detail, ended_at=now,
        lease_until=None, **_UNCLAIMED,
    )  # fmt: skip
    return tx.execute(ended).rowcount == 1


def open_next_inference(tx: Tx, run: Run, *, lease_until: datetime) -> bool:
    """Something was put behind what the run stands at; the model is asked at the next step."""
    moved = (
        update(runs)
        .where(runs.c.id == run.id, runs.c.epoch == run.epoch, runs.c.step == run.step, STILL_RUNNING)
        .values(
            step=run.step + 1, phase=Phase.INFERENCE.value, replay_from=None, lease_until=lease_until, **_UNCLAIMED,
        )
    )  # fmt: skip
    return tx.execute(moved).rowcount == 1
