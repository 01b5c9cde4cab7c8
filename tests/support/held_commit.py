"""A commit that waits until another transaction waits for its locks."""

from __future__ import annotations

import threading

from chordage.orchestrator.store import pipeline
from support.lock_waits import has_lock_waits
from support.waiting import until
from support.world import World


class HeldCommit:
    """The next commit of one thread waits until another transaction waits for its locks."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._of: int | None = None
        self.reached = threading.Event()
        world.before_commit = self._hold

    def of_this_thread(self) -> None:
        self._of = threading.get_ident()

    def _hold(self, connection) -> None:
        if threading.get_ident() != self._of:
            return
        self._of = None
        if self._world.store.is_postgres:
            pipeline.flush(connection)  # what would go with the commit goes before it
        self.reached.set()
        until(lambda: has_lock_waits(self._world.store), "the other waits")
