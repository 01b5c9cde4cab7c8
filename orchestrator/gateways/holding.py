"""What this process has in hand: the list the heartbeat renews, and how work in hand is told to end.

In memory only. A process that dies forgets it, its leases run out, and truth has the rest.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from chordage.orchestrator.core.errors import Aborted, ChordageError, HandedOver, OutOfTime


@dataclass(kw_only=True, slots=True, eq=False)
class Hand:
    """One piece of work in hand. Implements the Abort port."""

    run_id: str
    epoch: int
    call_id: str | None = None
    key: str | None = None  # under which Redis knows that it is in hand
    thread_id: str = ""
    token: str | None = None  # of the claim, where there is one
    behind: list[str] = field(default_factory=list)  # calls of a batch that wait for their turn in this process
    may_hand_over: bool = True
    worker: str = ""  # whose; empty: of this process
    left: Callable[[], float] | None = None  # seconds until the time limit of its run; None: it has none
    begun: bool = False  # of a call: its tool may have acted
    since: float = field(default_factory=time.monotonic)
    beaten: float | None = None
    _told: threading.Event = field(default_factory=threading.Event)
    _why: ChordageError | None = None

    def tell(self, why: ChordageError) -> None:
        self._why = self._why or why
        self._told.set()

    def is_due(self, *, first: float, every: float) -> bool:
        """Whether its lease should be renewed: soon after the start for the first time, then at every beat."""
        now = time.monotonic()
        return now - self.since >= first if self.beaten is None else now - self.beaten >= every

    def renewed(self) -> None:
        self.beaten = time.monotonic()

    def check(self) -> None:
        if self._why is not None:
            raise self._why
        if self.left is not None and self.left() <= 0:
            raise OutOfTime

    def wait(self, seconds: float) -> None:
        self._told.wait(seconds if self.left is None else max(0.0, min(seconds, self.left())))
        self.check()


class Held:
    def __init__(self) -> None:
        self._hands: set[Hand] = set()
        self._lock = threading.Lock()
        self._changed: Callable[[Collection[Hand]], None] = lambda _hands: None
        self.stopping = False

    def watched_by(self, changed: Callable[[Collection[Hand]], None]) -> None:
        """`changed` is called with all that is in hand, before the work begins and when it is over."""
        self._changed = changed

    @contextmanager
    def holding(self, hand: Hand) -> Iterator[Hand]:
        with self._lock:
            self._hands.add(hand)
            self._changed(self._hands)
        try:
            if self.stopping and hand.may_hand_over:
                hand.tell(HandedOver())
            yield hand
        finally:
            with self._lock:
                self._hands.discard(hand)
                self._changed(self._hands)

    def all(self) -> list[Hand]:
        with self._lock:
            return list(self._hands)

    def abort(self, hands: Collection[Hand]) -> None:
        for hand in hands:
            hand.tell(Aborted())

    def hand_over(self) -> None:
        """The process is stopping: what only waits for a model goes to another process now."""
        self.stopping = True
        for hand in self.all():
            if hand.may_hand_over:
                hand.tell(HandedOver())
