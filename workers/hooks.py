"""What runs beside the tasks of a worker: heartbeats, rescue, the watch for deafness, and an orderly end."""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Callable
from typing import Any

import structlog
from celery import Celery, signals

from chordage.config import log as logging_config
from chordage.config.inert import inert
from chordage.config.settings import Settings
from chordage.orchestrator import stages
from chordage.orchestrator.core.errors import Unavailable, UserError
from chordage.orchestrator.gateways.room.agents import Room
from chordage.orchestrator.runtime import Runtime
from chordage.tasks.courier import Courier
from chordage.workers import connections, team_app
from chordage.workers.beats import Beats
from chordage.workers.bootstrap import check_services, redis_from
from chordage.workers.deafness import Watch
from chordage.workers.projecting import Projections

log = structlog.get_logger()

PREFORK = "celery.concurrency.prefork"


def connect(app: Celery, settings: Settings, runtime: Callable[[], Runtime]) -> None:
    beats = Beats(settings, runtime)
    sweeps = Sweeps(app, settings, runtime)
    projections = Projections(app, settings, runtime)

    @signals.setup_logging.connect(weak=False)
    def set_up_logging(**_: Any) -> None:
        logging_config.configure(settings.log_level, settings.log_format)

    @signals.worker_init.connect(weak=False)
    def before_anything_runs(**_: Any) -> None:
        try:
            check_services(settings)
        except UserError as error:
            raise SystemExit(inert(f"chordage: {error}")) from error
        runtime()  # before the first task, of which several may come at once
        beats.share()
        gc.collect()
        gc.freeze()  # what is loaded by now stays: nobody need walk it again, and children share its pages

    @signals.celeryd_after_setup.connect(weak=False)
    def before_the_pool(instance: Any, **_: Any) -> None:
        team_app.make_current(settings)
        wanted = connections.of_threads(settings)
        if instance.pool_cls.__module__ == PREFORK:
            wanted = connections.of_processes(instance.concurrency)
            runtime().store.limit_connections(connections.OF_A_PARENT)
        try:
            connections.check(settings, wanted, "this worker")
        except UserError as error:
            raise SystemExit(inert(f"chordage: {error}")) from error

    @signals.worker_process_init.connect(weak=False)
    def in_a_child(**_: Any) -> None:
        team_app.make_current(settings)
        team_app.let_tools_wait()
        runtime().store.limit_connections(connections.OF_A_CHILD)
        beats.start_in_a_child()

    @signals.worker_ready.connect(weak=False)
    def ready(sender: Any, **_: Any) -> None:
        team_app.let_tools_wait()
        beats.start(sender.pool)
        sweeps.start()
        projections.start()
        Watch(app, settings, sender).start()

    @signals.worker_process_shutdown.connect(weak=False)
    @signals.worker_shutdown.connect(weak=False)
    def going(**_: Any) -> None:
        """MCP servers that this process has started end by themselves when it is gone. One that hangs is killed."""
        agents = runtime().agents
        if isinstance(agents, Room):
            agents.close()

    @signals.worker_shutting_down.connect(weak=False)
    def shutting_down(**_: Any) -> None:
        """What only waits for a model is handed over at once; tools are given the time that Celery gives them."""
        sweeps.stop()
        projections.stop()
        runtime().in_flight.hand_over()


class Sweeps:
    """Rescue from a timer in every worker, so that a dead beat costs nothing. One worker a slot sweeps for all."""

    def __init__(self, app: Celery, settings: Settings, runtime: Callable[[], Runtime]) -> None:
        self._courier = Courier(app)
        self._every = settings.sweep
        self._prefix = settings.prefix
        self._settings = settings
        self._runtime = runtime
        self._stop = threading.Event()

    def start(self) -> None:
        threading.Thread(target=self._run, name="chordage-rescue", daemon=True).start()

    def stop(self) -> None:
        self._stop.set()

    def _run(self) -> None:
        redis = redis_from(self._settings)
        self._sweep()
        while not self._stop.wait(self._every / 2):
            try:
                slot = int(time.time() / self._every)
                if redis.set(f"{self._prefix}sweep:{slot}", 1, nx=True, px=int(self._every * 3000)):
                    self._sweep()
            except Exception as error:
                log.warning("sweep missed", error=str(error))

    def _sweep(self) -> None:
        try:
            self._courier.send(stages.rescue(self._runtime()))
        except Unavailable as error:
            log.warning("sweep missed", error=str(error))
        except Exception:
            log.exception("sweep failed")
