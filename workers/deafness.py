"""A worker that has gone deaf, or has lost a slot, says so and ends, for its supervisor to start another.

After some losses of Redis a consumer stays connected and receives nothing. It looks healthy: it answers pings and sends
heartbeats. The one sure sign is that its queues hold messages, it has room, and none has reached it for a while. How a
slot is lost, and how that shows: `slots.py`. What such a worker still has in hand goes on elsewhere, as after any end.
"""

from __future__ import annotations

import os
import threading
import time
from typing import Any

import structlog
from celery import Celery, signals
from celery.worker import state
from redis.exceptions import RedisError

from chordage.config.settings import Settings
from chordage.workers.bootstrap import redis_from
from chordage.workers.slots import LostSlots

log = structlog.get_logger()

LOOK = 5.0
DEAF_AFTER = 30.0
EXIT_CODE = 70


class Watch:
    def __init__(self, app: Celery, settings: Settings, consumer: Any) -> None:
        self._settings = settings
        self._consumer = consumer
        self._queues = [settings.broker_prefix + name for name in app.amqp.queues.consume_from]
        self._heard = time.monotonic()
        self._leaving = False
        self._lost = LostSlots()

    def start(self) -> None:
        signals.task_received.connect(self._hear, weak=False)
        signals.worker_shutting_down.connect(self._leave, weak=False)
        threading.Thread(target=self._run, name="chordage-deafness", daemon=True).start()

    def _hear(self, **_: Any) -> None:
        self._heard = time.monotonic()

    def _leave(self, **_: Any) -> None:
        """A worker that is leaving takes nothing new, however full its queues are."""
        self._leaving = True

    def _run(self) -> None:
        redis = redis_from(self._settings)
        while True:
            time.sleep(LOOK)
            self._look_at_slots(time.monotonic())
            try:
                waiting = any(redis.llen(name) for name in self._queues)
            except RedisError:
                waiting = False
            if not waiting or not self._has_room() or self._leaving:
                self._heard = time.monotonic()
            elif time.monotonic() - self._heard > DEAF_AFTER:
                log.critical("this worker hears nothing although its queues are full; it ends to be started anew")
                os._exit(EXIT_CODE)

    def _look_at_slots(self, now: float) -> None:
        taken = [request.id for request in list(state.reserved_requests)]
        if self._lost.seconds(self._consumer.pool, taken, now) > DEAF_AFTER and not self._leaving:
            log.critical("this worker has lost a slot: nothing is at work in it; it ends to be started anew")
            os._exit(EXIT_CODE)

    def _has_room(self) -> bool:
        return len(state.reserved_requests) < int(self._consumer.pool.num_processes)
