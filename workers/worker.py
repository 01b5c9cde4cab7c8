"""The worker that `chordage worker` and `celery -A chordage worker` both start: one class, with the same guarantees.

Its pool and queues follow from its role, its name is unique, it writes a file when it is ready, and it ends by
`GracefulShutdown`. Options of Celery that would break a guarantee are refused in one line.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

import click
import structlog
from celery import Celery, concurrency, signals
from celery.apps import worker as stock
from celery.platforms import EX_OK
from celery.worker import state

from chordage.config.settings import Settings
from chordage.orchestrator.system import private_files
from chordage.workers import room_check
from chordage.workers.pool import THREADS
from chordage.workers.worker_plan import Pool, WorkerPlan, WorkerRole, plan_of, wait_without_reserve, worker_hostname

log = structlog.get_logger()

STOCK_NAME = "celery@"  # begins the name of a worker whose name was not given
REMAP = "REMAP_SIGTERM"
TO_CHILDREN = "SIGQUIT"
SHUTDOWN_CHECK = 0.1  # seconds
SHUTDOWN_LATE = 5.0  # seconds that interrupting the tasks may take after the grace
Stock: Any = stock  # its stubs know little of it


class FleetWorker(Stock.Worker):  # type: ignore[misc]
    settings: Settings  # of the app

    def __init__(
        self,
        app: Celery | None = None,
        *,
        plan: WorkerPlan | None = None,
        role: str = WorkerRole.ALL.value,
        groups: str | None = None,
        reserved: bool = False,
        ready_file: Path | None = None,
        hostname: str | None = None,
        queues: Sequence[str] | str | None = None,
        pool: Any = None,
        pool_cls: Any = None,
        concurrency: int | str | None = None,
        task_events: bool | None = None,
        **options: Any,
    ) -> None:
        """`plan`, or else the options of `celery worker`."""
        if plan is None:
            plan = plan_of(
                WorkerRole(role),
                self.settings,
                groups=groups,
                reserved=reserved,
                name=None if hostname is None or hostname.startswith(STOCK_NAME) else hostname,
                events=bool(task_events),
                queues=(queues if isinstance(queues, str) else ",".join(queues)) if queues else None,
                pool=_pool(pool or pool_cls),
                concurrency=int(concurrency) if concurrency and str(concurrency).isdecimal() else None,
            )
            self._check(reserved=reserved, ready_file=ready_file)
        if plan.pool is Pool.PREFORK:
            _leave_sigterm_to_the_parent()
        self.ready_file = ready_file
        super().__init__(
            app or self.app,
            hostname=worker_hostname(plan.name, self.settings.state_path, numbered=plan.numbered),
            queues=list(plan.queues),
            pool_cls=THREADS if plan.pool is Pool.THREADS else "prefork",
            concurrency=plan.concurrency,
            task_events=plan.events,
            **{**options, "without_mingle": True, "without_gossip": True},
        )

    def _check(self, *, reserved: bool, ready_file: Path | None) -> None:
        """As `chordage worker` does. Database and Redis are checked at the signal worker_init, in every worker."""
        if reserved and not self.settings.reserve:
            wait_without_reserve(ready_file, log.info)
            raise SystemExit(0)
        for fault in room_check.faults_of_room(self.settings):
            log.warning("a fault of the room", fault=fault)

    def on_consumer_ready(self, consumer: Any) -> None:
        super().on_consumer_ready(consumer)
        GracefulShutdown(consumer, grace=self.settings.soft_shutdown).install()
        if self.ready_file:
            private_files.write(self.ready_file, f"{os.getpid()}\n")

    def start(self) -> NoReturn:
        """Returns never: the process ends with the worker."""
        self.app.conf.worker_soft_shutdown_timeout = 0  # GracefulShutdown has waited already
        super().start()
        if self.pidlock is not None:
            self.pidlock.release()
        end_at_once(self.exitcode)


def _pool(option: Any) -> str | None:
    """None: by role. Celery's own default looks the same as `-P prefork`."""
    kind = concurrency.get_implementation(option or "prefork")
    name = kind.__module__.rpartition(".")[2]
    if name == "thread":
        return Pool.THREADS.value
    if name != "prefork":
        raise click.UsageError(
            f"the pool {name} has no time limits, or no clean end, that turns and tools could rely on: leave -P out "
            "and give --role turns (threads), --role tools (processes) or --role all"
        )
    return None


def _leave_sigterm_to_the_parent() -> None:
    """Children of a prefork pool then ignore SIGTERM, also where a supervisor sends it to every process. Billiard reads
    the variable when it is imported; where it was imported before, this process executes itself again.
    """
    os.environ[REMAP] = TO_CHILDREN
    if Stock.REMAP_SIGTERM != TO_CHILDREN:
        sys.stdout.flush()
        sys.stderr.flush()
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])  # noqa: S606


def end_at_once(code: int | None) -> NoReturn:
    """Python would wait for every thread that is still in a tool; their messages have returned to the queue."""
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code or 0)


class GracefulShutdown:
    """Ends a worker on SIGTERM, Ctrl-C and the closing of the terminal: at once where nothing is in flight, and never
    later than its grace period. A second signal ends the grace.

    Celery either waits for ever (warm), or sleeps for the whole grace even when the last task has ended long before
    (soft). So the wait is here, and the event loop keeps running meanwhile: no new message is accepted, results and
    acknowledgements are still sent. Work that only waits for a model is handed over at once, at Celery's signal.
    Tasks that still run at the end of the grace are interrupted, and their messages return to the queue.

    Not promised: a clean end for a tool that outlives the grace. To the engine that is a worker that died inside
    the call.
    """

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
        while self._until is not None and time.monotonic() < self._until + SHUTDOWN_LATE:
            time.sleep(SHUTDOWN_CHECK)
        log.warning("the event loop did not end this worker in time; it ends now")
        os._exit(EX_OK)

    def _accept_nothing_new(self) -> None:
        if self._consumer.task_consumer:
            self._consumer.task_consumer.cancel()

    def _wait(self) -> None:
        log.info("worker is shutting down", in_flight=len(state.reserved_requests), grace=self._grace)
        self._consumer.timer.call_repeatedly(SHUTDOWN_CHECK, self._check)

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
