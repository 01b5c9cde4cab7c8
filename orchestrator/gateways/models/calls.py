"""The model call a thread has in hand: when it must end, and whether it shall end early.

A thread that waits in a socket cannot be interrupted, so it never waits for longer than a slice and asks in between.
The transport owns one `Calls`; sockets ask it because nothing else passes through httpx and httpcore to them.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from chordage.orchestrator.gateways.ports import Abort

SLICE = 0.6  # together with CHECK_EVERY below the second within which an abort is noticed
CHECK_EVERY = 0.1  # a stream that flows has hundreds of reads a second; not each of them asks


class Call:
    __slots__ = ("_abort", "_next_check", "deadline", "timeout")

    def __init__(self, abort: Abort, timeout: float) -> None:
        self._abort = abort
        self._next_check = 0.0
        self.timeout = timeout
        self.deadline = time.monotonic() + timeout

    def check(self) -> None:
        now = time.monotonic()
        if now >= self._next_check:
            self._next_check = now + CHECK_EVERY
            self._abort.check()

    def hurry(self, seconds: float) -> None:
        self.deadline = min(self.deadline, time.monotonic() + seconds)


class Calls(threading.local):
    current: Call | None = None

    @contextmanager
    def holding(self, call: Call) -> Iterator[Call]:
        before, self.current = self.current, call
        try:
            yield call
        finally:
            self.current = before

    def slices(self, timeout: float | None, too_late: type[Exception]) -> Iterator[float]:
        """How long to wait next, until the caller has what it waits for. Ends in too_late, Aborted or HandedOver."""
        silent_until = math.inf if timeout is None else time.monotonic() + timeout
        while True:
            call = self.current
            if call is not None:
                call.check()
            now = time.monotonic()
            if call is not None and now >= call.deadline:
                raise too_late(f"not finished within {call.timeout:g} s")
            if now >= silent_until:
                raise too_late(f"nothing happened for {timeout:g} s")
            yield min(SLICE, silent_until - now, call.deadline - now if call else SLICE)
