"""Why a reply has not been delivered."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from chordage.orchestrator.core.deliveries import DeliveryStatus
from chordage.orchestrator.core.groups import DELIVERY_QUEUE
from chordage.orchestrator.core.text import counted
from chordage.orchestrator.core.why import reasons
from chordage.orchestrator.core.why.reasons import (
    CLOCK,
    PERSON,
    Finding,
    OwnerKind,
    Remedy,
    RowKey,
    RowKind,
    WaitCause,
    WaitClock,
    WaitOwner,
    WaitReason,
    at,
    first_match,
    is_past,
    one_line,
)

DELIVERIES = Remedy(command="chordage deliveries --pending", http="GET /deliveries")
BUS = Remedy(command="chordage bus")


@dataclass(frozen=True, kw_only=True, slots=True)
class UnsentReply:
    """A delivery that is pending or dead."""

    id: int
    turn_id: str
    to: str
    status: DeliveryStatus
    attempts: int
    error: str | None
    created_at: datetime
    next_at: datetime
    dead_at: datetime | None
    worker: str | None  # that sends it
    behind: int | None  # the oldest pending delivery of its thread, if that is another
    is_on_bus: bool  # the facts it reports are
    bus_error: str | None
    bus_since: datetime | None  # since when the bus has not moved
    is_served: bool  # a process takes messages from the queue of deliveries


def _reason(
    reply: UnsentReply,
    cause: WaitCause,
    owner: WaitOwner,
    text: str,
    remedy: Remedy = DELIVERIES,
    *,
    since: datetime | None = None,
    until: datetime | None = None,
    next_row: RowKey | None = None,
) -> Finding:
    reason = WaitReason(
        kind=RowKind.DELIVERY, id=str(reply.id), cause=cause, owner=owner, since=since or reply.created_at, until=until,
        remedy=remedy, text=text,
    )  # fmt: skip
    return Finding(reason=reason, next=next_row)


def _dead(reply: UnsentReply, _clock: WaitClock) -> Finding | None:
    if reply.status is not DeliveryStatus.DEAD:
        return None
    text = f"It was given up after {counted(reply.attempts, 'attempt')}: {_error(reply)}"
    remedy = Remedy(command=f"chordage deliveries retry {reply.id}", http=f"POST /deliveries/{reply.id}/retry")
    return _reason(reply, WaitCause.DEAD_LETTER, PERSON, text, remedy, since=reply.dead_at)


def _sending(reply: UnsentReply, clock: WaitClock) -> Finding | None:
    if reply.worker is None or is_past(reply.next_at, clock):
        return None
    text = f"Worker {reply.worker} sends it to {reply.to} now."
    owner = WaitOwner(kind=OwnerKind.PROCESS, id=reply.worker)
    return _reason(reply, WaitCause.SENDING, owner, text, until=reply.next_at)


def _behind(reply: UnsentReply, _clock: WaitClock) -> Finding | None:
    if reply.behind is None:
        return None
    text = f"It waits behind delivery {reply.behind}: the replies of a thread are sent in order."
    owner = WaitOwner(kind=OwnerKind.DELIVERY, id=str(reply.behind))
    return _reason(reply, WaitCause.BEHIND_DELIVERY, owner, text, next_row=RowKey(RowKind.DELIVERY, str(reply.behind)))


def _retry(reply: UnsentReply, clock: WaitClock) -> Finding | None:
    if is_past(reply.next_at, clock) or not reply.attempts:
        return None
    tried = counted(reply.attempts, "attempt")
    text = f"After {tried} it is sent again at {at(reply.next_at)}; the last error: {_error(reply)}"
    return _reason(reply, WaitCause.DELIVERY_RETRY, CLOCK, text, until=reply.next_at)


def _bus_behind(reply: UnsentReply, _clock: WaitClock) -> Finding | None:
    if reply.is_on_bus:
        return None
    fault = f": {one_line(reply.bus_error)}" if reply.bus_error else "."
    text = f"What it reports is not on the bus yet, and it is sent after that{fault}"
    return _reason(reply, WaitCause.BUS_BEHIND, WaitOwner(kind=OwnerKind.BUS), text, BUS, since=reply.bus_since)


def _no_worker(reply: UnsentReply, _clock: WaitClock) -> Finding | None:
    if reply.is_served:
        return None
    text, owner = f"No worker serves the queue {DELIVERY_QUEUE}.", WaitOwner(kind=OwnerKind.QUEUE, id=DELIVERY_QUEUE)
    return _reason(reply, WaitCause.NO_WORKER, owner, text, reasons.worker_for(DELIVERY_QUEUE))


def _due(reply: UnsentReply, _clock: WaitClock) -> Finding:
    text = "It is due, and a worker sends it when its receiver and the fleet have few enough under way."
    owner = WaitOwner(kind=OwnerKind.QUEUE, id=DELIVERY_QUEUE)
    since = max(reply.created_at, reply.next_at) if reply.attempts else reply.created_at
    return _reason(reply, WaitCause.MESSAGE_SENT, owner, text, since=since)


def _error(reply: UnsentReply) -> str:
    return one_line(reply.error or "it is not known what failed")


TESTS = (_dead, _sending, _behind, _retry, _bus_behind, _no_worker, _due)


def of_delivery(reply: UnsentReply, clock: WaitClock) -> Finding:
    return first_match(TESTS, reply, clock)
