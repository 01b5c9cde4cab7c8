"""When a client repeats a request: after a broken connection, 429 and 502 to 504, with growing and random pauses.

Every request that changes something carries a key which is made once for the call, so that a repetition finds what an
earlier attempt has done, also where only its answer was lost. A fork has no key, and is not repeated where it may have
arrived.
"""

from __future__ import annotations

import random
from collections.abc import Callable

import httpx

from chordage.orchestrator.core.errors import ChordageError, Unavailable
from chordage.orchestrator.core.retry import Backoff
from chordage.workers.client.problems import PREFIX, error_of, seconds_until_retry

RETRIES = 5
LONGEST_PAUSE = 30.0  # seconds; a server that asks for more is not waited for
BACKOFF = Backoff(first=0.2, longest=8.0, jitter=1.0)
AGAIN = frozenset({408, 429, 502, 503, 504})
NOTHING_DONE = frozenset({429, 503})  # the server has refused the request
BROKEN_ROOM = f"{PREFIX}broken_room"  # until a person repairs a file


class Attempts:
    """Of one call."""

    def __init__(
        self,
        retries: int = RETRIES,
        *,
        decides: bool = False,
        is_repeatable: bool = True,
        chance: Callable[[], float] = random.random,
    ) -> None:
        self._left = retries
        self._is_repeatable = is_repeatable
        self._decides = decides
        self._chance = chance
        self._failures = 0

    def pause_after(self, failure: httpx.TransportError | httpx.Response) -> float:
        """Seconds until the next attempt. Raises the error of this one if it was the last."""
        if isinstance(failure, httpx.Response):
            refusal = error_of(failure, decides=self._decides)
            return self._pause(refusal, seconds_until_retry(failure), self._again(failure))
        try:
            address = failure.request.url.copy_with(query=None, userinfo=b"")
        except RuntimeError:  # it was not sent
            address = httpx.URL("")
        problem = f"{address} cannot be reached ({type(failure).__name__}: {failure}): is the server running there?"
        error = Unavailable(problem)
        error.__cause__ = failure
        is_temporary = self._is_repeatable and not isinstance(failure, httpx.UnsupportedProtocol)
        return self._pause(error, None, is_temporary=is_temporary)

    def _again(self, response: httpx.Response) -> bool:
        wanted = AGAIN if self._is_repeatable else NOTHING_DONE
        return response.status_code in wanted and BROKEN_ROOM.encode() not in response.content

    def _pause(self, error: ChordageError, wanted: float | None, is_temporary: bool) -> float:
        self._failures += 1
        if not is_temporary or self._left <= 0 or (wanted or 0.0) > LONGEST_PAUSE:
            raise error
        self._left -= 1
        return max(wanted or 0.0, BACKOFF.delay(self._failures, self._chance()))
