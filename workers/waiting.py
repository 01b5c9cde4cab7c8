"""Waiting until a turn is done, at the price of one Redis subscription and hardly any SQL.

The race: a turn may end between the look at its row and the moment one listens. So one listens first, is told by Redis
that one does, and only then looks. News is lossy, so the row is looked at every second all the same; without Redis a
few times a second. It is the row alone that says that a turn is done.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
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

log = structlog.get_logger()

LOOK = 1.0  # seconds between two looks at the row while Redis is listened to
LOOK_ALONE = 0.25  # ... and while there is no Redis


def redis_for_waiting(settings: Settings) -> Redis | None:
    """A client that gives up at once: whoever waits has the rows to ask."""
    if settings.redis is None:
        return None
    once = Retry(NoBackoff(), 0)
    return Redis.from_url(settings.redis, socket_timeout=1, socket_connect_timeout=1, retry=once, max_connections=1000)


def wait_for_turn(
    redis: Redis | None, rt: Runtime, turn_id: str, timeout: float | None, *, prefix: str = "chordage:"
) -> TurnView:
    """The turn as it is when it is done, or when the time is over. `timeout` None: wait for ever."""
    until = None if timeout is None else time.monotonic() + timeout
    with listening(redis, done_channel(prefix, turn_id)) as word:
        while True:
            turn = views.turn(rt.store, turn_id)
            left = LOOK if until is None else until - time.monotonic()
            if turn.status is TurnStatus.DONE or left <= 0:
                return turn
            word.wait(min(LOOK, left))


def wait_for_answer(
    redis: Redis | None, rt: Runtime, turn_id: str, timeout: float | None, *, prefix: str = "chordage:"
) -> TurnView:
    """The same; a turn that was taken into a run is answered by that run, so its end is waited for too."""
    until = None if timeout is None else time.monotonic() + timeout
    turn = wait_for_turn(redis, rt, turn_id, timeout, prefix=prefix)
    if turn.disposition is not Disposition.STEERED or turn.run_id is None:
        return turn
    left = None if until is None else max(0.0, until - time.monotonic())
    wait_for_turn(redis, rt, views.run(rt.store, turn.run_id).turn_id, left, prefix=prefix)
    return views.turn(rt.store, turn_id)


class Word:
    """The word that a turn is done, from Redis as long as there is one."""

    def __init__(self, subscription: PubSub | None) -> None:
        self._subscription = subscription

    def wait(self, seconds: float) -> None:
        """Until word comes, or the time is over; sooner where nobody can bring word."""
        if self._subscription is None:
            time.sleep(min(seconds, LOOK_ALONE))
            return
        try:
            self._subscription.get_message(timeout=seconds)
        except (RedisError, OSError) as error:
            log.info("redis does not answer; the database is asked instead", error=str(error))
            self._subscription = None


@contextmanager
def listening(redis: Redis | None, channel: str) -> Iterator[Word]:
    if redis is None:
        yield Word(None)
        return
    subscription: PubSub = redis.pubsub()  # type: ignore[no-untyped-call]  # redis-py left it without annotations
    try:
        yield Word(subscription if _subscribed(subscription, channel) else None)
    finally:
        _close(subscription)


def _subscribed(subscription: PubSub, channel: str) -> bool:
    """Whether Redis has confirmed it: from here on no word is missed while Redis is up."""
    try:
        subscription.subscribe(channel)
        return subscription.get_message(timeout=LOOK) is not None
    except (RedisError, OSError) as error:
        log.info("redis does not answer; the database is asked instead", error=str(error))
        return False


def _close(subscription: PubSub) -> None:
    try:
        subscription.close()
    except (RedisError, OSError) as error:
        log.debug("subscription was not closed in good order", error=str(error))
