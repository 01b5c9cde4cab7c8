"""The thread beside a worker's thread, in which that worker's tools run.

A tool runs apart from the thread that waits for it, so that the wait can end at the timeout or when the call is
cancelled: in a prefork child as well as in a threads pool, without signals. The side thread is kept for the next call
(starting one costs more than all else the executor does) and is left to itself when its tool does not come back. Python
cannot kill a thread: such a tool goes on until it ends, or until Celery's hard time limit ends the prefork child.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import SimpleQueue

_Jobs = SimpleQueue[Callable[[], object] | None]


class SideThread:
    """Ends when it is dismissed, or when nobody holds this object any more."""

    def __init__(self) -> None:
        self._jobs: _Jobs = SimpleQueue()
        self._thread = threading.Thread(target=_serve, args=(self._jobs,), name="chordage-tool", daemon=True)
        self._thread.start()

    @property
    def alive(self) -> bool:
        return self._thread.is_alive()  # False in a child process that was forked off

    def give(self, job: Callable[[], object]) -> None:
        self._jobs.put(job)

    def dismiss(self) -> None:
        self._jobs.put(None)

    def __del__(self) -> None:
        self.dismiss()


class SideThreads(threading.local):
    """For each thread the idle side thread it may use next."""

    idle: SideThread | None = None

    def take(self) -> SideThread:
        side, self.idle = self.idle, None
        return side if side is not None and side.alive else SideThread()

    def give_back(self, side: SideThread) -> None:
        self.idle = side


def _serve(jobs: _Jobs) -> None:
    while (job := jobs.get()) is not None:
        job()
        del job  # or the last call's arguments and result would stay alive until the next call
