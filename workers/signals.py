"""What a worker does at Celery's signals: check its services, start its timers, and stop them."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

from celery import Celery, signals

from chordage.config import log as logging_config
from chordage.config.settings import Settings
from chordage.orchestrator.core.errors import UserError
from chordage.orchestrator.core.inert import inert
from chordage.orchestrator.gateways.room.agents import Room
from chordage.orchestrator.runtime import Runtime
from chordage.workers import connections, team_app
from chordage.workers.bootstrap import check_services
from chordage.workers.stalled_consumer import ConsumerWatch
from chordage.workers.timers import Heartbeat, Projector, Sweeper, TraceExporter

PREFORK = "celery.concurrency.prefork"


def connect(app: Celery, settings: Settings, runtime: Callable[[], Runtime]) -> None:
    sweeper = Sweeper(app, settings, runtime)
    heartbeat = Heartbeat(settings, runtime, sweeper.hurry, lambda: tuple(app.amqp.queues.consume_from))
    projectors = [Projector(app, settings, runtime)]
    if settings.otlp_endpoint is not None:
        projectors.append(TraceExporter(app, settings, runtime))

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
        heartbeat.share()
        gc.collect()
        gc.freeze()  # what is loaded by now stays: the collector skips it, and children share its pages

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
        heartbeat.start_in_child()

    @signals.worker_ready.connect(weak=False)
    def ready(sender: Any, **_: Any) -> None:
        team_app.let_tools_wait()
        heartbeat.start(sender.pool)
        sweeper.start()
        for projector in projectors:
            projector.start()
        ConsumerWatch(app, settings, sender).start()

    @signals.worker_shutdown.connect(weak=False)
    def worker_ended(**_: Any) -> None:
        heartbeat.end()

    @signals.worker_process_shutdown.connect(weak=False)
    @signals.worker_shutdown.connect(weak=False)
    def ended(**_: Any) -> None:
        """MCP servers that this process has started end with it. One that hangs is killed here."""
        agents = runtime().agents
        if isinstance(agents, Room):
            agents.close()

    @signals.worker_shutting_down.connect(weak=False)
    def shutting_down(**_: Any) -> None:
        """Hand over at once the work that waits for a model. Tools get the grace period."""
        sweeper.stop()
        for projector in projectors:
            projector.stop()
        runtime().in_flight.hand_over()
