"""Whether this process may judge the leases of others: only after it has been able to renew its own for a while.

A lease that was not renewed means that its holder is dead, or that it could not renew: the database was away, or the
whole machine was paused. A process that could not renew either must not judge. So the heartbeat notes each answer of
the database. A gap between two answers, on any clock, starts the count anew, and as long as the count is shorter than a
beat no lease is judged: in that time all living processes renew theirs.

Three clocks, because each misses something: the one that stops with the machine shows a process that was stopped and a
database that was away, the one that runs on shows a machine that slept, and the wall clock, with which leases are
compared, shows that it was put forward.

This does not help a machine that was paused while others ran on: for them its leases have run out.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence

Clocks = Sequence[Callable[[], float]]


def clocks() -> Clocks:
    asleep_too = getattr(time, "CLOCK_BOOTTIME", None)
    more = [] if asleep_too is None else [lambda: time.clock_gettime(asleep_too)]
    return (time.monotonic, time.time, *more)


class Steadiness:
    def __init__(self, *, gap: float, enough: float, of: Clocks | None = None) -> None:
        """`gap`: seconds between two answers that begin the count anew; `enough`: seconds without one."""
        self._clocks = clocks() if of is None else of
        self._gap = gap
        self._enough = enough
        self._since: list[float] | None = None
        self._last: list[float] | None = None
        self._lock = threading.Lock()

    def answered(self) -> None:
        """The database has just answered the heartbeat."""
        now = self._now()
        with self._lock:
            if self._last is None or not self._is_near(self._last, now):
                self._since = now
            self._last = now

    def is_due(self) -> bool:
        """Whether the database should be asked for nothing but an answer."""
        with self._lock:
            last = self._last
        return last is None or self._clocks[0]() - last[0] >= self._gap / 4

    def holds(self) -> bool:
        """To be called after reading the clock that leases are compared with: a process may be stopped in between."""
        now = self._now()
        with self._lock:
            if self._last is None or self._since is None or not self._is_near(self._last, now):
                return False
            return self._last[0] - self._since[0] >= self._enough

    def _now(self) -> list[float]:
        return [clock() for clock in self._clocks]

    def _is_near(self, before: Sequence[float], now: Sequence[float]) -> bool:
        return all(after - earlier <= self._gap for earlier, after in zip(before, now, strict=True))
