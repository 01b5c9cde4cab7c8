"""The bus from a timer in every worker, so that it needs no beat. One worker a slot copies for all."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import structlog
from celery import Celery
from redis import Redis
from redis.exceptions import RedisError

from chordage.config.settings import Settings
from chordage.orchestrator import stages
from chordage.orchestrator.core.errors import Unavailable
from chordage.orchestrator.core.intents import Project
from chordage.orchestrator.runtime import Runtime
from chordage.tasks.courier import Courier
from chordage.workers.bootstrap import redis_from

log = structlog.get_logger()

LONGEST = 100  # times at once again, while there is more; then others may have the slot


class Projections:
    def __init__(self, app: Celery, settings: Settings, runtime: Callable[[], Runtime]) -> None:
        self._courier = Courier(app)
        self._settings = settings
        self._runtime = runtime
        self._stop = threading.Event()
        self._not_before = 0.0

    def start(self) -> None:
        threading.Thread(target=self._run, name="chordage-projection", daemon=True).start()

    def stop(self) -> None:
        self._stop.set()

    def _run(self) -> None:
        redis = redis_from(self._settings)
        while not self._stop.wait(self._settings.project / 2):
            if time.monotonic() >= self._not_before and self._has_slot(redis):
                self._project()

    def _has_slot(self, redis: Redis) -> bool:
        """While nobody can be asked, everybody: the claim in SQL decides, and says until when nobody tries."""
        every = self._settings.project
        key = f"{self._settings.prefix}project:{int(time.time() / every)}"
        try:
            return bool(redis.set(key, 1, nx=True, px=max(1, int(every * 3000))))
        except RedisError:
            return True

    def _project(self) -> None:
        try:
            for _ in range(LONGEST):
                intents = stages.project(self._runtime())
                self._courier.send(intent for intent in intents if not isinstance(intent, Project))
                if self._stop.is_set() or not any(isinstance(intent, Project) for intent in intents):
                    return
        except Unavailable as error:
            self._not_before = time.monotonic() + self._settings.beat
            log.warning("projection missed", error=str(error))
        except Exception:
            self._not_before = time.monotonic() + self._settings.beat
            log.exception("projection failed")
