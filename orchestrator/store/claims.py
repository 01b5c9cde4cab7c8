"""Every guarded change of state. True (or a row): you moved it. False (or None): somebody else did, walk away.

The WHERE of each UPDATE comes from the tables in core/status.py and from what the caller saw: the step, the epoch, the
token. A late or doubled writer matches no row, and so changes nothing. No promise is made that work is done once; the
promise is that one outcome is written.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement, and_, bindparam, case, exists, func, or_, select, update
from sqlalchemy.dialects import postgresql, sqlite

from chordage.orchestrator.core.groups import Group
from chordage.orchestrator.core.model import Usage
from chordage.orchestrator.core.reasons import Ending
from chordage.orchestrator.core.records import Call, Phase, Run, Turn
from chordage.orchestrator.core.status import (
    CALL,
    OPEN_CALL,
    RUN,
    TURN,
    CallStatus,
    Disposition,
    RunStatus,
    TurnStatus,
    sources,
)

from chordage.orchestrator.store.schema import OPEN_RUNS, QUEUED_TURNS, RUNNING_RUNS, calls, groups, has, runs, turns
from chordage.orchestrator.store.turns import COLUMNS as TURN_COLUMNS
from chordage.orchestrator.store.turns import from_row as turn_from_row
from chordage.orchestrator.store.tx import Tx


_BUDGET = select(groups.c.budget).where(groups.c.name == bindparam("group"))
_LOCK_BUDGET = _BUDGET.with_for_update()


def lock_budget(tx: Tx, group: Group, default: int) -> int:
    """How many runs of this group may run. Starts in one group come one by one from here to the commit."""
    own = tx.execute(_LOCK_BUDGET, {"group": group.value}).scalar()
    return default if own is None else int(own)


def budget_of(tx: Tx, group: Group, default: int) -> int:
    own = tx.execute(_BUDGET, {"group": group.value}).scalar()
    return default if own is None else int(own)


_RUNNING_IN_GROUP = (
    select(func.count()).select_from(runs).where(runs.c.grp == turns.c.grp, RUNNING_RUNS).scalar_subquery()
)
_START_TURN = (
    update(turns)
    .where(
        turns.c.id == bindparam("turn_id"),
        has(turns.c.status, *sources(TURN, TurnStatus.ACTIVE)),
        has(turns.c.ready, 1),
        _RUNNING_IN_GROUP < bindparam("budget"),
        ~exists().where(runs.c.thread_id == turns.c.thread_id, OPEN_RUNS),
    )
    .values(status=TurnStatus.ACTIVE.value, ready=0, run_id=bindparam("run"), started_at=bindparam("now"))
    .returning(*TURN_COLUMNS)
)


def start_turn(tx: Tx, turn_id: str, run_id: str, *, budget: int, now: datetime) -> Turn | None:
    row = tx.execute(_START_TURN, {"turn_id": turn_id, "run": run_id, "budget": budget, "now": now}).first()
    return turn_from_row(row) if row else None


_OPEN_RUN = {
    name: dialect.insert(runs).on_conflict_do_nothing().returning(runs.c.id)
    for name, dialect in (("sqlite", sqlite), ("postgresql", postgresql))
}


def open_run(tx: Tx, turn: Turn, run_id: str, *, now: datetime, lease_until: datetime) -> bool:
    """False when the thread has an open run already: the index says so, whatever anybody believed."""
    row = {
        "id": run_id,
        "thread_id": turn.thread_id,
        "turn_id": turn.id,
        "agent": turn.agent,
        "grp": turn.group.value,
        "strategy": turn.strategy,
        "status": RunStatus.RUNNING.value,
        "epoch": 1,
        "step": 1,
        "phase": Phase.INFERENCE.value,
        **dict.fromkeys(("rounds", "resends", "expiries", "input_tokens", "output_tokens", "cached_tokens"), 0),
        "lease_until": lease_until,
        "started_at": now,
    }
    return tx.execute(_OPEN_RUN[tx.dialect.name], row).first() is not None


def _stands_at(step: ColumnElement[int]) -> ColumnElement[bool]:
    """The run may record this inference: its step is open, or the round before it is the open one."""
    return or_(
        and_(runs.c.step == step, has(runs.c.phase, Phase.INFERENCE)),
        and_(runs.c.step == step - 1, has(runs.c.phase, Phase.TOOL_ROUND)),
    )


_MOVE_RUN = update(runs).where(
    runs.c.id == bindparam("run"),
    runs.c.epoch == bindparam("of_epoch"),
    RUNNING_RUNS,
    _stands_at(bindparam("at_step", type_=runs.c.step.type)),
    or_(runs.c.claim_token.is_(None), runs.c.claim_token == bindparam("token")),
)
_SPENT = {name: runs.c[name] + bindparam(f"add_{name}") for name in ("input_tokens", "output_tokens", "cached_tokens")}
_CLEAN = {"resends": 0, "expiries": 0, "claim_token": None, "claim_worker": None}
_GO_ON = _MOVE_RUN.values(
    step=bindparam("to_step"),
    phase=bindparam("to_phase"),
    rounds=runs.c.rounds + bindparam("add_rounds"),
    lease_until=bindparam("until"),
    **_SPENT,
    **_CLEAN,
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Position:
    """By what right somebody writes about a run: the run as it was when the work began."""

    run: Run
    step: int
    token: str | None

    def binds(self) -> dict[str, Any]:
        return {"run": self.run.id, "of_epoch": self.run.epoch, "at_step": self.step, "token": self.token}


def go_on(tx: Tx, at: Position, *, to: tuple[int, Phase], rounds: int, usage: Usage, lease_until: datetime) -> bool:
    """The open step is done and the next one is open."""
    step, phase = to
    binds = {"to_step": step, "to_phase": phase.value, "add_rounds": rounds, "until": lease_until}
    return tx.execute(_GO_ON, {**at.binds(), **binds, **_spent(usage)}).rowcount == 1


def _spent(usage: Usage) -> dict[str, int]:
    return {
        "add_input_tokens": usage.input_tokens,
        "add_output_tokens": usage.output_tokens,
        "add_cached_tokens": usage.cached_tokens,
    }


_FINISH = _MOVE_RUN.values(
    status=RunStatus.DONE.value,
    reason=bindparam("why"),
    code=bindparam("why_code"),
    detail=bindparam("why_detail"),
    ended_at=bindparam("now"),
    lease_until=None,
    **_SPENT,
    **_CLEAN,
)


def finish(tx: Tx, at: Position, ending: Ending, *, usage: Usage, now: datetime) -> bool:
    """The run ends where it stands."""
    binds = {"why": ending.reason.value, "why_code": ending.code, "why_detail": ending.detail, "now": now}
    return tx.execute(_FINISH, {**at.binds(), **binds, **_spent(usage)}).rowcount == 1


def end_run(tx: Tx, run: Run, ending: Ending, now: datetime) -> bool:
    """The run ends from outside, wherever it stands; the new epoch turns everybody away who still works on it."""
    ended = (
        update(runs)
        .where(runs.c.id == run.id, runs.c.epoch == run.epoch, has(runs.c.status, *sources(RUN, RunStatus.DONE)))
        .values(
            status=RunStatus.DONE.value, reason=ending.reason.value, code=ending.code, detail=ending.detail,
            ended_at=now, epoch=runs.c.epoch + 1, lease_until=None, claim_token=None, claim_worker=None,
        )
    )  # fmt: skip
    return tx.execute(ended).rowcount == 1


def close_calls(tx: Tx, run_id: str, *, code: str, content: str, now: datetime) -> int:
    """Every call of a run that ended is closed with a row that says so."""
    closed = (
        update(calls)
        .where(calls.c.run_id == run_id, has(calls.c.status, *sources(CALL, CallStatus.CANCELLED)))
        .values(status=CallStatus.CANCELLED.value, code=code, content=content, ended_at=now, lease_until=None)
    )
    return tx.execute(closed).rowcount


_NEXT = turns.alias("next")
_NEXT_IN_LINE = (
    select(_NEXT.c.id)
    .where(_NEXT.c.thread_id == bindparam("thread"), has(_NEXT.c.status, TurnStatus.QUEUED))
    .order_by(_NEXT.c.rank, _NEXT.c.arrival)
    .limit(1)
    .scalar_subquery()
)
_DUE = turns.alias("due")
_SOMEBODY_IS_READY = exists().where(
    has(_DUE.c.status, TurnStatus.QUEUED), has(_DUE.c.ready, 1), _DUE.c.grp == bindparam("of_group")
)
_IS_IT = turns.c.id == bindparam("turn_id")
_END_TURN = (
    update(turns)
    .where(or_(and_(_IS_IT, has(turns.c.status, *sources(TURN, TurnStatus.DONE))), turns.c.id == _NEXT_IN_LINE))
    .values(
        status=case((_IS_IT, TurnStatus.DONE.value), else_=turns.c.status),
        disposition=case((_IS_IT, bindparam("how")), else_=turns.c.disposition),
        done_at=case((_IS_IT, bindparam("now", type_=turns.c.done_at.type)), else_=turns.c.done_at),
        ready=case((_IS_IT, 0), else_=1),
    )
    .returning(turns.c.id, turns.c.grp, turns.c.reply_target, _SOMEBODY_IS_READY.label("others"))
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Ended:
    """What the end of a turn leaves to do."""

    reply_target: dict[str, Any] | None
    to_dispatch: frozenset[Group]


def end_turn(tx: Tx, turn_id: str, thread_id: str, group: Group, disposition: Disposition, now: datetime) -> Ended:
    """The turn is done, and the next one in its thread's line is ready: one statement, so that nobody sees half of it."""
    binds = {"turn_id": turn_id, "thread": thread_id, "of_group": group.value, "how": disposition.value, "now": now}
    rows = tx.execute(_END_TURN, binds).all()
    freed = {Group(row.grp) for row in rows if row.id != turn_id}
    if any(row.others for row in rows):
        freed.add(group)
    own = next((row for row in rows if row.id == turn_id), None)
    return Ended(reply_target=own.reply_target if own else None, to_dispatch=frozenset(freed))


def end_queued(tx: Tx, turn_id: str, disposition: Disposition, now: datetime) -> Turn | None:
    """A turn that never started ends."""
    ended = (
        update(turns)
        .where(turns.c.id == turn_id, QUEUED_TURNS)
        .values(status=TurnStatus.DONE.value, disposition=disposition.value, done_at=now, ready=0)
        .returning(*TURN_COLUMNS)
    )
    row = tx.execute(ended).first()
    return turn_from_row(row) if row else None


def make_next_ready(tx: Tx, thread_id: str) -> Group | None:
    """The head of a thread's line may start, if nothing on the thread is open. Its group, if there is one."""
    made = (
        update(turns)
        .where(
            turns.c.id == _NEXT_IN_LINE,
            ~exists().where(runs.c.thread_id == turns.c.thread_id, OPEN_RUNS),
        )
        .values(ready=1)
        .returning(turns.c.grp)
    )
    found = tx.execute(made, {"thread": thread_id}).scalar()
    return Group(found) if found else None


def claim_run(tx: Tx, run: Run, token: str, worker: str, lease_until: datetime, now: datetime) -> bool:
    """A run whose wake-up had to be sent again is worked on by one worker at a time, and truth knows by whom."""
    claimed = (
        update(runs)
        .where(
            runs.c.id == run.id,
            runs.c.epoch == run.epoch,
            runs.c.step == run.step,
            RUNNING_RUNS,
            or_(runs.c.claim_token.is_(None), runs.c.lease_until < now),
        )
        .values(claim_token=token, claim_worker=worker, lease_until=lease_until)
    )
    return tx.execute(claimed).rowcount == 1


def unclaim_run(tx: Tx, run_id: str, token: str, lease_until: datetime) -> None:
    """The holder lets go: it did not die, so this is no expiry, and whoever comes next may claim at once."""
    freed = update(runs).where(runs.c.id == run_id, runs.c.claim_token == token)
    tx.execute(freed.values(claim_token=None, claim_worker=None, lease_until=lease_until))


def push_lease(tx: Tx, run: Run, *, lease_until: datetime, resends: int, expiries: int) -> None:
    """Rescue has seen to a run (its row is locked): the next look is due when this lease is up."""
    tx.execute(
        update(runs)
        .where(runs.c.id == run.id, runs.c.epoch == run.epoch)
        .values(lease_until=lease_until, resends=resends, expiries=expiries, claim_token=None, claim_worker=None)
    )


def renew_runs(tx: Tx, held: Collection[tuple[str, int]], worker: str, lease_until: datetime) -> None:
    """The heartbeat of everything a process holds: this is where a short optimistic start becomes a claim on record."""
    for epoch in {epoch for _, epoch in held}:
        ids = [run_id for run_id, of in held if of == epoch]
        tx.execute(
            update(runs)
            .where(runs.c.id.in_(ids), runs.c.epoch == epoch, RUNNING_RUNS)
            .values(lease_until=lease_until, claim_worker=worker)
        )


def claim_call(tx: Tx, call: Call, token: str, worker: str, *, now: datetime, lease_until: datetime) -> bool:
    """From here on a crash leaves evidence: the call is Running, by this token, until the lease is up."""
    abandoned = or_(calls.c.worker.is_(None), calls.c.lease_until < now)
    stale = and_(has(calls.c.status, CallStatus.RUNNING), abandoned)
    claimed = (
        update(calls)
        .where(calls.c.id == call.id, or_(has(calls.c.status, *sources(CALL, CallStatus.RUNNING)), stale))
        .values(
            status=CallStatus.RUNNING.value, claim_token=token, worker=worker, lease_until=lease_until,
            started_at=func.coalesce(calls.c.started_at, now),
        )
    )  # fmt: skip
    return tx.execute(claimed).rowcount == 1


_SETTLE = (
    update(calls)
    .where(
        calls.c.id == bindparam("call"),
        has(calls.c.status, *sources(CALL, CallStatus.FAILED)),
        or_(calls.c.claim_token.is_(None), calls.c.claim_token == bindparam("token")),
    )
    .values(
        status=bindparam("to_status"), code=bindparam("to_code"), content=bindparam("to_content"),
        full_result=bindparam("to_full"), worker=bindparam("by_worker"), started_at=bindparam("begun"),
        ended_at=bindparam("now"), lease_until=None,
    )
)  # fmt: skip


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    status: CallStatus
    code: str | None
    content: str
    full: str | None
    worker: str
    started_at: datetime
    ended_at: datetime


def settle_call(tx: Tx, call_id: str, token: str | None, outcome: Outcome) -> bool:
    """The outcome of a call, written once. Whoever comes later, or lost the claim, matches no row."""
    binds = {
        "call": call_id, "token": token, "to_status": outcome.status.value, "to_code": outcome.code,
        "to_content": outcome.content, "to_full": outcome.full, "by_worker": outcome.worker,
        "begun": outcome.started_at, "now": outcome.ended_at,
    }  # fmt: skip
    return tx.execute(_SETTLE, binds).rowcount == 1


def release_call(tx: Tx, call_id: str, token: str, now: datetime) -> None:
    """A claimed call that may run again elsewhere at once."""
    freed = update(calls).where(
        calls.c.id == call_id, calls.c.claim_token == token, has(calls.c.status, *sorted(OPEN_CALL))
    )
    tx.execute(freed.values(claim_token=None, worker=None, lease_until=now))


def push_call_lease(tx: Tx, call: Call, *, lease_until: datetime, resends: int, expiries: int) -> None:
    """As push_lease, for a call. It is in nobody's hand until it is claimed again."""
    tx.execute(
        update(calls)
        .where(calls.c.id == call.id)
        .values(lease_until=lease_until, resends=resends, expiries=expiries, claim_token=None, worker=None)
    )


def renew_calls(tx: Tx, held: Collection[str], worker: str, *, now: datetime, lease_until: datetime) -> None:
    """Calls still running when the heart beats: from now on truth says so."""
    tx.execute(
        update(calls)
        .where(calls.c.id.in_(held), has(calls.c.status, CallStatus.NEW, CallStatus.RUNNING))
        .values(
            status=CallStatus.RUNNING.value, lease_until=lease_until, worker=worker,
            started_at=func.coalesce(calls.c.started_at, now),
        )
    )  # fmt: skip


def note_progress(tx: Tx, call_id: str, text: str) -> None:
    tx.execute(
        update(calls).where(calls.c.id == call_id, has(calls.c.status, *sorted(OPEN_CALL))).values(progress=text)
    )
