"""How a worker goes when it is told to: at once where nothing is in hand, and never later than its time of grace.

Celery offers to wait for ever (warm), or to sleep the whole grace through even when the last task is long over (soft).
So the wait is here, and the event loop runs on meanwhile: nothing new is taken, results and acknowledgements still go
out. What only waits for a model is handed over by the signal that is sent first. What is still running at the end of
the grace is cut short, and its message goes back to the queue.

It promises no clean end for a tool that outlives the grace: to the engine that is a worker that died inside the call.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from typing import Any

import structlog
from celery import signals
from celery.platforms import EX_OK
from celery.worker import state

log = structlog.get_logger()

LOOK = 0.1
LATE = 5.0  # seconds that cutting short may take after the grace


class Leaving:
    """For SIGTERM, Ctrl-C and the closing of the terminal. A second signal ends the grace."""

    def __init__(self, consumer: Any, *, grace: float) -> None:
        self._consumer = consumer
        self._grace = grace
        self._until: float | None = None
        self._cut = False

    @property
    def begun(self) -> bool:
        return self._until is not None

    def listen(self) -> None:
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, self._on_signal)

    def _on_signal(self, number: int, _frame: Any) -> None:
        if self.begun:
            self._until = time.monotonic()
            return
        self._until = time.monotonic() + self._grace
        self._take_nothing_new()
        if not state.reserved_requests:
            _end()
        name = signal.Signals(number).name
        signals.worker_shutting_down.send(sender=self._consumer.hostname, sig=name, how="Warm", exitcode=EX_OK)
        self._consumer.hub.call_soon(self._wait)
        threading.Thread(target=self._end_without_the_loop, name="chordage-leaving", daemon=True).start()

    def _end_without_the_loop(self) -> None:
        """While the broker is away the event loop stands still, and nobody would look. Then this is the end."""
        while self._until is not None and time.monotonic() < self._until + LATE:
            time.sleep(LOOK)
        log.warning("the event loop did not end this worker in time; it ends now")
        os._exit(EX_OK)

    def _take_nothing_new(self) -> None:
        if self._consumer.task_consumer:
            self._consumer.task_consumer.cancel()

    def _wait(self) -> None:
        log.info("worker is leaving", in_hand=len(state.reserved_requests), grace=self._grace)
        self._consumer.timer.call_repeatedly(LOOK, self._look)

    def _look(self) -> None:
        assert self._until is not None
        self._take_nothing_new()  # a lost connection that came back consumes again
        if not state.reserved_requests:
            _end()
        elif time.monotonic() >= self._until and not self._cut:
            self._cut = True
            self._cut_short()

    def _cut_short(self) -> None:
        names = sorted(str(request.name) for request in state.reserved_requests)
        log.warning("the grace is over; what is still running goes back to the queue", tasks=names)
        if self._consumer.pool.signal_safe:  # prefork: SystemExit is raised inside the tasks, in their processes
            os.kill(os.getpid(), signal.SIGQUIT)
        else:  # threads cannot be stopped: they end with the process
            _end()


def _end() -> None:
    """The event loop sees it at its next turn, and takes the worker down."""
    state.should_stop = EX_OK  # type: ignore[assignment]  # the stubs know only the None that it begins with
