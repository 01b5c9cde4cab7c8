"""How long to wait before a failed model call is tried again."""

from __future__ import annotations

from collections.abc import Callable

FIRST = 0.5
LONGEST = 30.0
LONGEST_ASKED = 60.0  # a provider that asks for more is asked again sooner, or a fallback is


def delay(failures: int, retry_after: float | None, jitter: Callable[[], float]) -> float:
    """Seconds after the given number of failures of one model.

    Full jitter: anything between nothing and a bound that doubles. What the provider asks for comes before that, so
    that callers who were all told the same time do not all return at the same time.
    """
    spread = jitter() * min(LONGEST, FIRST * 2.0 ** (failures - 1))
    return spread if retry_after is None else min(retry_after, LONGEST_ASKED) + spread
