"""Ends a worker on SIGTERM: at once where nothing is in flight, and never later than its grace period.

Celery either waits for ever (warm), or sleeps for the whole grace even when the last task has ended long before (soft).
So the wait is here, and the event loop keeps running meanwhile: no new message is accepted, results and
acknowledgements are still sent. Work that only waits for a model is handed over at once, at Celery's signal. Tasks that
still run at the end of the grace are interrupted, and their messages return to the queue.

Not promised: a clean end for a tool that outlives the grace. To the engine that is a worker that died inside the call.
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

CHECK = 0.1
LATE = 5.0  # seconds that interrupting the tasks may take after the grace


class GracefulShutdown:
    """For SIGTERM, Ctrl-C and the closing of the terminal. A second signal ends the grace."""

    def __init__(self, consumer: Any, *, grace: float) -> None:
        self._consumer = consumer
        self._grace = grace
        self._until: float | None = None
        self._interrupted = False

    @property
    def begun(self) -> bool:
        return self._until is not None

    def install(self) -> None:
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, self._on_signal)

    def _on_signal(self, number: int, _frame: Any) -> None:
        if self.begun:
            self._until = time.monotonic()
            return
        self._until = time.monotonic() + self._grace
        self._accept_nothing_new()
        if not state.reserved_requests:
            _end()
        name = signal.Signals(number).name
        signals.worker_shutting_down.send(sender=self._consumer.hostname, sig=name, how="Warm", exitcode=EX_OK)
        self._consumer.hub.call_soon(self._wait)
        threading.Thread(target=self._end_without_the_loop, name="chordage-shutdown", daemon=True).start()

    def _end_without_the_loop(self) -> None:
        """While the broker is away the event loop is blocked, and does not check. Then this thread ends the process."""
        while self._until is not None and time.monotonic() < self._until + LATE:
            time.sleep(CHECK)
        log.warning("the event loop did not end this worker in time; it ends now")
        os._exit(EX_OK)

    def _accept_nothing_new(self) -> None:
        if self._consumer.task_consumer:
            self._consumer.task_consumer.cancel()

    def _wait(self) -> None:
        log.info("worker is shutting down", in_flight=len(state.reserved_requests), grace=self._grace)
        self._consumer.timer.call_repeatedly(CHECK, self._check)

    def _check(self) -> None:
        assert self._until is not None
        self._accept_nothing_new()  # a connection that was lost and made again consumes again
        if not state.reserved_requests:
            _end()
        elif time.monotonic() >= self._until and not self._interrupted:
            self._interrupted = True
            self._interrupt()

    def _interrupt(self) -> None:
        names = sorted(str(request.name) for request in state.reserved_requests)
        log.warning("the grace is over; what still runs returns to the queue", tasks=names)
        if self._consumer.pool.signal_safe:  # prefork: SystemExit is raised inside the tasks, in their processes
            os.kill(os.getpid(), signal.SIGQUIT)
        else:  # threads cannot be stopped: they end with the process
            _end()


def _end() -> None:
    """The event loop reads it in its next iteration, and ends the worker."""
    state.should_stop = EX_OK  # type: ignore[assignment]  # the stubs know only its first value, None
