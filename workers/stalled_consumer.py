"""Ends a worker that receives no messages, or has lost a slot, so that its supervisor starts another.

After some losses of Redis a consumer stays connected and receives nothing. It looks healthy: it answers pings and sends
heartbeats. The one sure sign is that its queues hold messages, it has room, and none has reached it for a while.

Celery counts a slot as taken from the moment a message arrives until its task is acknowledged. What goes wrong in
between (an error in the code that acknowledges, a process of the pool that is not replaced) costs the slot for as long
as the worker lives, without a message. So what is taken is compared with what the pool executes. The two differ for a
moment whenever a task starts or ends: a slot counts as lost only when the same difference stays.

The work such a worker still has in flight is resumed elsewhere, as after any end.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Collection
from typing import Any

import structlog
from celery import Celery, signals
from celery.worker import state
from redis.exceptions import RedisError

from chordage.config.settings import Settings
from chordage.workers.bootstrap import redis_from
from chordage.workers.pool import processes, running_tasks

log = structlog.get_logger()

CHECK = 5.0
STALLED_AFTER = 30.0
EXIT_CODE = 70


class ConsumerWatch:
    def __init__(self, app: Celery, settings: Settings, consumer: Any) -> None:
        self._settings = settings
        self._consumer = consumer
        self._queues = [settings.broker_prefix + name for name in app.amqp.queues.consume_from]
        self._last_message = time.monotonic()
        self._shutting_down = False
        self._lost = LostSlots()

    def start(self) -> None:
        signals.task_received.connect(self._on_message, weak=False)
        signals.worker_shutting_down.connect(self._on_shutdown, weak=False)
        threading.Thread(target=self._run, name="chordage-consumer-watch", daemon=True).start()

    def _on_message(self, **_: Any) -> None:
        self._last_message = time.monotonic()

    def _on_shutdown(self, **_: Any) -> None:
        """From here on it accepts nothing new, however full its queues are."""
        self._shutting_down = True

    def _run(self) -> None:
        redis = redis_from(self._settings)
        while True:
            time.sleep(CHECK)
            self._check_slots(time.monotonic())
            try:
                waiting = any(redis.llen(name) for name in self._queues)
            except RedisError:
                waiting = False
            if not waiting or not self._has_room() or self._shutting_down:
                self._last_message = time.monotonic()
            elif time.monotonic() - self._last_message > STALLED_AFTER:
                log.critical("this worker receives nothing although its queues are full; it ends to be started again")
                os._exit(EXIT_CODE)

    def _check_slots(self, now: float) -> None:
        taken = [request.id for request in list(state.reserved_requests)]
        if self._lost.seconds(self._consumer.pool, taken, now) > STALLED_AFTER and not self._shutting_down:
            log.critical("this worker has lost a slot: nothing runs in it; it ends to be started again")
            os._exit(EXIT_CODE)

    def _has_room(self) -> bool:
        return len(state.reserved_requests) < int(self._consumer.pool.num_processes)


class LostSlots:
    def __init__(self) -> None:
        self._since: dict[str, float] = {}

    def seconds(self, pool: Any, taken: Collection[str], now: float) -> float:
        """For how long the longest has been lost. `taken`: the tasks that the worker has not acknowledged."""
        self._since = {slot: self._since.get(slot, now) for slot in _suspects(pool, taken)}
        return max((now - since for since in self._since.values()), default=0.0)


def _suspects(pool: Any, taken: Collection[str]) -> set[str]:
    running = running_tasks(pool)
    if running is None:
        return set()  # an unknown pool
    children = processes(pool)
    size = int(pool.num_processes)
    missing = 0 if children is None else max(0, size - len(children))
    has_room = len(running) + missing < size
    waiting = set(taken) - running if has_room else set()  # a task that waits while all slots are busy is not lost
    return waiting | {f"process {number}" for number in range(missing)}
