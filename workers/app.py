"""The Celery app: `celery -A chordage worker`. Made once per process, from that process's settings."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from functools import cache, cached_property, partial
from typing import Any, Generic, TypeVar

from celery import Celery

from chordage.config.celery_settings import celery_settings
from chordage.config.settings import Settings, SettingsFault
from chordage.orchestrator.core.errors import UserError
from chordage.orchestrator.core.groups import ALL_QUEUES
from chordage.orchestrator.core.inert import inert
from chordage.tasks import tasks
from chordage.tasks.tasks import StageTask
from chordage.workers import chord_backend, signals, transport
from chordage.workers.bootstrap import redis_from, runtime_from
from chordage.workers.fleet.fleet_file import settings_for_cli
from chordage.workers.worker_plan import worker_options

T = TypeVar("T")


class FleetApp(Celery):
    """A Celery app whose workers are ours, also when Celery's own command starts them."""

    settings: Settings

    @cached_property
    def Worker(self) -> Any:  # noqa: N802 - Celery's name
        from chordage.workers.worker import FleetWorker  # imports all that a worker needs

        return self.subclass_with_self(FleetWorker, settings=self.settings)


class PerProcess(Generic[T]):
    """Makes a value once in each process, however many threads ask for it first.

    A child makes its own: its parent's connections, threads and work in flight are not usable in it. It takes a lock of
    its own too, because a fork may happen while another thread of the parent holds the parent's.
    """

    def __init__(self, make: Callable[[], T]) -> None:
        self._make = make
        self._made: dict[int, T] = {}
        self._making: dict[int, threading.Lock] = {}

    def __call__(self) -> T:
        pid = os.getpid()
        if pid not in self._made:
            with self._making.setdefault(pid, threading.Lock()):
                if pid not in self._made:
                    self._made[pid] = self._make()
        return self._made[pid]


def make_app(settings: Settings, *, own_transport: bool = True) -> Celery:
    """`own_transport`: off for Flower, whose broker page knows Redis only by the name of kombu's own transport."""
    redis_from(settings).close()  # raises when no Redis is set, where Celery would silently look for RabbitMQ
    app = FleetApp("chordage", set_as_current=False, fixups=[])  # a fixup could make it the default
    app.settings = settings
    address = settings.redis_address
    assert address is not None
    app.conf.update(
        celery_settings(settings, ALL_QUEUES),
        result_backend=chord_backend.url_of(address),
        worker_consumer=f"{tasks.NEWER}:TolerantConsumer",
    )
    if own_transport:
        app.conf.update(transport.settings_of(address))
    _ = app.amqp.producer_pool  # made now: two threads that made it at once would lose its slots to each other

    build_runtime = PerProcess(partial(runtime_from, settings, carries_out=True, hands_on=True))

    class Stage(StageTask):
        abstract = True

    Stage.build_runtime = build_runtime
    tasks.register(app, Stage, tool_time_limit=settings.tool_time_limit)
    signals.connect(app, settings, build_runtime)
    app.user_options["worker"].update(worker_options())
    return app


def __getattr__(name: str) -> Celery:
    """`app` is made when it is first asked for, so that importing this module needs no settings."""
    if name != "app":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return _app()


@cache
def _app() -> Celery:
    try:
        return make_app(settings_for_cli())
    except (UserError, SettingsFault) as error:  # of Celery's own command line, which would print a traceback
        raise SystemExit(inert(f"chordage: {error}")) from error
