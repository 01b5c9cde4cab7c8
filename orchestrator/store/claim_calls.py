"""Guarded changes of tool calls: claimed by one, settled once."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import and_, bindparam, func, or_, update

from chordage.orchestrator.core.records import Call
from chordage.orchestrator.core.status import CALL, OPEN_CALL, CallStatus, sources
from chordage.orchestrator.store.hot import Hot
from chordage.orchestrator.store.schema import FLYING_CALLS, calls, has
from chordage.orchestrator.store.tx import Tx


def close_calls(tx: Tx, run_id: str, *, code: str, content: str, now: datetime) -> int:
    """Every call of a run that ended is closed with a row that says so."""
    closed = (
        update(calls)
        .where(calls.c.run_id == run_id, has(calls.c.status, *sources(CALL, CallStatus.CANCELLED)))
        .values(status=CallStatus.CANCELLED.value, code=code, content=content, ended_at=now, lease_until=None)
    )
    return tx.execute(closed).rowcount


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


_SETTLE = Hot(
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
    return _SETTLE.changed(tx, binds) == 1


def release_call(tx: Tx, call_id: str, token: str | None, worker: str, now: datetime) -> None:
    """A call that may run again elsewhere at once. Without a token, the heartbeat held it in the worker's name."""
    ours = calls.c.claim_token == token if token else and_(calls.c.claim_token.is_(None), calls.c.worker == worker)
    freed = update(calls).where(calls.c.id == call_id, ours, has(calls.c.status, *sorted(OPEN_CALL)))
    tx.execute(freed.values(claim_token=None, worker=None, lease_until=now))


def count_call_crash(tx: Tx, call_id: str, lease_until: datetime) -> None:
    """As count_crash, for a call."""
    crashed = update(calls).where(calls.c.id == call_id, FLYING_CALLS)
    tx.execute(crashed.values(expiries=calls.c.expiries + 1, claim_token=None, worker=None, lease_until=lease_until))


def push_call_lease(tx: Tx, call: Call, *, lease_until: datetime, resends: int, expiries: int) -> None:
    """As push_lease, for a call. It is in nobody's hand until it is claimed again."""
    tx.execute(
        update(calls)
        .where(calls.c.id == call.id)
        .values(lease_until=lease_until, resends=resends, expiries=expiries, claim_token=None, worker=None)
    )


def renew_calls(
    tx: Tx, held: Collection[str], tokens: Collection[str], worker: str, *, now: datetime, lease_until: datetime
) -> None:
    """Calls still running when the heart beats: from now on truth says so. One that was claimed by another is not
    ours.
    """
    ours = or_(calls.c.claim_token.is_(None), calls.c.claim_token.in_(sorted(tokens)))
    tx.execute(
        update(calls)
        .where(calls.c.id.in_(sorted(held)), has(calls.c.status, CallStatus.NEW, CallStatus.RUNNING), ours)
        .values(
            status=CallStatus.RUNNING.value, lease_until=lease_until, worker=worker,
            started_at=func.coalesce(calls.c.started_at, now),
        )
    )  # fmt: skip


def renew_waiting_calls(tx: Tx, behind: Collection[str], *, lease_until: datetime) -> None:
    """Calls that wait behind another in a batch are not lost, and rescue need not send them."""
    waiting = update(calls).where(calls.c.id.in_(sorted(behind)), has(calls.c.status, CallStatus.NEW))
    tx.execute(waiting.values(lease_until=lease_until))


def note_progress(tx: Tx, call_id: str, text: str) -> None:
    tx.execute(
        update(calls).where(calls.c.id == call_id, has(calls.c.status, *sorted(OPEN_CALL))).values(progress=text)
    )
