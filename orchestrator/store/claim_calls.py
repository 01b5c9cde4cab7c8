"""Guarded changes of tool calls: claimed by one, settled once."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement, Select, and_, bindparam, func, or_, select, update

from chordage.orchestrator.core.records import Call
from chordage.orchestrator.core.status import CALL, OPEN_CALL, CallStatus, sources
from chordage.orchestrator.store.hot import Hot
from chordage.orchestrator.store.predicates import STILL_FLYING, has, still
from chordage.orchestrator.store.schema import calls
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
    freed = and_(still(calls.c.status, CallStatus.RUNNING), calls.c.worker.is_(None))  # by rescue, or by its holder
    claimed = (
        update(calls)
        .where(calls.c.id == call.id, or_(still(calls.c.status, *sources(CALL, CallStatus.RUNNING)), freed))
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
        still(calls.c.status, *sources(CALL, CallStatus.FAILED)),
        or_(calls.c.claim_token.is_(None), calls.c.claim_token == bindparam("token")),
        # Whoever began before the call asked has nothing to say about what became of the answer.
        calls.c.suspension_id.is_not_distinct_from(bindparam("asked", type_=calls.c.suspension_id.type)),
    )
    .values(
        status=bindparam("to_status"), code=bindparam("to_code"), content=bindparam("to_content"),
        full_result=bindparam("to_full"), worker=bindparam("by_worker"), started_at=bindparam("begun"),
        ended_at=bindparam("now"), lease_until=None,
    )
)  # fmt: skip


def suspend_call(
    tx: Tx, call: Call, token: str | None, suspension_id: str, *, seen_lease: datetime | None = None
) -> bool:
    """The call waits for a decision, in nobody's hand. `seen_lease`: unless somebody has renewed it since."""
    unrenewed = [] if seen_lease is None else [calls.c.lease_until == seen_lease]
    put_aside = (
        update(calls)
        .where(
            calls.c.id == call.id,
            calls.c.suspension_id.is_not_distinct_from(call.suspension_id),
            still(calls.c.status, *sources(CALL, CallStatus.SUSPENDED)),
            or_(calls.c.claim_token.is_(None), calls.c.claim_token == token),
            *unrenewed,
        )
        .values(
            status=CallStatus.SUSPENDED.value, suspension_id=suspension_id, claim_token=None, worker=None,
            lease_until=None, resends=0, expiries=0,
        )
    )  # fmt: skip
    return tx.execute(put_aside).rowcount == 1


def park_behind(tx: Tx, call: Call) -> None:
    """The calls of its round that have not started and come after it stay where they are until it is settled."""
    behind = update(calls).where(
        calls.c.run_id == call.run_id,
        calls.c.step == call.step,
        calls.c.place > call.place,
        still(calls.c.status, CallStatus.NEW),
    )
    tx.execute(behind.values(lease_until=None))


def resume_call(
    tx: Tx, call_id: str, *, step: int, arguments: dict[str, Any] | None, lease_until: datetime | None
) -> bool:
    """The decision is there; with a lease, the call is to be carried out in this step of its run."""
    changed = {} if arguments is None else {"arguments": arguments}
    resumed = (
        update(calls)
        .where(calls.c.id == call_id, still(calls.c.status, *sources(CALL, CallStatus.RESUMING)))
        .values(status=CallStatus.RESUMING.value, replayed_at=step, lease_until=lease_until, **changed)
    )
    return tx.execute(resumed).rowcount == 1


def unpark(tx: Tx, call_ids: Collection[str], *, step: int, lease_until: datetime) -> None:
    """Calls that stood behind a suspended one have their turn: somebody is sent for them."""
    freed = update(calls).where(
        calls.c.id.in_(sorted(call_ids)), still(calls.c.status, CallStatus.NEW), calls.c.lease_until.is_(None)
    )
    tx.execute(freed.values(replayed_at=step, lease_until=lease_until))


def answer_call(
    tx: Tx,
    call_id: str,
    *,
    status: CallStatus,
    code: str | None,
    content: str,
    full: str | None = None,
    step: int,
    now: datetime,
) -> bool:
    """The decision alone settles the call."""
    settled = (
        update(calls)
        .where(calls.c.id == call_id, still(calls.c.status, *sources(CALL, status)))
        .values(
            status=status.value, code=code, content=content, full_result=full, ended_at=now, lease_until=None,
            claim_token=None, replayed_at=step,
        )
    )  # fmt: skip
    return tx.execute(settled).rowcount == 1


def join_replay(tx: Tx, call_ids: Collection[str], *, step: int) -> None:
    """New calls of an older round are carried out in this step of their run."""
    tx.execute(update(calls).where(calls.c.id.in_(sorted(call_ids))).values(replayed_at=step))


def supply_result(tx: Tx, call: Call, *, status: CallStatus, code: str, content: str, now: datetime) -> bool:
    """The consumer gives the result. Whoever is carrying the call out finds that it is settled: the first counts."""
    supplied = (
        update(calls)
        .where(calls.c.id == call.id, still(calls.c.status, *sources(CALL, status)))
        .values(
            status=status.value, code=code, content=content, ended_at=now, lease_until=None, claim_token=None,
        )
    )  # fmt: skip
    return tx.execute(supplied).rowcount == 1


def close_some(tx: Tx, call_ids: Collection[str], *, code: str, content: str, now: datetime) -> None:
    """Calls that nobody wants any more."""
    cancellable = still(calls.c.status, *sources(CALL, CallStatus.CANCELLED))
    closed = update(calls).where(calls.c.id.in_(sorted(call_ids)), cancellable)
    tx.execute(
        closed.values(status=CallStatus.CANCELLED.value, code=code, content=content, ended_at=now, lease_until=None)
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    status: CallStatus
    code: str | None
    content: str
    full: str | None
    worker: str
    started_at: datetime
    ended_at: datetime


def settle_call(tx: Tx, call: Call, token: str | None, outcome: Outcome) -> bool:
    """The outcome of a call, written once. Whoever comes later, or lost the claim, matches no row."""
    binds = {
        "call": call.id, "asked": call.suspension_id, "token": token, "to_status": outcome.status.value,
        "to_code": outcome.code,
        "to_content": outcome.content, "to_full": outcome.full, "by_worker": outcome.worker,
        "begun": outcome.started_at, "now": outcome.ended_at,
    }  # fmt: skip
    return _SETTLE.changed(tx, binds) == 1


def release_call(tx: Tx, call_id: str, token: str | None, worker: str, now: datetime) -> None:
    """A call that may run again elsewhere at once. It counts as a death: whatever ends its process each time ends here
    as poison. Without a token, it is on record in the worker's name, or not at all.
    """
    freed = update(calls).where(calls.c.id == call_id, _held_by(token, worker), STILL_FLYING)
    tx.execute(freed.values(claim_token=None, worker=None, lease_until=now, expiries=calls.c.expiries + 1))


def _held_by(token: str | None, worker: str) -> ColumnElement[bool]:
    in_name = or_(calls.c.worker == worker, calls.c.worker.is_(None))
    return calls.c.claim_token == token if token else and_(calls.c.claim_token.is_(None), in_name)


def let_go_call(tx: Tx, call_id: str, token: str | None, now: datetime) -> None:
    """Its holder claimed it and has not begun: it is in nobody's hand, and that is no death."""
    freed = update(calls).where(calls.c.id == call_id, calls.c.claim_token == token, STILL_FLYING)
    tx.execute(freed.values(claim_token=None, worker=None, lease_until=now))


def count_call_crash(tx: Tx, call_id: str, token: str | None, worker: str, lease_until: datetime) -> None:
    """As count_crash, for a call. Only its holder may: an unsafe call that another has begun could run twice."""
    crashed = update(calls).where(calls.c.id == call_id, _held_by(token, worker), STILL_FLYING)
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
) -> set[str]:
    """Calls still running when the heart beats: from now on truth says so. One that was claimed by another is not
    ours, and one whose row another transaction holds is not waited for. Those that were renewed.
    """
    ours = or_(calls.c.claim_token.is_(None), calls.c.claim_token.in_(sorted(tokens)))
    renewed = (
        update(calls)
        .where(
            calls.c.id.in_(_unlocked(held)), still(calls.c.status, CallStatus.NEW, CallStatus.RUNNING), ours
        )
        .values(
            status=CallStatus.RUNNING.value, lease_until=lease_until, worker=worker,
            started_at=func.coalesce(calls.c.started_at, now),
        )
        .returning(calls.c.id)
    )  # fmt: skip
    return set(tx.execute(renewed).scalars())


def renew_waiting_calls(tx: Tx, behind: Collection[str], *, lease_until: datetime) -> None:
    """Calls that wait behind another in a batch are not lost, and rescue need not send them. A parked one stays so."""
    waiting = update(calls).where(
        calls.c.id.in_(_unlocked(behind)), still(calls.c.status, CallStatus.NEW), calls.c.lease_until.is_not(None)
    )
    tx.execute(waiting.values(lease_until=lease_until))


def _unlocked(call_ids: Collection[str]) -> Select[Any]:
    """Those of these rows that no other transaction holds."""
    row = calls.alias()
    return select(row.c.id).where(row.c.id.in_(sorted(call_ids))).with_for_update(skip_locked=True)


def amend_call(tx: Tx, call: Call, token: str | None, arguments: dict[str, Any]) -> bool:
    """What it is carried out with is on record before it is."""
    amended = update(calls).where(
        calls.c.id == call.id, still(calls.c.status, CallStatus.RUNNING), calls.c.claim_token == token
    )
    return tx.execute(amended.values(arguments=arguments)).rowcount == 1


def note_progress(tx: Tx, call_id: str, text: str) -> None:
    tx.execute(
        update(calls).where(calls.c.id == call_id, still(calls.c.status, *sorted(OPEN_CALL))).values(progress=text)
    )
