"""When a server that keeps failing may be tried again. The first failure costs no time: servers are restarted."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

from chordage.orchestrator.core.retry import Backoff


@dataclass(frozen=True, kw_only=True, slots=True)
class Rules:
    """All in seconds."""

    first: float = 1.0  # the wait after a second failure; it doubles with each further one
    longest: float = 30.0
    steady: float = 30.0  # a connection that held so long makes up for the failures before it
    patience: float = 3.0  # a call waits so long for its turn to try, and is refused where it would be longer
    listing_lives: float = 60.0  # then the tools are asked for anew
    news_patience: float = 2.0  # a turn waits so long for a newer list of tools when there is an older one


class Reconnect:
    def __init__(self, rules: Rules, clock: Callable[[], float]) -> None:
        self._rules = rules
        self._clock = clock
        self._failures = 0
        self._not_before = 0.0

    @property
    def has_failed(self) -> bool:
        return self._failures > 0

    @property
    def wait(self) -> float:
        """Seconds until the next try is due."""
        return max(0.0, self._not_before - self._clock())

    def failed(self, lived: float = 0.0) -> None:
        """It could not be reached, or the connection broke after so many seconds."""
        self._failures = 1 if lived >= self._rules.steady else self._failures + 1
        if self._failures > 1:
            backoff = Backoff(first=self._rules.first, longest=self._rules.longest, jitter=0.25)
            self._not_before = self._clock() + backoff.delay(self._failures - 1, random.random())
