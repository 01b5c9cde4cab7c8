"""A piece of somebody else's code with an end: it runs in a thread of its own, which is left behind when it hangs.

Python cannot end a thread. One that hangs costs its memory until its process ends, and keeps no process from ending.
"""

from __future__ import annotations

import contextvars
import threading
import time
from collections.abc import Callable
from typing import Generic, TypeVar

from chordage.orchestrator.plugins import django_connections

T = TypeVar("T")
SLICE = 0.5  # seconds between two checks


class TookTooLong(Exception):
    """The job has not come back; its thread is left to itself."""


class JobRaised(Exception):
    """Apart from what may be raised into the thread that waits: its signals are not the job's failure."""

    def __init__(self, error: BaseException) -> None:
        super().__init__(str(error))
        self.error = error


class _Job(Generic[T]):
    def __init__(self, job: Callable[[], T]) -> None:
        self._job = job
        self.results: list[T] = []
        self.raised: BaseException | None = None

    def run(self) -> None:
        try:
            with django_connections.closed_afterwards():
                result = self._job()
            self.results.append(result)
        except BaseException as error:  # also SystemExit: it would end this thread and nobody would know
            self.raised = error


def within(seconds: float, job: Callable[[], T], name: str, check: Callable[[], None] = lambda: None) -> T:
    """What the job returns; JobRaised or TookTooLong when it does not. It sees the caller's context variables. `check`
    is called about twice a second; what it raises ends the wait.
    """
    kept = _Job(job)
    thread = threading.Thread(target=contextvars.copy_context().run, args=(kept.run,), name=name, daemon=True)
    thread.start()
    deadline = time.monotonic() + seconds
    while thread.is_alive() and (left := deadline - time.monotonic()) > 0:
        thread.join(min(left, SLICE))
        if thread.is_alive():
            check()
    if kept.raised is not None:
        raise JobRaised(kept.raised)
    if not kept.results:
        raise TookTooLong
    return kept.results[0]
