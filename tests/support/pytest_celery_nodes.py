"""pytest-celery's broker, backend and worker nodes as local processes, where it would take Docker containers.

A node wraps a container, and a container hands everything on to an object of docker-py. The stand-ins below take the
place of that object, so pytest-celery's own node, cluster and setup classes are used as they are.
"""

from __future__ import annotations

import os
import signal as signals
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import celery
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

from support import processes
from support.valkey import WatchedValkey
from support.waiting import until


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkerPlan:
    """How the workers of a test are started. `env` adds to ours, from the broker's and the backend's URL."""

    app: str = "chordage.workers.app"
    names: tuple[str, ...] = ("one", "two")
    queues: tuple[str, ...] = ()
    pool: str = "prefork"
    concurrency: int = 2
    arguments: tuple[str, ...] = ()
    env: Callable[[str, str], Mapping[str, str]] = field(default=lambda broker, backend: {})

    def argv(self, hostname: str) -> list[str]:
        queues = ["-Q", ",".join(self.queues)] if self.queues else []
        size = ["-P", self.pool, "-c", str(self.concurrency)]
        command = [sys.executable, "-m", "celery", "-A", self.app, "worker", "-l", "INFO", "-n", hostname]
        return [*command, *queues, *size, *self.arguments]


class StandIn:
    """What pytest-docker-tools asks of a container, apart from running."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.id = uuid.uuid4().hex
        network: dict[str, Any] = {"Networks": {}, "Ports": {}}
        self.attrs = {"NetworkSettings": network, "Config": {"Hostname": "127.0.0.1", "Env": []}}

    def reload(self) -> None:
        """Docker's copy of the state may be stale; ours is asked every time."""


class ValkeyStandIn(StandIn):
    def __init__(self, name: str, server: WatchedValkey) -> None:
        super().__init__(name)
        self.server = server
        self.server.start()

    @property
    def status(self) -> str:
        return "running" if self.server.running else "exited"

    def logs(self) -> bytes:
        return self.server.log.read_bytes()

    def kill(self, signal: str | int | None = None) -> None:
        if signal_number(signal) == signals.SIGKILL:
            self.server.kill()
        else:
            self.server.stop()

    def restart(self, timeout: float = 10) -> None:
        self.server.stop(timeout=timeout)
        self.server.start()


class WorkerStandIn(StandIn):
    def __init__(self, name: str, plan: WorkerPlan, env: Mapping[str, str], log: Path) -> None:
        super().__init__(name)
        self.hostname = f"{name}@{self.id[:12]}"  # what pytest-celery believes the worker is called
        self._argv = plan.argv(self.hostname)
        self._env = {**os.environ, **env}
        self._log = log
        self._start()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def status(self) -> str:
        return "running" if self._process.poll() is None else "exited"

    def logs(self) -> bytes:
        """All it ever wrote; pytest-celery looks for log lines here."""
        return self._log.read_bytes()

    def logs_since_start(self) -> bytes:
        return self.logs()[self._log_start :]

    def kill(self, signal: str | int | None = None) -> None:
        """SIGKILL takes the whole process tree, as the loss of a machine does; others go to the main process alone."""
        if signal_number(signal) == signals.SIGKILL:
            processes.kill_tree(self._process)
        else:
            self._process.send_signal(signal_number(signal))

    def stop(self, timeout: float = 10) -> int:
        return processes.stop(self._process, patience=timeout)

    def restart(self, timeout: float = 10) -> None:
        self.stop(timeout)
        self._start()

    def exit_code(self, timeout: float = 30) -> int:
        return self._process.wait(timeout)

    def exec_run(self, command: str) -> tuple[int, bytes]:
        done = subprocess.run(command, shell=True, env=self._env, capture_output=True, check=False)
        return done.returncode, done.stdout + done.stderr

    def _start(self) -> None:
        self._log_start = self._log.stat().st_size if self._log.exists() else 0
        self._process = processes.spawn(self._argv, self._log, env=self._env)


class ValkeyContainer(RedisContainer):
    """Broker or backend. Its port stays the same over restarts."""

    def __init__(self, name: str, folder: Path, **options: Any) -> None:
        self.server = WatchedValkey(folder / name, **options)
        super().__init__(ValkeyStandIn(name, self.server))

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
        return self.server.running  # its start returns when it answers

    def teardown(self) -> None:
        self.server.stop()


class WorkerContainer(CeleryWorkerContainer):
    """One `celery worker` with its pool."""

    def __init__(self, name: str, plan: WorkerPlan, env: Mapping[str, str], folder: Path) -> None:
        self.plan = plan
        self.process = WorkerStandIn(name, plan, env, folder / f"{name}.log")
        super().__init__(self.process)

    def worker_name(self) -> str:
        return self.process.name

    def worker_queue(self) -> str:
        return self.plan.queues[0] if self.plan.queues else "celery"

    def version(self) -> str:
        return celery.__version__

    def ready(self) -> bool:
        """Asked of the output since the last start only: an earlier start said `ready.` too."""
        said = until(self._ready_or_dead, f"worker {self.name} gets ready: {self.process.logs().decode()[-2000:]}")
        assert said == "ready", f"worker {self.name} ended: {self.process.logs().decode()[-2000:]}"
        return True

    def teardown(self) -> None:
        """The test is over and nobody waits for the rest of the work: no warm shutdown, which takes seconds."""
        self.process.kill()

    def _ready_or_dead(self) -> str | None:
        if self.process.status == "exited":
            return "dead"
        return "ready" if self.ready_prompt.encode() in self.process.logs_since_start() else None


def signal_number(signal: str | int | None) -> signals.Signals:
    if isinstance(signal, str):
        return signals.Signals[signal]
    return signals.Signals(signal or signals.SIGKILL)


@pytest.fixture
def worker_plan() -> WorkerPlan:
    """Override it to start another app, more workers or other arguments."""
    return WorkerPlan()


@pytest.fixture
def celery_broker_cluster(valkey_program: Path, tmp_path: Path) -> Iterator[CeleryBrokerCluster]:
    node = RedisTestBroker(ValkeyContainer("broker", tmp_path, program=valkey_program))
    yield CeleryBrokerCluster(node)
    node.teardown()


@pytest.fixture
def celery_backend_cluster(valkey_program: Path, tmp_path: Path) -> Iterator[CeleryBackendCluster]:
    node = RedisTestBackend(ValkeyContainer("backend", tmp_path, program=valkey_program))
    yield CeleryBackendCluster(node)
    node.teardown()


@pytest.fixture
def celery_worker_cluster(
    worker_plan: WorkerPlan,
    celery_broker_cluster: CeleryBrokerCluster,
    celery_backend_cluster: CeleryBackendCluster,
    celery_setup_app: Celery,
    tmp_path: Path,
) -> Iterator[CeleryWorkerCluster]:
    env = worker_plan.env(celery_broker_cluster[0].container.url, celery_backend_cluster[0].container.url)
    containers = [WorkerContainer(name, worker_plan, env, tmp_path) for name in worker_plan.names]
    try:
        assert all(container.ready() for container in containers)
        yield CeleryWorkerCluster(*(CeleryTestWorker(container, celery_setup_app) for container in containers))
    finally:
        for container in containers:
            container.teardown()


@pytest.fixture
def celery_setup_app(
    celery_setup_cls: type[CeleryTestSetup], celery_setup_config: dict[str, Any], celery_setup_name: str
) -> Iterator[Celery]:
    """A client that knows URLs only, as any other service would be: tasks are sent by name."""
    app = celery_setup_cls.create_setup_app(celery_setup_config, celery_setup_name)
    yield app
    app.close()
