"""The HTTP server as uvicorn starts it: `uvicorn --factory chordage.workers.web:make_app`."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from importlib.metadata import version
from ipaddress import ip_network

from fastapi import APIRouter, FastAPI

from chordage.config import log as logging_config
from chordage.config.settings import Settings, SettingsFault, unknown_variables
from chordage.orchestrator import stages, views
from chordage.orchestrator.api.authentication import Authentication, KeyRows
from chordage.orchestrator.api.health import Check
from chordage.orchestrator.api.limits import RequestLimits, StreamSlots
from chordage.orchestrator.api.server import make_router, make_server
from chordage.orchestrator.api.services import Authenticate, Services
from chordage.orchestrator.api.session_cookies import SessionRows, Sessions
from chordage.orchestrator.console.app import mount_console
from chordage.orchestrator.core.callers import Caller, KeyScope
from chordage.orchestrator.core.errors import UserError
from chordage.orchestrator.core.hosts import Hosts
from chordage.orchestrator.core.inert import inert
from chordage.orchestrator.core.rates import Rate
from chordage.orchestrator.core.trusted_proxy import PREFIX as PEOPLE
from chordage.orchestrator.core.trusted_proxy import TrustedProxy
from chordage.orchestrator.gateways.rate_limits import RedisBuckets
from chordage.orchestrator.gateways.room.agents import Room
from chordage.orchestrator.loops.server import TurnWaits
from chordage.orchestrator.runtime import Runtime
from chordage.orchestrator.store import schema_version
from chordage.tasks.accepting import accept, accept_together, decide, step
from chordage.tasks.courier import Courier
from chordage.workers import connections, team_app
from chordage.workers.app import make_app as make_celery
from chordage.workers.bootstrap import check_redis, check_services, quick_redis_from, runtime_from
from chordage.workers.doctor.context import RoomFault
from chordage.workers.doctor.examining import Doctor, doctor_of
from chordage.workers.fleet.fleet_file import settings_for_cli
from chordage.workers.fleet.roles import check_keys
from chordage.workers.streams import streams_of
from chordage.workers.turn_waiter import wait_for_turn, waiter_for
from chordage.workers.webhooks import hooks_of, receiver_of


def make_app() -> FastAPI:
    """For uvicorn, which prints a traceback for every exception but this one."""
    try:
        settings = settings_for_cli()
        logging_config.configure(settings.log_level, settings.log_format)
        check_services(settings)
        check_keys(settings)
        connections.check(settings, connections.of_server(settings))
        return wired(settings)
    except (UserError, SettingsFault) as error:
        raise SystemExit(inert(f"chordage: {error}")) from error


def wired(settings: Settings) -> FastAPI:
    team_app.make_current(settings)
    rt = runtime_from(settings, serves=True)
    courier = Courier(make_celery(settings))
    services = _services(settings, rt, courier)
    server = make_server(
        services,
        webhooks=receiver_of(settings, accept_together(rt, courier)) if "hook" in settings.loops else None,
        checks=_checks(settings, rt),
        bounds=rt.bounds,
        version=version("chordage"),
        hosts=Hosts(named=frozenset(settings.hosts), address=settings.host),
    )
    mount_console(server, services)
    return server


def router_for(settings: Settings, *, authenticate: Authenticate | None = None) -> APIRouter:
    """The routes of the API for a FastAPI app of your own: `app.include_router(router_for(load()), prefix="/agents")`.

    `authenticate` says who sends a request, by its headers. That app decides which hosts it accepts, how large a body
    may be, and where webhooks are served: they are not among these routes.
    """
    team_app.make_current(settings)
    rt = runtime_from(settings, serves=True)
    services = _services(settings, rt, Courier(make_celery(settings)))
    if authenticate is not None:  # their callers have no keys of ours
        services = replace(
            services, authenticate=authenticate, is_valid=lambda _caller: True, caller_of=None, proxy=None
        )
    return make_router(services, checks=_checks(settings, rt))


def _services(settings: Settings, rt: Runtime, courier: Courier) -> Services:
    key_rows = KeyRows(
        find=partial(stages.find_key, rt.store), record_use=lambda key: stages.record_use(rt.store, key, rt.now())
    )
    authentication = Authentication(
        key_rows, address=settings.host if settings.keyless == "local" else None, now=rt.now
    )
    streams, proxy = streams_of(settings, rt, courier), _proxy(settings)
    return Services(
        rt=rt,
        accept=partial(accept, rt, courier),
        turn=partial(views.turn, rt.store),
        inbox=partial(views.inbox, rt.store),
        decide=partial(decide, rt, courier),
        result=partial(views.result, rt.store),
        step=partial(step, rt, courier),
        send=courier.send,
        waits=TurnWaits(partial(wait_for_turn, waiter_for(settings), rt)),
        authenticate=authentication,
        is_valid=lambda caller: caller.id.startswith(PEOPLE) or authentication.is_valid(caller),
        caller_of=partial(_caller_of, authentication, proxy),
        proxy=proxy,
        limits=_limits(settings),
        stream_slots=StreamSlots(settings.key_streams, settings.tenant_streams),
        sessions=Sessions(
            authentication,
            secret=partial(stages.session_secret, rt.store),
            use_link=lambda token: stages.use_link(rt.store, token, rt.now()),
            rows=SessionRows(
                begin=partial(stages.begin_session, rt.store),
                is_open=lambda session_id: stages.session_is_open(rt.store, session_id, rt.now()),
                leave=partial(stages.leave_session, rt.store),
            ),
            now=rt.now,
        ),
        metrics=views.FleetMetrics(rt.store, rt.queues, rt.budgets, now=rt.now).read,
        metrics_token=None if settings.metrics_token is None else settings.metrics_token.get_secret_value(),
        streams=streams,
        events=streams,
        faults=partial(_faults, rt),
        broken_agents=partial(_broken_agents, rt),
        hooks=partial(hooks_of, settings),
        doctor=_doctor(settings, rt),
    )


def _checks(settings: Settings, rt: Runtime) -> dict[str, Check]:
    return {"database": lambda: schema_version.check(rt.store), "redis": lambda: check_redis(settings)}


def _proxy(settings: Settings) -> TrustedProxy | None:
    if settings.sso_header is None:
        return None
    return TrustedProxy(
        header=settings.sso_header.lower(),
        networks=tuple(ip_network(network) for network in settings.sso_networks),
        scopes=frozenset(KeyScope(scope) for scope in settings.sso_scopes),
        tenant=settings.sso_tenant,
    )


def _caller_of(authentication: Authentication, proxy: TrustedProxy | None, caller_id: str) -> Caller | None:
    if not caller_id.startswith(PEOPLE):
        return authentication.caller_of(caller_id)
    return None if proxy is None else proxy.caller_of(caller_id)


def _limits(settings: Settings) -> RequestLimits:
    return RequestLimits(
        RedisBuckets(quick_redis_from(settings), prefix=settings.prefix).take,
        of_key=_rate(settings.key_rate, settings.key_burst),
        of_tenant=_rate(settings.tenant_rate, settings.tenant_burst),
        of_key_bytes=_rate(settings.key_bytes_rate, settings.key_bytes_burst),
        of_tenant_bytes=_rate(settings.tenant_bytes_rate, settings.tenant_bytes_burst),
    )


def _rate(per_second: float, burst: int) -> Rate | None:
    return Rate(per_second=per_second, burst=burst) if per_second else None


def _doctor(settings: Settings, rt: Runtime) -> Doctor:
    """The room as this server has read it."""

    def room() -> list[RoomFault]:
        faults = [RoomFault(place="settings", text=text) for text in unknown_variables()]
        return faults + [RoomFault(place="agents", text=text) for text in _faults(rt)]

    return doctor_of(settings, rt.store, room=room, now=rt.now)


def _faults(rt: Runtime) -> list[str]:
    assert isinstance(rt.agents, Room)
    return [str(fault) for fault in rt.agents.faults]


def _broken_agents(rt: Runtime) -> dict[str, str]:
    assert isinstance(rt.agents, Room)
    return rt.agents.broken
