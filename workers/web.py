"""The HTTP server as uvicorn starts it: `uvicorn --factory chordage.workers.web:make_app`."""

from __future__ import annotations

from functools import partial
from importlib.metadata import version

import structlog
from fastapi import FastAPI

from chordage.config import log as logging_config
from chordage.config.inert import inert
from chordage.config.settings import Settings, SettingsFault
from chordage.orchestrator import views
from chordage.orchestrator.api.routes import SOURCE, SPACE, make_server
from chordage.orchestrator.core.errors import UserError
from chordage.orchestrator.core.hosts import Hosts
from chordage.orchestrator.gateways.room.agents import Room
from chordage.orchestrator.runtime import Runtime
from chordage.orchestrator.store import schema_version
from chordage.tasks.accepting import accept, accept_together, decide
from chordage.tasks.courier import Courier
from chordage.workers import connections, team_app
from chordage.workers.app import make_app as make_celery
from chordage.workers.bootstrap import check_redis, check_services, runtime_from
from chordage.workers.fleet.fleet_file import settings_for_cli
from chordage.workers.fleet.roles import exposure_warning
from chordage.workers.turn_waiter import wait_for_turn, waiter_for
from chordage.workers.webhooks import receiver_of

log = structlog.get_logger()


def make_app() -> FastAPI:
    """For uvicorn, which prints a traceback for every exception but this one."""
    try:
        settings = settings_for_cli()
        logging_config.configure(settings.log_level, settings.log_format)
        if (warning := exposure_warning(settings.host)) is not None:
            log.warning(warning)
        check_services(settings)
        connections.check(settings, connections.of_server(settings))
        return wired(settings)
    except (UserError, SettingsFault) as error:
        raise SystemExit(inert(f"chordage: {error}")) from error


def wired(settings: Settings) -> FastAPI:
    team_app.make_current(settings)
    rt = runtime_from(settings, serves=True)
    courier = Courier(make_celery(settings))

    return make_server(
        faults=partial(_faults, rt),
        webhooks=receiver_of(settings, accept_together(rt, courier)) if "hook" in settings.loops else None,
        accept=partial(accept, rt, courier),
        turn=partial(views.turn, rt.store, space=SPACE),
        wait=partial(wait_for_turn, waiter_for(settings), rt),
        inbox=partial(views.inbox, rt.store, space=SPACE),
        decide=partial(decide, rt, courier, source=SOURCE, space=SPACE),
        result=partial(views.result, rt.store, space=SPACE),
        checks={"database": lambda: schema_version.check(rt.store), "redis": lambda: check_redis(settings)},
        bounds=rt.bounds,
        version=version("chordage"),
        hosts=Hosts(named=frozenset(settings.hosts), address=settings.host),
    )


def _faults(rt: Runtime) -> list[str]:
    assert isinstance(rt.agents, Room)
    return [str(fault) for fault in rt.agents.faults]
