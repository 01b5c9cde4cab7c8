"""What became of deliveries, counted: in Redis for all processes together, and in a file for whoever looks.

Neither is the truth, and neither is waited for. A request adds one in memory; once a second, while there is something
new, a thread of its own carries it on.
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

from chordage.orchestrator.core.webhooks import Outcome
from chordage.orchestrator.system import private_files

log = structlog.get_logger()

EVERY = 1.0  # seconds
LAST = "last"


@dataclass(slots=True)
class Counted:
    outcomes: Counter[str] = field(default_factory=Counter)
    last: dict[str, Any] | None = None  # the last delivery that was accepted


class HookCounts:
    """Of all processes together. Redis may forget them: the turns are in the database."""

    def __init__(self, redis: Redis, *, prefix: str) -> None:
        self._redis = redis
        self._prefix = prefix

    def add(self, name: str, new: Counted) -> Counted:
        """How it stands with these added."""
        with self._redis.pipeline(transaction=True) as pipe:
            for outcome, count in new.outcomes.items():
                pipe.hincrby(self._key(name), outcome, count)
            if new.last is not None:
                pipe.hset(self._key(name), LAST, json.dumps(new.last))
            pipe.hgetall(self._key(name))
            return _counted(pipe.execute()[-1])

    def of(self, name: str) -> Counted:
        return self.add(name, Counted())

    def _key(self, name: str) -> str:
        return f"{self._prefix}hooks:{name}"


def _counted(stored: Mapping[bytes, bytes]) -> Counted:
    found = {key.decode(): value for key, value in stored.items()}
    last = json.loads(found.pop(LAST)) if LAST in found else None
    return Counted(outcomes=Counter({key: int(value) for key, value in found.items()}), last=last)


def shown(counted: Counted) -> dict[str, Any]:
    """For people: what was accepted, what was refused and why, and the last that was accepted."""
    refused = {key: count for key, count in sorted(counted.outcomes.items()) if key != Outcome.ACCEPTED}
    return {"accepted": counted.outcomes[Outcome.ACCEPTED], "refused": refused, "last": counted.last}


class Tally:
    """`folder`: where the mirrors are written. Names of bindings are file names: hooks.toml takes no others."""

    def __init__(self, counts: HookCounts, folder: Path, *, every: float = EVERY) -> None:
        self._counts = counts
        self._folder = folder
        self._every = every
        self._lock = threading.Lock()
        self._new: dict[str, Counted] = {}
        self._timer: threading.Timer | None = None

    def note(self, name: str, outcome: Outcome, last: dict[str, Any] | None = None) -> None:
        with self._lock:
            new = self._new.setdefault(name, Counted())
            new.outcomes[outcome.value] += 1
            new.last = last or new.last
            self._wind_up()

    def close(self) -> None:
        with self._lock:
            timer, self._timer = self._timer, None
        if timer is not None:
            timer.cancel()
            self._carry_on()

    def _wind_up(self) -> None:
        if self._timer is None:
            self._timer = threading.Timer(self._every, self._ring)
            self._timer.name, self._timer.daemon = "chordage-hooks", True
            self._timer.start()

    def _ring(self) -> None:
        with self._lock:
            self._timer = None
        self._carry_on()

    def _carry_on(self) -> None:
        with self._lock:
            new, self._new = self._new, {}
        for name, counted in new.items():
            try:
                self._write(name, self._counts.add(name, counted))
            except RedisError as error:
                log.warning("what hooks have counted is kept for later", hook=name, error=str(error))
                self._put_back(name, counted)
            except OSError as error:
                log.warning("the mirror of a hook cannot be written", hook=name, error=str(error))

    def _put_back(self, name: str, counted: Counted) -> None:
        """It goes along with whatever is counted next."""
        with self._lock:
            new = self._new.setdefault(name, Counted())
            new.outcomes.update(counted.outcomes)
            new.last = new.last or counted.last

    def _write(self, name: str, counted: Counted) -> None:
        folder = private_files.folder(self._folder)
        private_files.write(folder / f"{name}.json", json.dumps(shown(counted), indent=2) + "\n")
