"""The poll loop: a thread for each binding, which looks, waits as long as it is told, and looks again.

One that fails or hangs stops no other. It ends within the second: a thread that waits for a channel is left behind, and
what it would have brought is fetched by the next process, because nothing of it was stored.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Collection, Sequence

import structlog

from chordage.orchestrator.core.channels import BACKOFF
from chordage.orchestrator.core.errors import UserError

log = structlog.get_logger()

SOONEST = 0.05  # seconds between two looks, whatever a channel says
LONGEST_LOOK = 600.0  # after so long nobody holds a binding for a look that hangs
GRACE = 1.0


class Poller:
    """`look` carries one look out and says after how many seconds to look again; it raises where it could not note
    what went wrong.
    """

    def __init__(
        self,
        names: Sequence[str],
        *,
        look: Callable[[str], float],
        renew: Callable[[Collection[str]], None],
        let_go: Callable[[Collection[str]], None],
        beat: float,
    ) -> None:
        self._names = names
        self._look = look
        self._renew = renew
        self._let_go = let_go
        self._beat = beat
        self._began: dict[str, float] = {}
        self._ending = threading.Event()
        self._threads = [
            threading.Thread(target=self._go_round, args=(name,), name=f"poll {name}", daemon=True) for name in names
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()
        threading.Thread(target=self._keep, name="poll leases", daemon=True).start()

    def end(self, wake: Callable[[], None]) -> None:
        """`wake` breaks off what waits for a channel. What is being stored is stored."""
        self._ending.set()
        until = time.monotonic() + GRACE
        for thread in self._threads:
            thread.join(0.05)
        wake()
        for thread in self._threads:
            thread.join(max(0.0, until - time.monotonic()))
        self._quietly(self._let_go)

    def _go_round(self, name: str) -> None:
        failures = itertools.count(1)
        while not self._ending.is_set():
            self._began[name] = time.monotonic()
            try:
                wait = self._look(name)
                failures = itertools.count(1)
            except Exception as error:
                wait = BACKOFF.delay(next(failures), 0.5)
                self._tell(name, error, wait)
            self._ending.wait(max(wait, SOONEST))

    def _tell(self, name: str, error: Exception, wait: float) -> None:
        if self._ending.is_set():
            return
        bug = None if isinstance(error, UserError) else error
        log.warning("no look at the channel", channel=name, error=str(error), rest=round(wait, 1), exc_info=bug)

    def _keep(self) -> None:
        """Leases are renewed as long as looks end, also between two of them."""
        while not self._ending.wait(self._beat):
            self._quietly(self._renew)

    def _quietly(self, act: Callable[[Collection[str]], None]) -> None:
        """A lease that was not renewed costs a second look at most, and one not given back some seconds."""
        now = time.monotonic()
        alive = [name for name in self._names if now - self._began.get(name, now) < LONGEST_LOOK]
        try:
            act(alive)
        except Exception as error:
            log.warning("leases of channels are not kept", error=str(error))
