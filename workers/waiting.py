"""Waiting until a turn is done, at the price of one Redis subscription and hardly any SQL.

The race: a turn may end between the look at its row and the moment one listens. So one listens first, is told by Redis
that one does, and only then looks. News is lossy, so the row is looked at every second all the same; without Redis a
few times a second. It is the row alone that says that a turn is done.
"""

from __future__ import annotations

import queue
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import structlog
from redis import Redis
from redis.backoff import NoBackoff
from redis.client import PubSub
from redis.exceptions import RedisError
from redis.retry import Retry

from chordage.config.settings import Settings
from chordage.orchestrator import views
from chordage.orchestrator.core.status import Disposition, TurnStatus
from chordage.orchestrator.gateways.redis_events import done_channel
from chordage.orchestrator.runtime import Runtime
from chordage.orchestrator.views import TurnView
from chordage.workers.bootstrap import redis_from

log = structlog.get_logger()

LOOK = 1.0  # seconds between two looks at the row while Redis is listened to
LOOK_ALONE = 0.25  # ... and while there is no Redis
HEED = 0.2  # seconds within which a wait sees that nobody wants to know any more
KEPT = 32  # subscriptions of which nobody needs any just now


def bell_for(settings: Settings) -> Bell:
    """Its client gives up at once: whoever waits has the rows to ask."""
    if settings.redis is None:
        return Bell(None, prefix=settings.prefix)
    once = Retry(NoBackoff(), 0)
    quick = redis_from(settings, socket_timeout=1, socket_connect_timeout=1, health_check_interval=0, retry=once)
    return Bell(quick, prefix=settings.prefix)


def _never() -> bool:
    return False


def wait_for_turn(
    bell: Bell, rt: Runtime, turn_id: str, timeout: float | None, gave_up: Callable[[], bool] = _never
) -> TurnView:
    """The turn as it is when it is done, when the time is over, or when whoever waits has given up. `timeout` None:
    wait for ever.
    """
    until = None if timeout is None else time.monotonic() + timeout
    with bell.listening(turn_id) as word:
        is_told = False
        while True:
            left = LOOK if until is None else until - time.monotonic()
            is_over = left <= 0 or gave_up()
            if is_told or is_over or views.is_done(rt.store, turn_id):
                turn = views.turn(rt.store, turn_id)
                if turn.status is TurnStatus.DONE or is_over:
                    return turn
            is_told = _hear(word, min(LOOK, left), gave_up)


def _hear(word: Word, seconds: float, gave_up: Callable[[], bool]) -> bool:
    """Whether word came, within so many seconds."""
    until = time.monotonic() + seconds
    while (left := until - time.monotonic()) > 0 and not gave_up():
        if word.wait(min(HEED, left)):
            return True
        if not word.can_come:
            break
    return False


def wait_for_answer(bell: Bell, rt: Runtime, turn_id: str, timeout: float | None) -> TurnView:
    """The same; a turn that was taken into a run is answered by that run, so its end is waited for too."""
    until = None if timeout is None else time.monotonic() + timeout
    turn = wait_for_turn(bell, rt, turn_id, timeout)
    if turn.disposition is not Disposition.STEERED or turn.run_id is None:
        return turn
    left = None if until is None else max(0.0, until - time.monotonic())
    wait_for_turn(bell, rt, views.run(rt.store, turn.run_id).turn_id, left)
    return views.turn(rt.store, turn_id)


class Bell:
    """Rings when a turn is done, as long as there is a Redis. Safe to share between threads.

    A subscription is a connection of its own, dear to make, so it is kept for whoever waits next. What it still hears
    of the turn before is one look too many.
    """

    def __init__(self, redis: Redis | None, *, prefix: str) -> None:
        self._redis = redis
        self._prefix = prefix
        self._idle: queue.SimpleQueue[PubSub] = queue.SimpleQueue()

    @contextmanager
    def listening(self, turn_id: str) -> Iterator[Word]:
        subscription = self._subscription(done_channel(self._prefix, turn_id))
        word = Word(subscription)
        try:
            yield word
        finally:
            if subscription is not None:
                keeps = word.can_come and self._idle.qsize() < KEPT
                self._idle.put(subscription) if keeps else _close(subscription)

    def close(self) -> None:
        while not self._idle.empty():
            _close(self._idle.get())
        if self._redis is not None:
            self._redis.close()

    def _subscription(self, channel: str) -> PubSub | None:
        """One that Redis has confirmed: from here on no word is missed while Redis is up."""
        if self._redis is None:
            return None
        try:
            kept = self._idle.get_nowait()
        except queue.Empty:
            kept = None
        if kept is not None and _listens_to(kept, channel):
            return kept
        fresh: PubSub = self._redis.pubsub()  # type: ignore[no-untyped-call]  # redis-py left it without annotations
        return fresh if _listens_to(fresh, channel) else None


class Word:
    """The word that a turn is done, from Redis as long as there is one."""

    def __init__(self, subscription: PubSub | None) -> None:
        self._subscription = subscription

    @property
    def can_come(self) -> bool:
        return self._subscription is not None

    def wait(self, seconds: float) -> bool:
        """Until word comes, or the time is over; sooner where nobody can bring word. Whether it came."""
        if self._subscription is None:
            time.sleep(min(seconds, LOOK_ALONE))
            return False
        try:
            return self._subscription.get_message(timeout=seconds) is not None
        except (RedisError, OSError) as error:
            log.info("redis does not answer; the database is asked instead", error=str(error))
            self._subscription = None
            return False


def _listens_to(subscription: PubSub, channel: str) -> bool:
    """It hears of this channel from here on, and of none besides. One that cannot is closed."""
    until = time.monotonic() + LOOK
    try:
        if subscription.subscribed:
            subscription.unsubscribe()  # type: ignore[no-untyped-call]  # as above
        subscription.subscribe(channel)
        while (left := until - time.monotonic()) > 0:
            heard = subscription.get_message(timeout=left)
            if heard and heard["type"] == "subscribe" and heard["channel"] == channel.encode():
                return True
    except (RedisError, OSError) as error:
        log.info("redis does not answer; the database is asked instead", error=str(error))
    _close(subscription)
    return False


def _close(subscription: PubSub) -> None:
    try:
        subscription.close()
    except (RedisError, OSError) as error:
        log.debug("subscription was not closed in good order", error=str(error))
