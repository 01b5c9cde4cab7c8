"""Runs: one row for each continuous active interval on a thread, with the step it is at.

The WHERE of each guarded update holds what the caller has read: the epoch, the step, the token. A late or doubled
writer matches no row and changes nothing: its whole transaction ends with LostRace, or the function returns False. So
work may be done twice, but one outcome is written.

Locks are taken in this order everywhere: pulse, group, thread, run, call, turn.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple

from sqlalchemy import ColumnElement, Update, and_, bindparam, exists, func, literal_column, or_, select, update

from chordage.orchestrator.core import limits
from chordage.orchestrator.core.errors import Crossed
from chordage.orchestrator.core.groups import Group
from chordage.orchestrator.core.model import COUNTS, Usage
from chordage.orchestrator.core.reasons import Ending, Reason
from chordage.orchestrator.core.records import Phase, Run, take_kin
from chordage.orchestrator.core.status import RUN, RunStatus, sources
from chordage.orchestrator.core.stepping import Control
from chordage.orchestrator.store.contents import owned
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
from chordage.orchestrator.store.schema import calls, runs, threads
from chordage.orchestrator.store.statements import GuardedUpdate, PreparedStatement, decryptable, readable_rows

_OF_OPEN_STEP = and_(calls.c.run_id == runs.c.id, calls.c.step >= func.coalesce(runs.c.replay_from, runs.c.step))
_IN_FLIGHT = select(func.count()).where(_OF_OPEN_STEP, STILL_IN_FLIGHT).scalar_subquery().label("in_flight")
_ASIDE = {"stalled", "place", "moved_by", "tenant", *(f"children_{name}" for name in COUNTS)}
_COLUMNS = [column for column in runs.c if column.name not in _ASIDE]
_LOAD = select(*_COLUMNS, _IN_FLIGHT)
_BY_ID = PreparedStatement(_LOAD.where(runs.c.id == bindparam("run_id")))


def _from_row(row: Mapping[Any, Any]) -> Run:
    fields = dict(row)
    reason = fields.pop("reason")
    kept = {name: fields.pop(f"kept_{name}") for name in ("reason", "code", "detail")}
    used = {name: fields.pop(name) for name in COUNTS}
    if used["unpriced"] and not used["cost_nanos"]:
        used["cost_nanos"] = None  # as in `usage_from`
    typed: dict[str, Any] = {
        "group": Group(fields.pop("grp")),
        "status": RunStatus(fields.pop("status")),
        "phase": Phase(fields.pop("phase")),
        "control": Control(fields.pop("control")),
        "reason": Reason(reason) if reason else None,
        "kept": Ending(**{**kept, "reason": Reason(kept["reason"])}) if kept["reason"] else None,
        "timeout": limits.in_seconds(fields.pop("timeout_ms")),
        "kin": take_kin(fields),
        "usage": Usage(**used),
    }
    return Run(**fields, **typed)


# reads and locks


def load(tx: Tx, run_id: str) -> Run | None:
    row = _BY_ID.first(tx, {"run_id": run_id})
    return _from_row(row) if row else None


def lock(tx: Tx, run_id: str) -> Run | None:
    """As it is now, and as it stays until the commit."""
    # Two statements: one that waited for the lock would count the calls in flight as they were before the wait.
    locked = tx.execute(select(runs.c.id).where(runs.c.id == run_id).with_for_update()).first()
    return load(tx, run_id) if locked else None


def open_on(tx: Tx, thread_id: str) -> Run | None:
    row = tx.execute(_LOAD.where(runs.c.thread_id == thread_id, OPEN_RUNS)).mappings().first()
    return _from_row(row) if row else None


def lock_open_on(tx: Tx, thread_id: str) -> Run | None:
    """The open run of the thread, as it stays until the commit.

    For callers that already hold rows of turns, which come after runs in the order of locks: they must not wait for a
    run that another transaction holds. That raises Crossed; the repeated transaction meets the run before any turn,
    and waits for it there.
    """
    open_run = select(runs.c.id).where(runs.c.thread_id == thread_id, OPEN_RUNS)
    locked = tx.execute(open_run.with_for_update(skip_locked=True)).scalar()
    if locked is not None:
        return load(tx, locked)
    if (other := tx.execute(open_run).scalar()) is not None:
        raise Crossed(f"run {other} of thread {thread_id!r} is just being written; nothing was stored: try again")
    return None


def lock_open_on_threads(tx: Tx, *thread_ids: str) -> None:
    """The open runs of these threads, in the order in which everything locks several runs."""
    open_runs = select(runs.c.id).where(runs.c.thread_id.in_(thread_ids), OPEN_RUNS)
    tx.execute(open_runs.order_by(in_code_points(tx, runs.c.id).desc()).with_for_update()).all()


def is_done(tx: Tx, run_id: str) -> bool:
    return tx.execute(select(runs.c.status).where(runs.c.id == run_id)).scalar() == RunStatus.DONE.value


def expired(tx: Tx, now: datetime, limit: int, among: Collection[str] | None = None) -> list[Run]:
    """Running runs whose lease has run out. With `among`, those of them that are not locked; they are locked here."""
    past = _LOAD.where(RUNNING_RUNS, runs.c.lease_until < now).order_by(runs.c.lease_until).limit(limit)
    if among is not None:
        past = past.where(runs.c.id.in_(among)).with_for_update(skip_locked=True, of=runs)
    return readable_rows(decryptable(tx.execute(past).mappings()), _from_row)


def left(tx: Tx, gone: Collection[str], limit: int, among: Collection[str] | None = None) -> list[Run]:
    """Running runs without a call in flight that one of these processes has claimed, or was the last to do something
    for. Where a wake-up was sent again since, only a claim counts. `among`: as in `expired`.
    """
    settled = exists().where(_OF_OPEN_STEP, calls.c.worker.in_(gone))
    last = and_(runs.c.resends == literal_column("0"), or_(runs.c.moved_by.in_(gone), settled))
    idle = ~exists().where(_OF_OPEN_STEP, STILL_IN_FLIGHT)
    theirs = _LOAD.where(RUNNING_RUNS, or_(runs.c.claim_worker.in_(gone), last), idle).limit(limit)
    if among is not None:
        theirs = theirs.where(runs.c.id.in_(among)).with_for_update(skip_locked=True, of=runs)
    return readable_rows(decryptable(tx.execute(theirs).mappings()), _from_row)


def untaken(
    tx: Tx,
    queues: Collection[Group],
    limit: int,
    among: Collection[str] | None = None,
    *,
    settled_before: datetime,
    leased_before: datetime,
) -> list[Run]:
    """Running runs of these groups without a call in flight, whose wake-up was not taken since then, as far as the
    rows say. `among`: as in `expired`.
    """
    idle = ~exists().where(
        _OF_OPEN_STEP, or_(STILL_IN_FLIGHT, calls.c.ended_at.is_(None), calls.c.ended_at >= settled_before)
    )
    waiting = _LOAD.where(
        RUNNING_IN_GROUP, runs.c.grp.in_(sorted(queues)), runs.c.claim_worker.is_(None),
        runs.c.resends == literal_column("0"), runs.c.lease_until < leased_before, idle,
    ).limit(limit)  # fmt: skip
    if among is not None:
        waiting = waiting.where(runs.c.id.in_(among)).with_for_update(skip_locked=True, of=runs)
    return readable_rows(decryptable(tx.execute(waiting).mappings()), _from_row)


def maybe_limited(tx: Tx, agents: Collection[str], digests: Mapping[str, str], *, before: datetime) -> list[Run]:
    """Running runs, started before then, that may have a time limit: by their agent, their turn or a run above them.
    `digests`: of the agents of today; a run with an older version may have any limit.
    """
    is_pinned = runs.c.agent_digest.not_in(digests.values())  # not known: false
    limited = or_(runs.c.agent.in_(agents), is_pinned, runs.c.timeout_ms.is_not(None), runs.c.parent_run.is_not(None))
    started = _LOAD.where(RUNNING_RUNS, runs.c.started_at < before, limited)
    return readable_rows(decryptable(tx.execute(started).mappings()), _from_row)


def lost(tx: Tx, held: Collection[tuple[str, int]]) -> set[str]:
    """Those of these runs that are no longer running in the epoch in which this process holds them."""
    rows = tx.execute(
        select(runs.c.id, runs.c.epoch).where(runs.c.id.in_([run_id for run_id, _ in held]), STILL_RUNNING)
    )
    running = {(row.id, row.epoch) for row in rows}
    return {run_id for run_id, epoch in held if (run_id, epoch) not in running}


# what a worker writes that has carried out a step; each raises LostRace where another worker was first


@dataclass(frozen=True, kw_only=True, slots=True)
class RunClaim:
    """What a worker has seen of the run it works on, and by which its next write is guarded. `token`: of the claim in
    SQL; None while nothing has recorded one, as on the plain path. `digest`: of the version of the agent with which it
    asks the model; empty where that is not known.
    """

    run: Run
    step: int
    token: str | None
    digest: str = ""

    def binds(self) -> dict[str, Any]:
        run = self.run
        return {
            "run": run.id, "of_epoch": run.epoch, "at_step": self.step, "token": self.token,
            "thread_id": run.thread_id, "why_thread_id": run.thread_id,
        }  # fmt: skip


def _is_at(step: ColumnElement[int]) -> ColumnElement[bool]:
    """The run may record this inference: its step is open, or the round before it is."""
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
_UNSTEERED = has(runs.c.steers, 0)  # no message waits to be taken in
_UNCLAIMED = {"resends": 0, "expiries": 0, "stalled": 0, "claim_token": None, "claim_worker": None}
# Of a run that left its place and is at work again: another has the place by now. It counts all the same.
_WITHOUT_PLACE: dict[str, Any] = {"place": None}
_USAGE = {name: runs.c[name] + bindparam(f"add_{name}", type_=runs.c[name].type) for name in COUNTS}
_OPEN = _MOVE.values(
    replay_from=None,  # a run moves on only when no call of it is in flight
    step=bindparam("to_step"),
    phase=bindparam("to_phase"),
    rounds=runs.c.rounds + bindparam("add_rounds"),
    lease_until=bindparam("until"),
    moved_by=bindparam("by"),
    **_USAGE,
    **_UNCLAIMED,
)
_ASKED_TO_COMPACT = select(threads.c.compact_asked).where(threads.c.id == runs.c.thread_id).scalar_subquery()
_OPEN_STEP = GuardedUpdate(_OPEN)
_OPEN_ROUND = GuardedUpdate(_OPEN, *_COLUMNS, _ASKED_TO_COMPACT.label("asked"))
_ENDED: dict[str, Any] = {
    "status": RunStatus.DONE.value,
    "reason": bindparam("why"),
    "code": bindparam("why_code"),
    "detail": bindparam("why_detail"),
    "ended_at": bindparam("now"),
    "lease_until": None,
    **_USAGE,
    **_UNCLAIMED,
}
_FINISH = GuardedUpdate(_MOVE.values(_ENDED))
_FINISH_UNSTEERED = GuardedUpdate(_MOVE.where(_UNSTEERED).values(_ENDED))
_WAITING: dict[str, Any] = {
    "status": RunStatus.WAITING.value,
    "step": bindparam("to_step"),
    "lease_until": None,
    "replay_from": None,
    "rested_since": bindparam("now"),
    **{f"kept_{name}": bindparam(f"kept_{name}") for name in ("reason", "code", "detail")},
    **_USAGE,
    **_UNCLAIMED,
}
_SUSPENDED = {
    **_WAITING,
    "reason": Reason.SUSPENDED.value,
    "phase": Phase.REPLAY.value,
    "rounds": runs.c.rounds + bindparam("add_rounds"),
}
_SUSPEND = GuardedUpdate(_MOVE.values(_SUSPENDED))
_SUSPEND_UNSTEERED = GuardedUpdate(_MOVE.where(_UNSTEERED).values(_SUSPENDED))
_HOLD = GuardedUpdate(_MOVE.values({**_WAITING, "reason": Reason.HELD.value, "phase": Phase.HELD.value}))


def _used(usage: Usage) -> dict[str, int]:
    return {f"add_{name}": getattr(usage, name) or 0 for name in COUNTS}


def _kept(ending: Ending | None) -> dict[str, Any]:
    return {
        "kept_reason": ending.reason.value if ending else None,
        "kept_code": ending.code if ending else None,
        "kept_detail": ending.detail if ending else None,
    }


def open_step(
    tx: Tx, at: RunClaim, *, to: tuple[int, Phase], rounds: int, usage: Usage, lease_until: datetime, by: str
) -> None:
    """The open step is done, and this one is open. `by`: the process that opens it."""
    _OPEN_STEP.send(tx, _open_binds(at, to, rounds, usage, lease_until, by))


class OpenedRound(NamedTuple):
    """`asked`: how often a summary of the thread was requested."""

    run: Run
    asked: int


def open_round(
    tx: Tx, at: RunClaim, *, to: int, usage: Usage, lease_until: datetime, by: str
) -> Callable[[], OpenedRound]:
    """The same for a round. Returns a function that reads, after the commit, the run as it is before its calls."""
    sent = _OPEN_ROUND.send(tx, _open_binds(at, (to, Phase.TOOL_ROUND), 1, usage, lease_until, by))

    def opened() -> OpenedRound:
        (row,) = sent.rows()
        return OpenedRound(asked=row.pop("asked") or 0, run=_from_row(row))

    return opened


def _open_binds(
    at: RunClaim, to: tuple[int, Phase], rounds: int, usage: Usage, lease_until: datetime, by: str
) -> dict[str, Any]:
    step, phase = to
    binds = {"to_step": step, "to_phase": phase.value, "add_rounds": rounds, "until": lease_until, "by": by}
    return {**at.binds(), **binds, **_used(usage)}


def finish(tx: Tx, at: RunClaim, ending: Ending, *, usage: Usage, now: datetime, unless_steered: bool = False) -> None:
    """The run ends at its open step. `unless_steered`: not while a message waits to be taken in."""
    binds = {"why": ending.reason.value, "why_code": ending.code, "why_detail": ending.detail, "now": now}
    statement = _FINISH_UNSTEERED if unless_steered else _FINISH
    statement.send(tx, {**at.binds(), **binds, **_used(usage)})


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
) -> None:
    """The run waits for decisions, without a lease and outside the budget. `kept`: how it ends after them."""
    statement = _SUSPEND_UNSTEERED if unless_steered else _SUSPEND
    binds = {"to_step": to, "now": now, "add_rounds": rounds}
    statement.send(tx, {**at.binds(), **binds, **_kept(kept), **_used(usage)})


def hold(tx: Tx, at: RunClaim, *, to: int, kept: Ending | None, usage: Usage, now: datetime) -> None:
    """The run waits for its consumer, without a lease and outside the budget. `kept`: how it ends later."""
    _HOLD.send(tx, {**at.binds(), "to_step": to, "now": now, **_kept(kept), **_used(usage)})


# what is written under the lock of the run


def keep_ending(tx: Tx, run_id: str, thread_id: str, ending: Ending) -> None:
    """How the run ends once its round is settled."""
    running = update(runs).where(runs.c.id == run_id, STILL_RUNNING)
    tx.execute(running.values(owned(tx, runs, _kept(ending), owner=thread_id)))


def resume(tx: Tx, run: Run, *, rested_ms: int, lease_until: datetime) -> bool:
    """Waiting -> Running, at the step at which it was suspended: a decision has come."""
    waiting = update(runs).where(runs.c.id == run.id, still(runs.c.status, RunStatus.WAITING))
    values = {
        "status": RunStatus.RUNNING.value, "reason": None, "lease_until": lease_until, "resends": 0,
        "rested_ms": rested_ms, "rested_since": None, **_WITHOUT_PLACE,
    }  # fmt: skip
    return tx.execute(waiting.values(values)).rowcount == 1


def mark_suspended(tx: Tx, run_id: str) -> None:
    """A call of the run is being suspended: its rounds need more checks from now on. Locks the run before the call."""
    tx.execute(update(runs).where(runs.c.id == run_id).values(suspended=1))


def _running_as(run: Run) -> Update:
    return update(runs).where(runs.c.id == run.id, runs.c.epoch == run.epoch, runs.c.step == run.step, STILL_RUNNING)


def open_replay(tx: Tx, run: Run, *, to: int, replay_from: int, lease_until: datetime) -> bool:
    """A step in which calls are carried out again. If `to` is the step it is at, they join the round in flight."""
    phase = Phase.REPLAY.value if to != run.step else runs.c.phase
    opened = _running_as(run).values(
        step=to, phase=phase, replay_from=replay_from, lease_until=lease_until, **_UNCLAIMED
    )
    return tx.execute(opened).rowcount == 1


def end(tx: Tx, run: Run, ending: Ending, now: datetime) -> bool:
    """The run ends from outside, at any step. The new epoch shuts out workers that still work on it."""
    ended = (
        update(runs)
        .where(runs.c.id == run.id, runs.c.epoch == run.epoch, still(runs.c.status, *sources(RUN, RunStatus.DONE)))
        .values(
            status=RunStatus.DONE.value, reason=ending.reason.value, code=ending.code, ended_at=now,
            epoch=runs.c.epoch + 1, lease_until=None, claim_token=None, claim_worker=None, stalled=0,
            **owned(tx, runs, {"detail": ending.detail}, owner=run.thread_id),
        )
    )  # fmt: skip
    return tx.execute(ended).rowcount == 1


def stall(tx: Tx, run_id: str) -> Group | None:
    """The run waits until its agent is repaired, and gives up its place in the budget of this group. None: it has no
    place. Whatever moves the run makes it count again.
    """
    running = update(runs).where(runs.c.id == run_id, STILL_RUNNING, has(runs.c.stalled, 0))
    group = tx.execute(running.values(stalled=1, **_WITHOUT_PLACE).returning(runs.c.grp)).scalar()
    return Group(group) if group else None


# a run that waits for its consumer


def hold_again(tx: Tx, run: Run, *, to: tuple[int, Phase], now: datetime) -> bool:
    """Hold without a new reply: before the first request, after a round that was only inspected, or after a failure."""
    step, phase = to
    held = _running_as(run).values(
        status=RunStatus.WAITING.value, reason=Reason.HELD.value, step=step, phase=phase.value, lease_until=None,
        rested_since=now, **_UNCLAIMED,
    )  # fmt: skip
    return tx.execute(held).rowcount == 1


def _held_as(run: Run) -> Update:
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
    """Resume a held run at the step its consumer chose."""
    step, phase = to
    resumed = _held_as(run).values(
        status=RunStatus.RUNNING.value, reason=None, step=step, phase=phase.value, rounds=run.rounds + rounds,
        rested_ms=rested_ms, rested_since=None, lease_until=lease_until, replay_from=replay_from, **_UNCLAIMED,
        **_WITHOUT_PLACE,
    )  # fmt: skip
    return tx.execute(resumed).rowcount == 1


def finish_held(tx: Tx, run: Run, ending: Ending, now: datetime) -> bool:
    """The held reply was the last one."""
    ended = _held_as(run).values(
        status=RunStatus.DONE.value, reason=ending.reason.value, code=ending.code, ended_at=now, lease_until=None,
        **owned(tx, runs, {"detail": ending.detail}, owner=run.thread_id), **_UNCLAIMED,
    )  # fmt: skip
    return tx.execute(ended).rowcount == 1


def open_next_inference(tx: Tx, run: Run, *, lease_until: datetime) -> bool:
    """Something was added behind the run's step: ask the model again at the next one."""
    moved = _running_as(run).values(
        step=run.step + 1, phase=Phase.INFERENCE.value, replay_from=None, lease_until=lease_until, **_UNCLAIMED
    )
    return tx.execute(moved).rowcount == 1


# claims and leases


def claim(tx: Tx, run: Run, token: str, worker: str, lease_until: datetime) -> bool:
    """One worker at a time works on a run whose wake-up was sent again, and the row names it."""
    # A lease that has run out is judged by rescue, which then frees the run.
    claimed = _running_as(run).where(runs.c.claim_token.is_(None))
    values = {"claim_token": token, "claim_worker": worker, "lease_until": lease_until}
    return tx.execute(claimed.values(values)).rowcount == 1


def unclaim(tx: Tx, run_id: str, token: str, lease_until: datetime) -> None:
    """The holder gives the run up. It did not die, so no expiry is counted, and another may claim it at once."""
    claimed = update(runs).where(runs.c.id == run_id, runs.c.claim_token == token)
    tx.execute(claimed.values(claim_token=None, claim_worker=None, lease_until=lease_until))


def record_crash(tx: Tx, run: Run, lease_until: datetime) -> None:
    """The work on this step ended with an unexpected error: it counts like the death of a worker."""
    values = {"claim_token": None, "claim_worker": None, "lease_until": lease_until}
    tx.execute(_running_as(run).values(expiries=runs.c.expiries + 1, **values))


def push_lease(tx: Tx, run: Run, *, lease_until: datetime, resends: int, expiries: int) -> None:
    """Rescue has handled the run, whose row it has locked; it looks again when this lease runs out."""
    handled = update(runs).where(runs.c.id == run.id, runs.c.epoch == run.epoch)
    values = {"lease_until": lease_until, "resends": resends, "expiries": expiries}
    tx.execute(handled.values(claim_token=None, claim_worker=None, **values))


def renew(
    tx: Tx, held: Collection[tuple[str, int]], tokens: Collection[str], worker: str, lease_until: datetime
) -> set[str]:
    """The heartbeat of everything that a process holds; it puts the claims of optimistic starts on record. Rows that
    another transaction holds are left out. Returns the runs that were renewed.
    """
    ours = or_(runs.c.claim_token.is_(None), runs.c.claim_token.in_(sorted(tokens)))
    renewed: set[str] = set()
    for epoch in {epoch for _, epoch in held}:
        row = runs.alias()
        ids = sorted(run_id for run_id, of in held if of == epoch)
        unlocked = select(row.c.id).where(row.c.id.in_(ids)).with_for_update(skip_locked=True)
        renewal = (
            update(runs)
            .where(runs.c.id.in_(unlocked), runs.c.epoch == epoch, STILL_RUNNING, ours)
            .values(lease_until=lease_until, claim_worker=worker)
            .returning(runs.c.id)
        )
        renewed.update(tx.execute(renewal).scalars())
    return renewed
