"""Chordage's workers as nodes of a pytest-celery cluster, in containers: for machines that have Docker.

`pytest_plugins = ["chordage.testing.container_nodes"]` in a conftest.py makes pytest-celery's `celery_setup` with its
own containers of Redis, and a worker in a container of your image of Chordage, as the Dockerfile of Chordage builds it.
Three fixtures are to be overridden: `chordage_image`, `chordage_room` and `chordage_container_database`.

All workers of a test migrate the database before they start; one of them does it, and the others wait.
"""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import pytest
from celery import Celery
from pytest_celery import (
    CELERY_REDIS_BROKER,
    DEFAULT_WORKER_CONTAINER_TIMEOUT,
    CeleryBackendCluster,
    CeleryBrokerCluster,
    CeleryTestSetup,
    CeleryWorkerContainer,
    RedisTestBackend,
)
from pytest_docker_tools import container, fxtr

from chordage.config.settings import Settings

ROOM, STATE = "/room", "/state"  # in the image
ROLE = "all"


class ChordageWorkerContainer(CeleryWorkerContainer):  # type: ignore[misc]  # pytest-celery has no types
    """Its image has Chordage and the room's packages. pytest-celery's volume is not used: it holds another app."""

    @classmethod
    def command(
        cls,
        *args: str,
        debugpy: bool = False,  # noqa: ARG003 - of pytest-celery, for images with debugpy
        wait_for_client: bool = True,  # noqa: ARG003
        **kwargs: dict[str, Any],  # noqa: ARG003
    ) -> list[str]:
        """`args`: further options of `chordage worker`."""
        worker = ["celery", "-A", "chordage", "worker", "-l", cls.log_level(), "-n", f"{cls.worker_name()}@%h"]
        options = ["--role", ROLE, *args]
        return ["sh", "-c", f"chordage migrate && exec {shlex.join([*worker, *options])}"]

    @classmethod
    def worker_name(cls) -> str:
        return "chordage"

    @classmethod
    def initial_env(
        cls, celery_worker_cluster_config: dict[str, Any], initial: dict[str, str] | None = None
    ) -> dict[str, str]:
        """`initial`: settings as CHORDAGE_…; what they name goes before what the cluster says."""
        cluster = celery_worker_cluster_config.get("celery_broker_cluster_config")
        if not cluster:
            raise pytest.UsageError("a worker of Chordage needs a broker: celery_broker_cluster must not be None")
        (url,) = cluster["urls"]
        return {
            "CHORDAGE_REDIS_URL": url, "CHORDAGE_ROOM": ROOM, "CHORDAGE_STATE": STATE, "PYTHONUNBUFFERED": "1",
            **(initial or {}),
        }  # fmt: skip


@pytest.fixture
def chordage_image() -> str:
    """The image of your workers, which `docker build` has made of Chordage's Dockerfile."""
    return "chordage"


@pytest.fixture
def chordage_container_database() -> str:
    """The URL of a PostgreSQL database, as a container of pytest-celery's network reaches it."""
    raise pytest.UsageError(
        "override the fixture chordage_container_database: containers share no SQLite file, so give them the URL of a "
        "PostgreSQL database that they reach"
    )


@pytest.fixture
def chordage_container_settings() -> dict[str, str]:
    """Further environment variables of the worker, as CHORDAGE_LEASE."""
    return {}


@pytest.fixture
def chordage_room_folder(chordage_room: Path | None) -> str:
    if chordage_room is None:
        raise pytest.UsageError("override the fixture chordage_room, and return the folder of your room")
    return str(chordage_room.resolve())


# What pytest-celery asks for by these names.


@pytest.fixture(params=[CELERY_REDIS_BROKER])
def celery_broker(request: pytest.FixtureRequest) -> Any:
    """Chordage speaks to Redis alone."""
    return request.getfixturevalue(request.param)


@pytest.fixture
def celery_backend_cluster(celery_broker_cluster: CeleryBrokerCluster) -> CeleryBackendCluster:
    """The same server: Chordage has one Redis."""
    return CeleryBackendCluster(RedisTestBackend(celery_broker_cluster[0].container))


@pytest.fixture
def default_worker_container_cls() -> type[CeleryWorkerContainer]:
    return ChordageWorkerContainer


@pytest.fixture
def default_worker_env(
    default_worker_container_cls: type[CeleryWorkerContainer],
    celery_worker_cluster_config: dict[str, Any],
    chordage_container_database: str,
    chordage_container_settings: dict[str, str],
) -> dict[str, str]:
    given = {"CHORDAGE_DATABASE_URL": chordage_container_database, **chordage_container_settings}
    env: dict[str, str] = default_worker_container_cls.initial_env(celery_worker_cluster_config, given)
    return env


default_worker_container = container(
    image="{chordage_image}",
    environment=fxtr("default_worker_env"),
    network="{default_pytest_celery_network.name}",
    volumes={"{chordage_room_folder}": {"bind": ROOM, "mode": "rw"}},
    wrapper_class=ChordageWorkerContainer,
    timeout=DEFAULT_WORKER_CONTAINER_TIMEOUT,
    command=fxtr("default_worker_command"),
)


@pytest.fixture
def celery_setup_app(
    celery_setup_cls: type[CeleryTestSetup], celery_setup_config: dict[str, Any], celery_setup_name: str
) -> Any:
    """A client that knows the addresses only: it sends `turns.submit` by name, to the queue `chat`."""
    app: Celery = celery_setup_cls.create_setup_app(celery_setup_config, celery_setup_name)
    prefix = {"global_keyprefix": f"{Settings.model_fields['prefix'].default}celery:"}
    app.conf.update(broker_transport_options=prefix, result_backend_transport_options=prefix)
    yield app
    app.close()
