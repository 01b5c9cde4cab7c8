"""Deliveries: replies that are sent to a receiver, written in the transaction whose facts they report.

A delivery is due when its journal row is on the bus and its time has come. It is claimed by a guarded update, in the
order of its thread, and only so many at once for one receiver. Only the oldest pending one of a thread is sent; a later
one that comes up is postponed, and the end of the one before makes it due. A claimed delivery comes up again when its
lease runs out: then it may be sent twice, with the same key.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import bindparam, func, insert, literal_column, select, text, update

from chordage.orchestrator.core.deliveries import DeliveryStatus, receiver_of
from chordage.orchestrator.store.contents import owned
from chordage.orchestrator.store.database import Tx
from chordage.orchestrator.store.predicates import (
    PENDING_DELIVERIES,
    STILL_PENDING,
    deliveries_in_space,
    has,
    in_delivery_order,
)
from chordage.orchestrator.store.schema import journal, outbox

# The facts that it reports are in the journal by now, so none of them has a greater id.
_HERE = select(func.coalesce(func.max(journal.c.id), 0)).scalar_subquery()


def add(tx: Tx, thread_id: str, turn_id: str, *, target: dict[str, Any], body: dict[str, Any], now: datetime) -> None:
    """Call it after everything that this transaction writes into the journal."""
    row = {
        "thread_id": thread_id, "turn_id": turn_id, "target": target, "receiver": receiver_of(target), "body": body,
        "created_at": now, "position": _HERE, "status": DeliveryStatus.PENDING.value, "attempts": 0, "forgiven": 0,
        "next_at": now,
    }  # fmt: skip
    tx.execute(insert(outbox).values(owned(tx, outbox, row)))


WINDOW = 50  # due rows of one receiver that are read at once
POSTPONED = timedelta(minutes=10)  # of one behind another; it becomes due long before
_IS_CLAIMED = (PENDING_DELIVERIES, outbox.c.claim_token.is_not(None))


@dataclass(frozen=True, kw_only=True, slots=True)
class Delivery:
    id: int
    thread_id: str
    turn_id: str
    target: dict[str, Any]
    receiver: str
    body: dict[str, Any]
    created_at: datetime
    status: DeliveryStatus
    attempts: int  # with the one under way
    forgiven: int  # of them, before a dead letter was sent again
    next_at: datetime
    claim_token: str | None
    error: str | None
    sent_at: datetime | None
    dead_at: datetime | None

    @property
    def key(self) -> str:
        """The same at each attempt: a receiver recognises a repetition by it."""
        return self.turn_id


@dataclass(frozen=True, kw_only=True, slots=True)
class ClaimedDeliveries:
    deliveries: list[Delivery]
    put_off: int  # how many were due behind others


_OF_STATUS = {
    DeliveryStatus.PENDING: in_delivery_order(outbox),
    DeliveryStatus.SENT: has(outbox.c.status, DeliveryStatus.SENT),
    DeliveryStatus.DEAD: has(outbox.c.status, DeliveryStatus.DEAD),
}
# A database that sees the primary key would rather walk along it, past all that were sent, than sort what is pending.
_ID_BESIDE_THE_KEY = outbox.c.id + literal_column("0")
_FIELDS = tuple(outbox.c[name] for name in Delivery.__dataclass_fields__)


def _from_row(row: Mapping[Any, Any]) -> Delivery:
    return Delivery(**{**row, "status": DeliveryStatus(row["status"])})


_DUE_RECEIVERS = text(
    """
    WITH RECURSIVE known(receiver) AS (
        SELECT min(receiver) FROM outbox WHERE status = 'pending'
        UNION ALL
        SELECT (SELECT min(receiver) FROM outbox WHERE status = 'pending' AND outbox.receiver > known.receiver)
          FROM known WHERE known.receiver IS NOT NULL
    )
    SELECT receiver FROM known
     WHERE (SELECT min(next_at) FROM outbox WHERE status = 'pending' AND outbox.receiver = known.receiver) <= :now
     LIMIT 1000
    """
).bindparams(bindparam("now", type_=outbox.c.next_at.type))


def due_receivers(tx: Tx, now: datetime) -> list[str]:
    """Each receiver with a due delivery: one step in the index for each, however long its backlog."""
    return list(tx.execute(_DUE_RECEIVERS, {"now": now}).scalars())


def count_in_hand(tx: Tx, now: datetime) -> dict[str, int]:
    """Claimed deliveries by receiver, without those whose lease ran out."""
    counted = select(outbox.c.receiver, func.count()).where(*_IS_CLAIMED, outbox.c.next_at > now)
    return {row[0]: row[1] for row in tx.execute(counted.group_by(outbox.c.receiver))}


def claim(
    tx: Tx, receiver: str, as_many: int, position: int, *, token: str, worker: str, now: datetime, until: datetime
) -> ClaimedDeliveries:
    """Claim what may be sent to this receiver; postpone what is behind another of its thread.

    The order is read after the rows are locked, in a statement of its own: the transaction that settles the delivery
    before one of them and makes it due either waits for this one, or has committed, and is visible.
    """
    due = _lock_due(tx, receiver, position, now)
    first = _first_of_threads(tx, due)
    heads = [number for number, thread in due if first.get(thread) == number][:as_many]
    behind = [number for number, thread in due if first.get(thread) != number]
    if behind:
        put_off = {"next_at": now + POSTPONED, "claim_token": None, "claim_worker": None}
        tx.execute(update(outbox).where(outbox.c.id.in_(behind)).values(**put_off))
    if not heads:
        return ClaimedDeliveries(deliveries=[], put_off=len(behind))
    claimed = (
        update(outbox)
        .where(outbox.c.id.in_(heads), STILL_PENDING)
        .values(claim_token=token, claim_worker=worker, next_at=until, attempts=outbox.c.attempts + 1)
        .returning(*_FIELDS)
    )
    ours = sorted((_from_row(row) for row in tx.execute(claimed).mappings()), key=lambda delivery: delivery.id)
    return ClaimedDeliveries(deliveries=ours, put_off=len(behind))


def _lock_due(tx: Tx, receiver: str, position: int, now: datetime) -> list[tuple[int, str]]:
    due = (
        select(outbox.c.id, outbox.c.thread_id)
        .where(PENDING_DELIVERIES, outbox.c.receiver == receiver, outbox.c.next_at <= now)
        .where(outbox.c.position <= position)
        .order_by(outbox.c.next_at, outbox.c.id)
        .limit(WINDOW)
        .with_for_update(skip_locked=True)
    )
    return [(row.id, row.thread_id) for row in tx.execute(due)]


def _first_of_threads(tx: Tx, due: Sequence[tuple[int, str]]) -> dict[str, int]:
    """One step in the index for each thread, however long its line is."""
    if not due:
        return {}
    some_of_each = {thread: number for number, thread in due}
    line = outbox.alias("line")
    first = select(func.min(line.c.id)).where(in_delivery_order(line), line.c.thread_id == outbox.c.thread_id)
    rows = tx.execute(
        select(outbox.c.thread_id, first.scalar_subquery()).where(outbox.c.id.in_(sorted(some_of_each.values())))
    )
    return {row[0]: row[1] for row in rows}


def settle(
    tx: Tx, delivery: Delivery, status: DeliveryStatus, *, now: datetime, next_at: datetime, error: str | None
) -> bool:
    """Record the result of an attempt; once it is sent or dead, the next one of its thread is due. False: the lease ran
    out, and another process has claimed or settled the delivery.
    """
    times = {DeliveryStatus.SENT: {"sent_at": now}, DeliveryStatus.DEAD: {"dead_at": now}}.get(status, {})
    settled = (
        update(outbox)
        .where(outbox.c.id == delivery.id, outbox.c.claim_token == delivery.claim_token, STILL_PENDING)
        .values(status=status.value, claim_token=None, claim_worker=None, next_at=next_at, **times)
        .values(owned(tx, outbox, {"error": error}, owner=delivery.thread_id))
    )
    if tx.execute(settled).rowcount == 0:
        return False
    if status is not DeliveryStatus.PENDING:
        _wake_next(tx, delivery, now)
    return True


def _wake_next(tx: Tx, delivery: Delivery, now: datetime) -> None:
    following = (
        select(outbox.c.id)
        .where(in_delivery_order(outbox), outbox.c.thread_id == delivery.thread_id, outbox.c.id > delivery.id)
        .order_by(outbox.c.id)
        .limit(1)
        .scalar_subquery()
    )
    idle = outbox.c.claim_token.is_(None)
    tx.execute(update(outbox).where(outbox.c.id == following, idle).values(next_at=now))


def retry_dead(tx: Tx, number: int | None, now: datetime) -> list[int]:
    """One dead letter, or all of them, are due again, with as many attempts as at first."""
    again = (
        update(outbox)
        .where(has(outbox.c.status, DeliveryStatus.DEAD), *([outbox.c.id == number] if number is not None else []))
        .values(status=DeliveryStatus.PENDING.value, dead_at=None, next_at=now, forgiven=outbox.c.attempts)
        .returning(outbox.c.id)
    )
    return sorted(tx.execute(again).scalars())


def of_turn(tx: Tx, turn_id: str) -> Delivery | None:
    row = tx.execute(select(*_FIELDS).where(outbox.c.turn_id == turn_id)).mappings().first()
    return _from_row(row) if row else None


def load(tx: Tx, number: int) -> Delivery | None:
    row = tx.execute(select(*_FIELDS).where(outbox.c.id == number)).mappings().first()
    return _from_row(row) if row else None


LOOKED_AT = 20_000  # deliveries that a page of some of them looks at


def page(
    tx: Tx, *, limit: int, status: DeliveryStatus | None = None, space: str | None = None, before: int | None = None
) -> tuple[list[Delivery], int | None]:
    """Newest first, with the number behind which the next page begins; None: this is the last. A page of those that
    were sent may be short. So may a page of one space, if it is for a status.
    """
    key = _ID_BESIDE_THE_KEY if status is DeliveryStatus.PENDING else outbox.c.id
    bounds = [key < before] if before is not None else []
    bounds += [deliveries_in_space(space)] if space is not None else []
    conditions = [_OF_STATUS[status]] if status is not None else []
    lowest = None
    if status is DeliveryStatus.SENT or (status is not None and space is not None):
        window = select(outbox.c.id).where(*bounds).order_by(outbox.c.id.desc()).limit(LOOKED_AT).subquery()
        least, number = tx.execute(select(func.min(window.c.id), func.count()).select_from(window)).one()
        lowest = least if number == LOOKED_AT else None
        bounds += [outbox.c.id >= lowest] if lowest is not None else []
    wanted = select(*_FIELDS).where(*bounds, *conditions).order_by(key.desc()).limit(limit + 1)
    rows = [_from_row(row) for row in tx.execute(wanted).mappings()]
    if len(rows) > limit:
        return rows[:limit], rows[limit - 1].id
    return rows, lowest


def counts(tx: Tx) -> dict[DeliveryStatus, int]:
    """By status, of those that are not sent. Two indexes answer it: those that were sent are most of the table."""
    unsent = (DeliveryStatus.PENDING, DeliveryStatus.DEAD)
    of = [select(func.count()).select_from(outbox).where(_OF_STATUS[one]).scalar_subquery() for one in unsent]
    return dict(zip(unsent, tx.execute(select(*of)).one(), strict=True))
