"""Last of all: what a turn came to leaves, to a web hook or a channel.

A delivery is taken in hand in one transaction, sent outside of any, and settled in another, which also says so in the
journal. Whoever dies in between leaves a lease that runs out, and it is sent once more, with the same key. A receiver
that is slow has only a few in hand at once, so it holds up nobody else; one that fails is tried again with growing
pauses, and then it is a dead letter, which does not hold up the next of its thread. Nothing here touches a turn.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from datetime import timedelta

import structlog

from chordage.orchestrator.core.channels import Outgoing
from chordage.orchestrator.core.deliveries import DeliveryStatus, shown
from chordage.orchestrator.core.errors import Conflict, NotFound, TryLater, Undeliverable
from chordage.orchestrator.core.intents import Deliver, Intent
from chordage.orchestrator.core.records import Checkpoint
from chordage.orchestrator.runtime import Runtime
from chordage.orchestrator.store import journal, outbox, projection, turns
from chordage.orchestrator.store.database import Tx
from chordage.orchestrator.store.outbox import Delivery

log = structlog.get_logger()

LOOK_AGAIN = 0.5  # seconds, while those in hand are slow
AT_ONE_GO = 30.0  # seconds; then another message goes on, so that a worker can be told to stop


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


def retry_dead(rt: Runtime, number: int | None = None) -> list[int]:
    """Dead letters are due again: one, or all of them."""
    with rt.store.write() as tx:
        again = outbox.retry_dead(tx, number, rt.now())
        found = outbox.load(tx, number) if number is not None and not again else None
    if number is None or again:
        return again
    if found is None:
        raise NotFound(f"there is no delivery {number}; `chordage deliveries --dead` lists the dead letters")
    raise Conflict(f"delivery {number} is {found.status.value}, no dead letter: nothing was done")


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
        with rt.store.write() as tx:
            found = outbox.claim(
                tx, receiver, as_many, position, token=rt.new_id(), worker=rt.worker, now=now, until=until
            )
        claimed += found.deliveries
        put_off += found.put_off
    return claimed, put_off


def attempt(rt: Runtime, one: Delivery) -> None:
    """Send it, and record what came of it."""
    try:
        _send(rt, one)
    except (Undeliverable, NotFound) as error:
        _settle(rt, one, DeliveryStatus.DEAD, error=str(error))
    except TryLater as error:
        _again(rt, one, str(error), asked=error.seconds)
    except Exception as error:
        log.warning("a delivery failed", delivery=one.id, error=str(error))
        _again(rt, one, str(error) or type(error).__name__)
    else:
        _settle(rt, one, DeliveryStatus.SENT)


def _send(rt: Runtime, one: Delivery) -> None:
    reply = Outgoing(
        key=one.key, thread_id=one.thread_id, turn_id=one.turn_id, text=one.body.get("text"), body=one.body
    )
    if "url" in one.target:
        rt.web_hooks.deliver(one.target, reply)
        return
    if "channel" not in one.target:  # admission knows no other, so a newer version has written it
        raise TryLater(f"this worker does not know where to send it: {', '.join(one.target)}")
    address = {name: value for name, value in one.target.items() if name != "channel"}
    rt.channels.get(str(one.target.get("channel"))).deliver(address, reply)


def _again(rt: Runtime, one: Delivery, error: str, *, asked: float | None = None) -> None:
    made = one.attempts - one.forgiven
    if made >= rt.delivery.attempts:
        _settle(rt, one, DeliveryStatus.DEAD, error=f"given up after {made} attempts; the last: {error}")
        return
    pause = rt.delivery.pause(made, random.random(), asked)
    _settle(rt, one, DeliveryStatus.PENDING, error=error, pause=pause)


def _settle(rt: Runtime, one: Delivery, status: DeliveryStatus, *, error: str | None = None, pause: float = 0) -> None:
    """What was sent is not forgotten because the database restarts."""
    now = rt.now()

    def record(tx: Tx) -> bool:
        next_at = now + timedelta(seconds=pause)
        settled = outbox.settle(tx, one, status, now=now, next_at=next_at, error=error)
        if settled and status is not DeliveryStatus.PENDING:
            journal.append(tx, list(_notes(tx, rt, one, status, error)))
        return settled

    settled = rt.store.insist(record)
    if not settled:
        log.info("late word of a delivery refused", delivery=one.id, status=status.value)
    elif status is DeliveryStatus.DEAD:
        log.warning("a dead letter", delivery=one.id, turn=one.turn_id, to=shown(one.target), error=error)


def _notes(tx: Tx, rt: Runtime, one: Delivery, status: DeliveryStatus, error: str | None) -> Iterator[journal.Row]:
    kind = Checkpoint.DELIVERED if status is DeliveryStatus.SENT else Checkpoint.DELIVERY_DEAD
    turn = turns.load(tx, one.turn_id)
    body = {
        "turn": one.turn_id, "run": turn.run_id if turn else None, "to": shown(one.target), "attempts": one.attempts,
        "error": error,
    }  # fmt: skip
    yield journal.entry(one.thread_id, one.turn_id, one.attempts, kind, body, rt.now())
