"""The work of this process that is in flight: the heartbeat renews its leases, and aborts reach it through here.

In memory only. When the process dies, the list is lost, the leases run out, and the database still knows the work.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from chordage.orchestrator.core.errors import Aborted, ChordageError, HandedOver, OutOfTime


@dataclass(kw_only=True, slots=True, eq=False)
class InFlightWork:
    """A model call, or a batch of tool calls. Implements the Abort port."""

    run_id: str
    epoch: int
    call_id: str | None = None
    key: str | None = None  # the key in Redis that says that it is in flight
    thread_id: str = ""
    token: str | None = None  # of the claim, if there is one
    behind: list[str] = field(default_factory=list)  # the calls of a batch that this process has yet to begin
    may_hand_over: bool = True
    worker: str = ""  # empty: this process
    left: Callable[[], float] | None = None  # seconds until the time limit of its run; None: no limit
    paused: Callable[[float], None] = lambda _seconds: None  # for how long it waits before it tries again
    begun: bool = False  # of a call: its tool may have acted
    since: float = field(default_factory=time.monotonic)
    beaten: float | None = None
    _stopped: threading.Event = field(default_factory=threading.Event)
    _why: ChordageError | None = None

    def interrupt(self, why: ChordageError) -> None:
        """Stop it with this error; the first error counts."""
        self._why = self._why or why
        self._stopped.set()

    def is_due(self, *, first: float, every: float) -> bool:
        """Whether to renew its lease: `first` seconds after the start, then `every` so many."""
        now = time.monotonic()
        return now - self.since >= first if self.beaten is None else now - self.beaten >= every

    def renewed(self) -> None:
        self.beaten = time.monotonic()

    def check(self) -> None:
        if self._why is not None:
            raise self._why
        if self.left is not None and self.left() <= 0:
            raise OutOfTime

    def back_off(self, seconds: float) -> None:
        """Wait before another attempt, so that those who ask can see until when."""
        self.paused(seconds)
        self.wait(seconds)

    def wait(self, seconds: float) -> None:
        self._stopped.wait(seconds if self.left is None else max(0.0, min(seconds, self.left())))
        self.check()


class InFlight:
    def __init__(self) -> None:
        self._work: set[InFlightWork] = set()
        self._lock = threading.Lock()
        self._changed: Callable[[Collection[InFlightWork]], None] = lambda _work: None
        self.stopping = False

    def watched_by(self, changed: Callable[[Collection[InFlightWork]], None]) -> None:
        """Call `changed` with all work in flight, before each piece begins and after it has ended."""
        self._changed = changed

    @contextmanager
    def tracking(self, work: InFlightWork) -> Iterator[InFlightWork]:
        with self._lock:
            self._work.add(work)
            self._changed(self._work)
        try:
            if self.stopping and work.may_hand_over:
                work.interrupt(HandedOver())
            yield work
        finally:
            with self._lock:
                self._work.discard(work)
                self._changed(self._work)

    def all(self) -> list[InFlightWork]:
        with self._lock:
            return list(self._work)

    def abort(self, work: Collection[InFlightWork]) -> None:
        for piece in work:
            piece.interrupt(Aborted())

    def hand_over(self) -> None:
        """The process stops: give up model calls at once, so that another process repeats them."""
        self.stopping = True
        for work in self.all():
            if work.may_hand_over:
                work.interrupt(HandedOver())
