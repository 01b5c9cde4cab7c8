"""How many deliveries were accepted and refused: in Redis for all processes together, and in a file for people.

Both are for display only, and no request waits for them. A request adds one in memory; a thread writes the sum once a
second, while there is something new.
"""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import structlog
from redis import Redis
from redis.exceptions import RedisError

from chordage.orchestrator.core.webhooks import DeliveryOutcome
from chordage.orchestrator.system import private_files

log = structlog.get_logger()

WRITE_SECONDS = 1.0
LAST = "last"


@dataclass(slots=True)
class DeliveryCounts:
    outcomes: Counter[str] = field(default_factory=Counter)
    last: dict[str, Any] | None = None  # the last delivery that was accepted

    def as_json(self) -> dict[str, Any]:
        refused = {key: count for key, count in sorted(self.outcomes.items()) if key != DeliveryOutcome.ACCEPTED}
        return {"accepted": self.outcomes[DeliveryOutcome.ACCEPTED], "refused": refused, "last": self.last}


class SharedCounts:
    """Of all processes together. Redis may lose them: the turns are in the database."""

    def __init__(self, redis: Redis, *, prefix: str) -> None:
        self._redis = redis
        self._prefix = prefix

    def add(self, name: str, new: DeliveryCounts) -> DeliveryCounts:
        """The sum, with these added."""
        key = f"{self._prefix}hooks:{name}"
        with self._redis.pipeline(transaction=True) as pipe:
            for outcome, count in new.outcomes.items():
                pipe.hincrby(key, outcome, count)
            if new.last is not None:
                pipe.hset(key, LAST, json.dumps(new.last))
            pipe.hgetall(key)
            stored: Mapping[bytes, bytes] = pipe.execute()[-1]
        values = {field.decode(): value for field, value in stored.items()}
        last = json.loads(values.pop(LAST)) if LAST in values else None
        return DeliveryCounts(outcomes=Counter({outcome: int(count) for outcome, count in values.items()}), last=last)

    def of(self, name: str) -> DeliveryCounts:
        return self.add(name, DeliveryCounts())


class WebhookStats:
    """`folder`: for one file per binding. Names of bindings are file names: hooks.toml takes no others."""

    def __init__(self, counts: SharedCounts, folder: Path, *, every: float = WRITE_SECONDS) -> None:
        self._counts = counts
        self._folder = folder
        self._every = every
        self._lock = threading.Lock()
        self._new: dict[str, DeliveryCounts] = {}
        self._timer: threading.Timer | None = None

    def count(self, name: str, outcome: DeliveryOutcome, last: dict[str, Any] | None = None) -> None:
        with self._lock:
            new = self._new.setdefault(name, DeliveryCounts())
            new.outcomes[outcome.value] += 1
            new.last = last or new.last
            if self._timer is None:
                self._timer = threading.Timer(self._every, self._write_all)
                self._timer.name, self._timer.daemon = "chordage-hooks", True
                self._timer.start()

    def close(self) -> None:
        with self._lock:
            timer = self._timer
        if timer is not None:
            timer.cancel()
            self._write_all()

    def _write_all(self) -> None:
        with self._lock:
            self._timer = None
            new, self._new = self._new, {}
        for name, counts in new.items():
            try:
                total = self._counts.add(name, counts)
                folder = private_files.folder(self._folder)
                private_files.write(folder / f"{name}.json", json.dumps(total.as_json(), indent=2) + "\n")
            except RedisError as error:
                log.warning("the counts of a webhook are kept for later", hook=name, error=str(error))
                self._keep(name, counts)
            except OSError as error:
                log.warning("the stats file of a webhook cannot be written", hook=name, error=str(error))

    def _keep(self, name: str, counts: DeliveryCounts) -> None:
        """Add them to the next ones."""
        with self._lock:
            new = self._new.setdefault(name, DeliveryCounts())
            new.outcomes.update(counts.outcomes)
            new.last = new.last or counts.last
