"""Chordage's workers as nodes of a pytest-celery cluster, as processes of this machine: no Docker is needed.

`pytest_plugins = ["chordage.testing.nodes"]` in a conftest.py replaces pytest-celery's containers by these processes.
Its own classes of nodes, clusters and the setup are used as they are: a node wraps a container, and a container hands
on everything to an object of docker-py, whose place `LocalServer` and `LocalWorker` take. Where there is Docker,
`chordage.testing.container_nodes` has the same nodes in containers.

Every process is watched by the reaper of `chordage dev`: none outlives the test run, however that ends.
"""

from __future__ import annotations

import contextlib
import signal as signals
import sys
import time
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import celery
import psutil
import pytest
from celery import Celery
from pytest_celery import (
    CeleryBackendCluster,
    CeleryBrokerCluster,
    CeleryTestSetup,
    CeleryTestWorker,
    CeleryWorkerCluster,
    CeleryWorkerContainer,
    RedisContainer,
    RedisTestBackend,
    RedisTestBroker,
)
from redis import Redis

from chordage.config.settings import Settings, as_environment, environment, load
from chordage.orchestrator.runtime import Runtime
from chordage.orchestrator.store import schema_version
from chordage.orchestrator.views import TurnView
from chordage.tasks.accepting import accept
from chordage.tasks.courier import Courier
from chordage.tasks.schema import request_from
from chordage.workers.app import make_app
from chordage.workers.bootstrap import runtime_from
from chordage.workers.fleet import state_lock
from chordage.workers.fleet.member import Member, MemberRole, wait_until_ready
from chordage.workers.fleet.reaper import Launch, Reaper
from chordage.workers.fleet.valkey import ValkeyServer
from chordage.workers.turn_waiter import wait_for_turn, waiter_for

WORKERS, BROKER = 0, 1  # ranks: the broker is ended last
ROLES = ("all", "turns", "tools")


@dataclass(frozen=True, kw_only=True, slots=True)
class NodePlan:
    """The workers of a test. `room`: a folder with agent.toml. `names`: one worker for each. `role`, `concurrency` and
    `arguments`: as for `chordage worker`. `settings`: of Chordage, as `lease=3`; there is a list in
    docs/reference/settings.md. `redis_url`: your own, of which the test uses keys with a prefix of its own; by default
    it starts the bundled Valkey. `database_url`: an empty database or one of Chordage's; by default a SQLite file.
    """

    room: Path
    names: tuple[str, ...] = ("one", "two")
    role: str = "all"
    concurrency: int = 2
    arguments: tuple[str, ...] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)
    redis_url: str | None = None
    database_url: str | None = None

    def __post_init__(self) -> None:
        if not (self.room / "agent.toml").exists() and not (self.room / "agents").is_dir():
            raise pytest.UsageError(f"NodePlan: {self.room} is no room: it has neither agent.toml nor agents/")
        if self.role not in ROLES:
            raise pytest.UsageError(f"NodePlan: role is {self.role!r}; use one of: {', '.join(ROLES)}")
        if not self.names or len(set(self.names)) < len(self.names):
            raise pytest.UsageError(f"NodePlan: names has to have different names of workers, not {self.names}")

    @property
    def options(self) -> list[str]:
        return ["--role", self.role, "--concurrency", str(self.concurrency), *self.arguments]


class LocalProcess:
    """What pytest-docker-tools asks of a container, apart from running."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.id = uuid.uuid4().hex
        network: dict[str, Any] = {"Networks": {}, "Ports": {}}
        self.attrs = {"NetworkSettings": network, "Config": {"Hostname": "127.0.0.1", "Env": []}}

    def reload(self) -> None:
        """Docker's copy of the state may be stale; ours is read every time."""


class LocalServer(LocalProcess):
    """The broker, which is the backend of results too. `server` None: it is not ours, and is left as it is."""

    def __init__(self, url: str | None, server: ValkeyServer | None) -> None:
        super().__init__("redis")
        self._url, self.server = url, server
        if server is not None:
            server.start()

    @property
    def url(self) -> str:
        return self._url or self._own().url

    @property
    def port(self) -> int:
        return int(Redis.from_url(self.url).connection_pool.connection_kwargs.get("port", 6379))

    @property
    def status(self) -> str:
        return "running" if self.server is None or self.server.running else "exited"

    def logs(self) -> bytes:
        return b"" if self.server is None else self.server.log.read_bytes()

    def kill(self, signal: str | int | None = None) -> None:
        own = self._own()
        own.kill() if _signal(signal) == signals.SIGKILL else own.stop()

    def restart(self, timeout: float = 10) -> None:
        own = self._own()
        own.stop(timeout=timeout)
        own.start()

    def remove(self) -> None:
        if self.server is not None:
            self.server.kill()

    def _own(self) -> ValkeyServer:
        if self.server is None:
            raise pytest.UsageError(
                "this Redis is yours: leave redis_url out of the NodePlan, and the test may kill one"
            )
        return self.server


class LocalWorker(LocalProcess):
    """One `celery -A chordage worker`, with its pool."""

    def __init__(self, name: str, plan: NodePlan, settings: Settings, launch: Launch) -> None:
        super().__init__(name)
        self.hostname = f"{name}@{self.id[:12]}"  # as pytest-celery calls it
        command = (sys.executable, "-P", "-m", "celery", "-A", "chordage", "worker", "-l", "INFO", "-n", self.hostname)
        role = MemberRole(name=name, arguments=(*command, *plan.options), says_ready=True)
        self._environment = {**environment(), **as_environment(settings), "PYTHONUNBUFFERED": "1"}
        self._member = Member(role, settings.state_path, self._environment, launch)
        self._member.start()

    @property
    def pid(self) -> int:
        return self._member.pid

    @property
    def status(self) -> str:
        return "running" if self._member.running else "exited"

    def logs(self) -> bytes:
        """Of all its starts."""
        return self._member.log.read_bytes()

    def wait_until_ready(self) -> None:
        """Raises Unavailable, with the end of its log."""
        wait_until_ready([self._member], lambda: None)

    def kill(self, signal: str | int | None = None) -> None:
        """SIGKILL takes all its processes at once, as the loss of a machine does; others go to the main process."""
        if _signal(signal) != signals.SIGKILL:
            self._member.send_signal(_signal(signal))
        elif self._member.running:
            children = psutil.Process(self.pid).children(recursive=True)
            self._member.kill_group()
            for child in children:  # a tool may have started one that leads a group of its own
                with contextlib.suppress(psutil.NoSuchProcess):
                    child.kill()

    def stop(self, timeout: float = 10) -> None:
        self.kill("SIGTERM")
        if self.exit_code(timeout) is None:
            self.kill("SIGKILL")

    def restart(self, timeout: float = 10) -> None:
        self.stop(timeout)
        self._member.start()

    def exit_code(self, timeout: float = 60) -> int | None:
        """None: it still runs after that time."""
        self._member.wait(time.monotonic() + timeout)
        return self._member.code


def _signal(signal: str | int | None) -> signals.Signals:
    return signals.Signals[signal] if isinstance(signal, str) else signals.Signals(signal or signals.SIGKILL)


class LocalServerContainer(RedisContainer):  # type: ignore[misc]  # pytest-celery has no types
    """Its port stays the same over restarts."""

    def __init__(self, server: LocalServer) -> None:
        self.server = server
        super().__init__(server)

    @property
    def port(self) -> int:
        return self.server.port

    @property
    def url(self) -> str:
        return self.server.url

    @property
    def host_url(self) -> str:
        return self.server.url

    def ready(self) -> bool:
        return self.server.status == "running"  # its start returns when it answers

    def teardown(self) -> None:
        self.server.remove()


class LocalWorkerContainer(CeleryWorkerContainer):  # type: ignore[misc]
    def __init__(self, worker: LocalWorker) -> None:
        self.process = worker
        super().__init__(worker)

    def worker_name(self) -> str:  # of this one, where pytest-celery has one name for all
        return self.process.name

    def version(self) -> str:
        return celery.__version__

    def ready(self) -> bool:
        self.process.wait_until_ready()
        return True

    def teardown(self) -> None:
        """The test is over and does not need the rest of the work: no warm shutdown, which takes seconds."""
        self.process.kill()


class LocalFleet:
    """Messages to the nodes, and what becomes of them, over the database that the test shares with them."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.runtime: Runtime = runtime_from(settings)
        schema_version.upgrade(self.runtime.store)
        self._waiter = waiter_for(settings)
        self._app = make_app(settings)

    def submit(self, text: str, **fields: Any) -> str:
        """Returns the id of the turn. `fields`: as for `POST /turns`."""
        request = request_from({"text": text, **fields}, source="test", space=None)
        return accept(self.runtime, Courier(self._app), request).turn_id

    def wait(self, turn_id: str, timeout: float = 60) -> TurnView:
        """The turn when it is done. Raises TimeoutError."""
        turn = wait_for_turn(self._waiter, self.runtime, turn_id, timeout)
        if turn.done_at is None:
            raise TimeoutError(f"turn {turn_id} is {turn.status.value} after {timeout:g} s")
        return turn

    def ask(self, text: str, timeout: float = 60, **fields: Any) -> TurnView:
        return self.wait(self.submit(text, **fields), timeout)

    def close(self) -> None:
        self._waiter.close()
        self._app.close()
        self.runtime.store.close()


# Fixtures: `chordage_nodes` is to be overridden, those that begin with `celery_` replace pytest-celery's.


@pytest.fixture
def chordage_nodes(chordage_room: Path | None) -> NodePlan:
    """Override it, or `chordage_room`."""
    if chordage_room is None:
        raise pytest.UsageError(
            "override the fixture chordage_nodes, and return a NodePlan with the folder of your room"
        )
    return NodePlan(room=chordage_room)


@pytest.fixture
def chordage_state(tmp_path: Path) -> Path:
    """The folder of the processes: their logs are in `logs`, and the default database."""
    return tmp_path / "chordage"


@pytest.fixture
def chordage_reaper(chordage_state: Path) -> Iterator[Reaper]:
    with contextlib.closing(state_lock.lock_fleet(chordage_state)) as lock, contextlib.closing(Reaper(lock)) as reaper:
        yield reaper


@pytest.fixture
def celery_broker_cluster(
    chordage_nodes: NodePlan, chordage_state: Path, chordage_reaper: Reaper
) -> Iterator[CeleryBrokerCluster]:
    own, server = chordage_nodes.redis_url, None
    if own is None:
        server = ValkeyServer(chordage_state / "valkey", appendonly=False, launch=chordage_reaper.launch(BROKER))
    node = RedisTestBroker(LocalServerContainer(LocalServer(own, server)))
    yield CeleryBrokerCluster(node)
    node.teardown()


@pytest.fixture
def celery_backend_cluster(celery_broker_cluster: CeleryBrokerCluster) -> CeleryBackendCluster:
    """The same server: Chordage has one Redis."""
    return CeleryBackendCluster(RedisTestBackend(celery_broker_cluster[0].container))


@pytest.fixture
def chordage_settings(
    chordage_nodes: NodePlan, chordage_state: Path, celery_broker_cluster: CeleryBrokerCluster
) -> Iterator[Settings]:
    """Those of the nodes. The prefix keeps tests apart that share a Redis; what they left under it is deleted."""
    server: LocalServer = celery_broker_cluster[0].container.server
    prefix = f"chordage:test:{uuid.uuid4().hex[:12]}:"
    database = chordage_nodes.database_url or f"sqlite:///{chordage_state / 'execution.db'}"
    yield load(
        **{
            "room": chordage_nodes.room.resolve(), "state": chordage_state, "database_url": database, "prefix": prefix,
            "redis_url": server.url, **chordage_nodes.settings,
        }
    )  # fmt: skip
    if server.server is None:
        with Redis.from_url(server.url) as redis:
            for key in redis.scan_iter(match=f"{prefix}*", count=1000):
                redis.unlink(key)


@pytest.fixture
def chordage_fleet(chordage_settings: Settings) -> Iterator[LocalFleet]:
    with contextlib.closing(LocalFleet(chordage_settings)) as fleet:
        yield fleet


@pytest.fixture
def celery_worker_cluster(
    chordage_nodes: NodePlan,
    chordage_fleet: LocalFleet,
    chordage_reaper: Reaper,
    celery_setup_app: Celery,
) -> Iterator[CeleryWorkerCluster]:
    """All of them are ready."""
    settings, launch = chordage_fleet.settings, chordage_reaper.launch(WORKERS)
    containers = [
        LocalWorkerContainer(LocalWorker(name, chordage_nodes, settings, launch)) for name in chordage_nodes.names
    ]
    try:
        assert all(container.ready() for container in containers)
        yield CeleryWorkerCluster(*(CeleryTestWorker(container, celery_setup_app) for container in containers))
    finally:
        for container in containers:
            container.teardown()


@pytest.fixture
def celery_setup_app(
    celery_setup_cls: type[CeleryTestSetup],
    celery_setup_config: dict[str, Any],
    celery_setup_name: str,
    chordage_settings: Settings,
) -> Iterator[Celery]:
    """A client that knows the addresses only, as any other service would: tasks are sent by name."""
    app = celery_setup_cls.create_setup_app(celery_setup_config, celery_setup_name)
    prefix = {"global_keyprefix": chordage_settings.broker_prefix}
    app.conf.update(broker_transport_options=prefix, result_backend_transport_options=prefix)
    yield app
    app.close()
