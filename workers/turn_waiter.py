"""Waiting until a turn is done, at the price of one Redis subscription and very few SQL statements.

The race: a turn may end between the read of its row and the start of the subscription. So subscribe first, wait until
Redis confirms it, and only then read the row. Notifications can be lost, so the row is read every second all the same,
and a few times a second without Redis. Only the row says that a turn is done.
"""

from __future__ import annotations

import queue
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import structlog
from redis import Redis
from redis.client import PubSub
from redis.exceptions import RedisError

from chordage.config.settings import Settings
from chordage.orchestrator import views
from chordage.orchestrator.core.status import Disposition, TurnStatus
from chordage.orchestrator.gateways.redis_events import done_channel
from chordage.orchestrator.runtime import Runtime
from chordage.orchestrator.views import TurnView
from chordage.workers.bootstrap import quick_redis_from

log = structlog.get_logger()

READ_EVERY = 1.0  # seconds between two reads of the row, with a subscription
READ_EVERY_ALONE = 0.25  # ... and without Redis
GIVE_UP_CHECK = 0.2  # seconds within which a wait notices that its caller has gone
KEPT_SUBSCRIPTIONS = 32


def waiter_for(settings: Settings) -> TurnWaiter:
    return TurnWaiter(None if settings.redis is None else quick_redis_from(settings), prefix=settings.prefix)


def _never() -> bool:
    return False


def wait_for_turn(
    waiter: TurnWaiter, rt: Runtime, turn_id: str, timeout: float | None, gave_up: Callable[[], bool] = _never
) -> TurnView:
    """The turn as it is when it is done, when the time is over, or when the caller has given up. `timeout` None: no
    limit.
    """
    until = None if timeout is None else time.monotonic() + timeout
    with waiter.subscribed(turn_id) as notification:
        notified = False
        while True:
            left = READ_EVERY if until is None else until - time.monotonic()
            is_over = left <= 0 or gave_up()
            if notified or is_over or views.is_done(rt.store, turn_id):
                turn = views.turn(rt.store, turn_id)
                if turn.status is TurnStatus.DONE or is_over:
                    return turn
            notified = _wait(notification, min(READ_EVERY, left), gave_up)


def _wait(notification: Notification, seconds: float, gave_up: Callable[[], bool]) -> bool:
    """Whether the notification came within so many seconds."""
    until = time.monotonic() + seconds
    while (left := until - time.monotonic()) > 0 and not gave_up():
        if notification.wait(min(GIVE_UP_CHECK, left)):
            return True
        if not notification.can_come:
            break
    return False


def wait_for_answer(waiter: TurnWaiter, rt: Runtime, turn_id: str, timeout: float | None) -> TurnView:
    """As wait_for_turn; a turn that was steered into a run is answered by that run, so its end is waited for too."""
    until = None if timeout is None else time.monotonic() + timeout
    turn = wait_for_turn(waiter, rt, turn_id, timeout)
    if turn.disposition is not Disposition.STEERED or turn.run_id is None:
        return turn
    left = None if until is None else max(0.0, until - time.monotonic())
    wait_for_turn(waiter, rt, views.run(rt.store, turn.run_id).turn_id, left)
    return views.turn(rt.store, turn_id)


class TurnWaiter:
    """Subscribes to the ends of turns, as long as there is a Redis. Safe to share between threads.

    A subscription is a connection of its own and expensive to make, so it is kept for the next wait. A late message of
    the turn before costs one read of the row.
    """

    def __init__(self, redis: Redis | None, *, prefix: str) -> None:
        self._redis = redis
        self._prefix = prefix
        self._idle: queue.SimpleQueue[PubSub] = queue.SimpleQueue()

    @contextmanager
    def subscribed(self, turn_id: str) -> Iterator[Notification]:
        subscription = self._subscription(done_channel(self._prefix, turn_id))
        notification = Notification(subscription)
        try:
            yield notification
        finally:
            if subscription is not None:
                keeps = notification.can_come and self._idle.qsize() < KEPT_SUBSCRIPTIONS
                self._idle.put(subscription) if keeps else _close(subscription)

    def close(self) -> None:
        while not self._idle.empty():
            _close(self._idle.get())
        if self._redis is not None:
            self._redis.close()

    def _subscription(self, channel: str) -> PubSub | None:
        """One that Redis has confirmed: from here on no notification is missed while Redis is up."""
        if self._redis is None:
            return None
        try:
            kept = self._idle.get_nowait()
        except queue.Empty:
            kept = None
        if kept is not None and _subscribe(kept, channel):
            return kept
        fresh: PubSub = self._redis.pubsub()  # type: ignore[no-untyped-call]  # redis-py left it without annotations
        return fresh if _subscribe(fresh, channel) else None


class Notification:
    """The message that a turn is done, from Redis as long as there is one."""

    def __init__(self, subscription: PubSub | None) -> None:
        self._subscription = subscription

    @property
    def can_come(self) -> bool:
        return self._subscription is not None

    def wait(self, seconds: float) -> bool:
        """Whether it came in time. Returns sooner when it can no longer come."""
        if self._subscription is None:
            time.sleep(min(seconds, READ_EVERY_ALONE))
            return False
        try:
            return self._subscription.get_message(timeout=seconds) is not None
        except (RedisError, OSError) as error:
            log.info("redis does not answer; reading the database instead", error=str(error))
            self._subscription = None
            return False


def _subscribe(subscription: PubSub, channel: str) -> bool:
    """To this channel and to no other. A subscription that fails is closed."""
    until = time.monotonic() + READ_EVERY
    try:
        if subscription.subscribed:
            subscription.unsubscribe()  # type: ignore[no-untyped-call]  # as above
        subscription.subscribe(channel)
        while (left := until - time.monotonic()) > 0:
            message = subscription.get_message(timeout=left)
            if message and message["type"] == "subscribe" and message["channel"] == channel.encode():
                return True
    except (RedisError, OSError) as error:
        log.info("redis does not answer; reading the database instead", error=str(error))
    _close(subscription)
    return False


def _close(subscription: PubSub) -> None:
    try:
        subscription.close()
    except (RedisError, OSError) as error:
        log.debug("subscription not closed cleanly", error=str(error))
