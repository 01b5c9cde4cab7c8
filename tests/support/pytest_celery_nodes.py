"""pytest-celery's broker, backend and worker nodes as local processes, where it would take Docker containers.

A node wraps a container, and a container hands everything on to an object of docker-py. The stand-ins take
the place of that object, so pytest-celery's own node, cluster and setup classes are used as they are.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
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

from support.container_stand_ins import ValkeyStandIn, WorkerPlan, WorkerStandIn
from support.valkey import WatchedValkey
from support.waiting import until


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
        """The test is over and does not need the rest of the work: no warm shutdown, which takes seconds."""
        self.process.kill()

    def _ready_or_dead(self) -> str | None:
        if self.process.status == "exited":
            return "dead"
        return "ready" if self.ready_prompt.encode() in self.process.logs_since_start() else None


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
