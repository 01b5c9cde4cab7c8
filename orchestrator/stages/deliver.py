"""7. Send what a turn came to, to a webhook or a channel.

A delivery is claimed in one transaction, sent outside of any, and settled in another, which also records it in the
journal. A process that dies in between leaves a lease that runs out, and the delivery is sent once more with the same
key. A slow receiver has only a few deliveries under way at once, so it delays no other; one that fails is tried again
with growing pauses, and then it is a dead letter, which does not delay the next of its thread. Nothing here touches a
turn.
"""

from __future__ import annotations

import random
import time
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from datetime import timedelta

import structlog

from chordage.orchestrator.core.audit import Actor, Audited
from chordage.orchestrator.core.channels import Outgoing
from chordage.orchestrator.core.deliveries import DeliveryStatus, shown
from chordage.orchestrator.core.errors import Conflict, NotFound, TryLater, Undeliverable
from chordage.orchestrator.core.intents import Deliver, Intent
from chordage.orchestrator.core.records import Checkpoint
from chordage.orchestrator.run.unit import Unit, insist
from chordage.orchestrator.runtime import Runtime
from chordage.orchestrator.store import audit, journal, outbox, projection, turns
from chordage.orchestrator.store.outbox import Delivery

log = structlog.get_logger()

LOOK_AGAIN = 0.5  # seconds, while those in hand are slow
AT_ONE_GO = 30.0  # seconds; then another message continues, so that a worker can be told to stop


def deliver(rt: Runtime) -> list[Intent]:
    """Send what is due, several at once, until nothing is or it took long enough."""
    give_up = time.monotonic() + AT_ONE_GO
    in_hand: set[Future[None]] = set()
    with ThreadPoolExecutor(rt.delivery.at_once, thread_name_prefix="deliver") as threads:
        while True:
            late = time.monotonic() > give_up or rt.in_flight.stopping
            claimed = [] if late else take(rt)
            in_hand |= {threads.submit(attempt, rt, one) for one in claimed}
            if not in_hand:
                return [Deliver()] if late and not rt.in_flight.stopping else []
            done, in_hand = wait(in_hand, LOOK_AGAIN, FIRST_COMPLETED)
            for one in done:
                one.result()


def retry_dead(rt: Runtime, number: int | None = None, *, by: Actor | None = None) -> list[int]:
    """Dead letters are due again: one, or all of them. `by`: who wants that, for the record."""
    with Unit(rt) as unit:
        again = outbox.retry_dead(unit.tx, number, unit.now)
        delivery = outbox.load(unit.tx, number) if number is not None and not again else None
        if again and by is not None:
            about = "all" if number is None else str(number)
            audit.record(unit.tx, by, Audited.DELIVERY_RETRIED, about, now=unit.now, detail={"count": len(again)})
    if number is None or again:
        return again
    if delivery is None:
        raise NotFound(f"there is no delivery {number}; `chordage deliveries --dead` lists the dead letters")
    raise Conflict(f"delivery {number} is {delivery.status.value}, no dead letter: nothing was done")


def take(rt: Runtime) -> list[Delivery]:
    """In hand from now on: as many as may be, fairly among their receivers."""
    now = rt.now()
    while True:
        with rt.store.read() as tx:
            standing = projection.load(tx)
            receivers = outbox.due_receivers(tx, now) if standing else []
            busy = outbox.count_in_hand(tx, now) if receivers else {}
        if standing is None or not receivers:
            return []
        random.shuffle(receivers)
        claimed, put_off = _claim(rt, receivers, busy, standing.mark.position)
        if claimed or not put_off:
            return claimed


def _claim(rt: Runtime, receivers: list[str], busy: dict[str, int], position: int) -> tuple[list[Delivery], int]:
    free = rt.delivery.at_once - sum(busy.values())
    claimed: list[Delivery] = []
    now, put_off = rt.now(), 0
    until = now + timedelta(seconds=rt.delivery.lease)
    for receiver in receivers:
        as_many = min(free - len(claimed), rt.delivery.to_one - busy.get(receiver, 0))
        if as_many <= 0:
            continue
        with Unit(rt) as unit:
            batch = outbox.claim(
                unit.tx, receiver, as_many, position, token=rt.new_id(), worker=rt.worker, now=now, until=until
            )
        claimed += batch.deliveries
        put_off += batch.put_off
    return claimed, put_off


def attempt(rt: Runtime, delivery: Delivery) -> None:
    """Send it, and record what came of it."""
    try:
        _send(rt, delivery)
    except (Undeliverable, NotFound) as error:
        _settle(rt, delivery, DeliveryStatus.DEAD, error=str(error))
    except TryLater as error:
        _again(rt, delivery, str(error), asked=error.seconds)
    except Exception as error:
        log.warning("a delivery failed", delivery=delivery.id, error=str(error))
        _again(rt, delivery, str(error) or type(error).__name__)
    else:
        _settle(rt, delivery, DeliveryStatus.SENT)


def _send(rt: Runtime, delivery: Delivery) -> None:
    reply = Outgoing(
        key=delivery.key,
        thread_id=delivery.thread_id,
        turn_id=delivery.turn_id,
        text=delivery.body.get("text"),
        body=delivery.body,
    )
    if "url" in delivery.target:
        rt.web_hooks.deliver(delivery.target, reply)
        return
    if "channel" not in delivery.target:  # admission knows no other, so a newer version has written it
        raise TryLater(f"this worker does not know where to send it: {', '.join(delivery.target)}")
    address = {name: value for name, value in delivery.target.items() if name != "channel"}
    rt.channels.get(str(delivery.target.get("channel"))).deliver(address, reply)


def _again(rt: Runtime, delivery: Delivery, error: str, *, asked: float | None = None) -> None:
    made = delivery.attempts - delivery.forgiven
    if made >= rt.delivery.attempts:
        _settle(rt, delivery, DeliveryStatus.DEAD, error=f"given up after {made} attempts; the last: {error}")
        return
    pause = rt.delivery.pause(made, random.random(), asked)
    _settle(rt, delivery, DeliveryStatus.PENDING, error=error, pause=pause)


def _settle(
    rt: Runtime, delivery: Delivery, status: DeliveryStatus, *, error: str | None = None, pause: float = 0
) -> None:
    """What was sent is not forgotten because the database restarts."""

    def record(unit: Unit) -> bool:
        next_at = unit.now + timedelta(seconds=pause)
        settled = outbox.settle(unit.tx, delivery, status, now=unit.now, next_at=next_at, error=error)
        if settled and status is not DeliveryStatus.PENDING:
            _note(unit, delivery, status, error)
        return settled

    settled, _ = insist(rt, record)
    if not settled:
        log.info("late result of a delivery refused", delivery=delivery.id, status=status.value)
    elif status is DeliveryStatus.DEAD:
        target = shown(delivery.target)
        log.warning("a dead letter", delivery=delivery.id, turn=delivery.turn_id, to=target, error=error)


def _note(unit: Unit, delivery: Delivery, status: DeliveryStatus, error: str | None) -> None:
    kind = Checkpoint.DELIVERED if status is DeliveryStatus.SENT else Checkpoint.DELIVERY_DEAD
    turn = turns.load(unit.tx, delivery.turn_id)
    body = {
        "turn": delivery.turn_id, "run": turn.run_id if turn else None, "to": shown(delivery.target),
        "attempts": delivery.attempts, "error": error,
    }  # fmt: skip
    row = journal.entry(delivery.thread_id, delivery.turn_id, delivery.attempts, kind, body, unit.now)
    journal.append(unit.tx, [row])
