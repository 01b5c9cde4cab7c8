"""The composition root: settings in, Runtime out. Nothing is connected until it is used."""

from __future__ import annotations

import os
from contextlib import closing
from datetime import UTC, datetime, timedelta
from importlib.metadata import version
from typing import Any
from urllib.parse import parse_qsl

from redis import Redis
from redis.backoff import NoBackoff
from redis.exceptions import RedisError
from redis.retry import Retry
from redis.sentinel import Sentinel

from chordage.config import settings as config
from chordage.config.redis_url import RedisAddress, RedisKind
from chordage.config.settings import Settings
from chordage.orchestrator.core import drill, otlp
from chordage.orchestrator.core.agent import AgentSpec, ToolSpec
from chordage.orchestrator.core.arrivals import Overflow, QueueBound
from chordage.orchestrator.core.bus import BusRules
from chordage.orchestrator.core.contents import Cipher
from chordage.orchestrator.core.deliveries import Address, DeliveryRules, ReplyBounds
from chordage.orchestrator.core.errors import ConfigError, RoomError, Unavailable
from chordage.orchestrator.core.groups import Group
from chordage.orchestrator.core.leases import LeaseRules
from chordage.orchestrator.core.message import Bounds
from chordage.orchestrator.gateways.absent import NoEvents, NoLocks, NoQueues
from chordage.orchestrator.gateways.address_guard import AddressGuard
from chordage.orchestrator.gateways.channels.room_channels import RoomChannels
from chordage.orchestrator.gateways.channels.webhook import Webhook, secrets_of
from chordage.orchestrator.gateways.ciphers import cipher_from
from chordage.orchestrator.gateways.ids import Ids
from chordage.orchestrator.gateways.mcp.servers import McpServer
from chordage.orchestrator.gateways.models.catalog import ModelCatalog
from chordage.orchestrator.gateways.models.providers import TableProviders
from chordage.orchestrator.gateways.models.script import ScriptModel
from chordage.orchestrator.gateways.models.wire import Model
from chordage.orchestrator.gateways.otlp import OtlpCollector
from chordage.orchestrator.gateways.ports import Events, Locks, Queues
from chordage.orchestrator.gateways.redis_bus import RedisBus
from chordage.orchestrator.gateways.redis_direct import RedisHints
from chordage.orchestrator.gateways.redis_events import RedisEvents
from chordage.orchestrator.gateways.redis_locks import RedisLocks, RedisQueues
from chordage.orchestrator.gateways.room.agents import Room
from chordage.orchestrator.gateways.room.reading import Copies
from chordage.orchestrator.gateways.schedules.room_work import RoomWork
from chordage.orchestrator.gateways.steadiness import Steadiness
from chordage.orchestrator.plugins.loading import PluginSets
from chordage.orchestrator.runtime import Runtime
from chordage.orchestrator.store import schema_version
from chordage.orchestrator.store.database import Store
from chordage.orchestrator.strategies.loading import names as strategies
from chordage.workers.presence import worker_name

COPIES = "agents"  # in the state folder: agent files as last read without a fault
CLIENT_OPTIONS: dict[str, Any] = {
    "max_connections": 1000,
    "socket_timeout": 5,
    "socket_connect_timeout": 3,
    "health_check_interval": 25,
}
Sentinels: Any = Sentinel  # untyped


def runtime_from(
    settings: Settings,
    *,
    with_redis: bool = True,
    serves: bool = False,
    carries_out: bool = False,
    hands_on: bool = False,
) -> Runtime:
    """`serves`: the process lives long, and an agent outlasts a broken file. `carries_out`: it also runs turns.
    `hands_on`: whichever turns come, as a worker does.
    """
    room = room_from(settings, copies=Copies(settings.state_path / COPIES) if serves or carries_out else None)
    models, cipher = models_of(room), cipher_of(settings)
    if carries_out:
        room.require(lambda agent: check_agent(room, models, agent, time_limit=settings.tool_time_limit))
    locks, events, queues = _redis_ports(settings, cipher) if with_redis else (NoLocks(), NoEvents(), NoQueues())
    bus_rules = BusRules(
        keep=settings.bus_keep, keep_of_run=settings.bus_keep_of_run, keep_seconds=settings.bus_keep_seconds
    )
    return Runtime(
        store=Store(settings.database, pool_size=settings.pool_size, hold=settings.lease / 2, cipher=cipher),
        agents=room,
        models=models,
        tools=room.toolbox,
        locks=locks,
        events=events,
        queues=queues,
        clock=lambda: datetime.now(UTC),
        new_id=Ids(),
        channels=channels_from(settings),
        worker=worker_name(os.getpid()),
        heart=Store(settings.database, pool_size=1, hold=settings.beat / 2) if carries_out else None,
        steadiness=Steadiness(gap=settings.lease / 3, enough=settings.beat) if carries_out else None,
        plugin_sets=PluginSets(),
        work=RoomWork(room.path),
        outputs=room.output_of,
        prices=room.prices,
        budgets=budgets_from(settings),
        hands_on=hands_on,
        queue_bounds=queue_bounds_from(settings),
        leases=LeaseRules(
            seconds=settings.lease, beat=settings.beat, sweep=settings.sweep, poison_after=settings.poison_after
        ),
        bounds=Bounds(text_bytes=settings.max_text_bytes, meta_bytes=settings.max_meta_bytes),
        replies=replies_from(settings),
        web_hooks=web_hooks_from(settings),
        bus=RedisBus(redis_from(settings), prefix=settings.prefix, rules=bus_rules, cipher=cipher)
        if with_redis
        else None,
        bus_rules=bus_rules,
        collector=collector_from(settings),
        delivery=DeliveryRules(
            attempts=settings.delivery_attempts,
            first=settings.delivery_first,
            longest=settings.delivery_longest,
            timeout=settings.delivery_timeout,
            at_once=settings.deliveries_at_once,
            to_one=settings.deliveries_to_one,
        ),
        audit_keep=timedelta(days=settings.audit_keep_days) if settings.audit_keep_days else None,
        version=version("chordage"),
        turn_keep=timedelta(days=settings.turn_keep_days) if settings.turn_keep_days else None,
        dedupe_keep=timedelta(days=settings.dedupe_keep_days),
    )


def budgets_from(settings: Settings) -> dict[Group, int]:
    return {group: getattr(settings.budgets, group.value) for group in Group}


def queue_bounds_from(settings: Settings) -> dict[Group, QueueBound]:
    """Of the groups that have one."""
    bounds = {group: getattr(settings.bounds, group.value) for group in Group}
    return {
        group: QueueBound(max_queued=bound.max_queued, overflow=Overflow(bound.overflow))
        for group, bound in bounds.items()
        if bound.max_queued is not None
    }


def room_from(settings: Settings, *, copies: Copies | None = None) -> Room:
    return Room(
        settings.room_path,
        environ=config.environment(),
        strategies=strategies(),
        around_tools=settings.around_tools,
        copies=copies,
    )


def channels_from(settings: Settings) -> RoomChannels:
    return RoomChannels(settings.room_path, environ=config.environment())


def models_of(room: Room) -> ModelCatalog:
    providers = TableProviders(room.providers, room.path / "agent.toml")
    return ModelCatalog(providers, environ=config.environment(), scripts=room.path, given=_canary_model)


def _canary_model(name: str) -> Model | None:
    """Its tools are loaded with it, and only for a drill."""
    if name != drill.MODEL:
        return None
    from chordage.orchestrator.gateways.canary import reply

    return ScriptModel(reply, name)


def redis_from(settings: Settings, **options: Any) -> Redis:
    """A client; `options` override CLIENT_OPTIONS."""
    address = settings.redis_address
    if address is None:
        raise ConfigError(
            "no Redis is set: give CHORDAGE_REDIS_URL (or redis_url in chordage.toml), or start a fleet, "
            "which brings its own: `chordage start` or `chordage dev`"
        )
    return client_of(address, **options)


def quick_redis_from(settings: Settings) -> Redis:
    """A client that does not retry: its caller does without Redis sooner than wait."""
    once = Retry(NoBackoff(), 0)
    return redis_from(settings, socket_timeout=1, socket_connect_timeout=1, health_check_interval=0, retry=once)


def client_of(address: RedisAddress, **options: Any) -> Redis:
    """Connects when it is used. Behind sentinels, each new connection asks them which server is the master."""
    options = {**CLIENT_OPTIONS, **options}
    options |= {"db": address.db, "username": address.username, "password": address.password}
    match address.kind:
        case RedisKind.SENTINEL:
            timeouts = {name: options[name] for name in ("socket_timeout", "socket_connect_timeout")}
            sentinel = Sentinels(address.hosts, sentinel_kwargs={**timeouts, **address.sentinel_login})
            client: Redis = sentinel.master_for(str(address.master), redis_class=Redis, **options)
            return client
        case RedisKind.SOCKET:
            return Redis(unix_socket_path=address.path, **options)
        case RedisKind.TCP | RedisKind.TLS:
            ((host, port),) = address.hosts
            return Redis(host=host, port=port, ssl=address.kind is RedisKind.TLS, **options, **address.tls)


def _redis_ports(settings: Settings, cipher: Cipher | None) -> tuple[Locks, Events, Queues]:
    client, hints = redis_from(settings), RedisHints(quick_redis_from(settings))
    return (
        RedisLocks(client, hints, prefix=settings.prefix, lease=settings.lease, worker=worker_name(os.getpid())),
        RedisEvents(client, hints, prefix=settings.prefix, cipher=cipher),
        RedisQueues(client, prefix=settings.broker_prefix),
    )


def replies_from(settings: Settings) -> ReplyBounds:
    """A channel alone: all of its addresses; behind a question mark, one."""
    channels: dict[str, tuple[Address | None, ...]] = {}
    for entry in settings.reply_channels:
        name, mark, address = entry.partition("?")
        channels[name] = (*channels.get(name, ()), dict(parse_qsl(address)) if mark else None)
    return ReplyBounds(hosts=frozenset(settings.reply_hosts), channels=channels)


def web_hooks_from(settings: Settings) -> Webhook:
    secret = settings.webhook_secret
    secrets = secrets_of(secret.get_secret_value() if secret else "", "CHORDAGE_WEBHOOK_SECRET")
    return Webhook(secrets=secrets, guard=AddressGuard(settings.webhook_allow), timeout=settings.delivery_timeout)


def collector_from(settings: Settings) -> OtlpCollector | None:
    """Raises ConfigError."""
    if settings.otlp_endpoint is None:
        return None
    environ = config.environment()
    text = environ.get("OTEL_EXPORTER_OTLP_TRACES_HEADERS") or environ.get("OTEL_EXPORTER_OTLP_HEADERS") or ""
    return OtlpCollector(otlp.endpoint(settings.otlp_endpoint), headers=otlp.headers_from(text))


def cipher_of(settings: Settings) -> Cipher | None:
    """What encrypts contents; None: nothing. Raises ConfigError."""
    keys = settings.cipher_keys
    return cipher_from(settings.cipher, keys.get_secret_value() if keys else None, settings.room_path)


def check_services(settings: Settings) -> None:
    """Before any work: the database answers and has our schema, and Redis answers."""
    with closing(Store(settings.database, pool_size=1, cipher=cipher_of(settings))) as store:
        schema_version.check(store)
    check_redis(settings)


def check_redis(settings: Settings) -> None:
    with closing(redis_from(settings)) as client:
        try:
            client.ping()
        except RedisError as error:
            raise Unavailable(
                f"Redis at {settings.redis_address} does not answer ({error}): start it, or set CHORDAGE_REDIS_URL to "
                "where it runs"
            ) from error


def check_agent(room: Room, models: ModelCatalog, agent: AgentSpec, *, time_limit: int) -> None:
    """The agent's tools can be loaded, its models can be called and its MCP servers be reached as far as one can tell
    without trying, and none of its tools may take longer than a worker lets a call run. Raises UserError.
    """
    for tool in room.check_tools(agent):
        check_time(agent.name, tool, time_limit)
    for server in room.servers_of(agent):
        check_server_time(server, time_limit)
    room.output_of(agent)
    models.check(agent)


def check_time(agent: str, tool: ToolSpec, limit: int) -> None:
    longest = tool.timeout * (1 + tool.retries)
    if longest >= limit:
        raise RoomError(
            f"agent {agent!r}: tool {tool.name!r} may take {longest:g} s ({tool.timeout:g} s for each of "
            f"{1 + tool.retries} tries), and a worker ends a call after {limit} s: lower its timeout, or raise "
            "CHORDAGE_TOOL_TIME_LIMIT"
        )


def check_server_time(server: McpServer, limit: int) -> None:
    if server.longest >= limit:
        raise RoomError(
            f"{server.place}: a call may take {server.longest:g} s (timeout and connect_timeout), and a worker ends a "
            f"call after {limit} s: lower one of them, or raise CHORDAGE_TOOL_TIME_LIMIT"
        )
