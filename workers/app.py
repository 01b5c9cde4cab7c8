"""The Celery app: `celery -A chordage worker`. Made once per process, from that process's settings."""

from __future__ import annotations

from functools import cache, cached_property, partial
from typing import Any

from celery import Celery

from chordage.config.inert import inert
from chordage.config.queues import celery_settings
from chordage.config.settings import Settings, SettingsFault
from chordage.orchestrator.core.errors import UserError
from chordage.orchestrator.core.groups import ALL_QUEUES
from chordage.tasks import tasks
from chordage.tasks.tasks import StageTask
from chordage.workers import hooks, results, transport
from chordage.workers.bootstrap import redis_from, runtime_from
from chordage.workers.fleet.fleet_file import settings_for_cli
from chordage.workers.one_per_process import OnePerProcess
from chordage.workers.worker_options import worker_options


class FleetApp(Celery):
    """A Celery whose workers are ours, whoever starts them."""

    settings: Settings

    @cached_property
    def Worker(self) -> Any:  # noqa: N802 - Celery's name
        from chordage.workers.fleet_worker import FleetWorker  # with all that a worker needs

        return self.subclass_with_self(FleetWorker, settings=self.settings)


def make_app(settings: Settings, *, own_transport: bool = True) -> Celery:
    """`own_transport`: off for Flower, whose page of the broker knows Redis only by kombu's own name for it."""
    redis_from(settings).close()  # says what to do when no Redis is set, where Celery would silently look for RabbitMQ
    app = FleetApp("chordage", set_as_current=False, fixups=[])  # a fixup could make it the default
    app.settings = settings
    address = settings.redis_address
    assert address is not None
    app.conf.update(celery_settings(settings, ALL_QUEUES), result_backend=results.url_of(address))
    if own_transport:
        app.conf.update(transport.settings_of(address))
    _ = app.amqp.producer_pool  # made now: two threads that made it at once would lose its slots to each other

    build_runtime = OnePerProcess(partial(runtime_from, settings, carries_out=True))

    class Stage(StageTask):
        abstract = True

    Stage.build_runtime = build_runtime
    tasks.register(app, Stage, tool_time_limit=settings.tool_time_limit)
    hooks.connect(app, settings, build_runtime)
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
