"""What of the nodes needs no process: plans that are refused, and what Docker would be asked for.

There is no engine here. The fixtures are resolved by pytest-docker-tools, and docker-py makes the request that an
engine would get; whether a container starts with it is not tested.
"""

# ruff: noqa: F811 - fixtures are imported, and then named by arguments

from __future__ import annotations

from types import SimpleNamespace

import pytest
from docker.models.containers import _create_container_args
from pytest_celery import CeleryBrokerCluster, CeleryTestWorker, RedisContainer, RedisTestBroker

from chordage.testing.container_nodes import (  # noqa: F401  fixtures
    ChordageWorkerContainer,
    celery_backend_cluster,
    celery_setup_app,
    chordage_container_database,
    chordage_container_settings,
    chordage_image,
    chordage_room_folder,
    default_worker_container,
    default_worker_container_cls,
    default_worker_env,
)
from chordage.testing.nodes import LocalProcess, NodePlan, chordage_nodes  # noqa: F401  a fixture
from support.repository import ROOT

ROOM = ROOT / "examples" / "nodes" / "room"
DATABASE = "postgresql://chordage@postgres:5432/chordage"


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"room": ROOT / "docs"}, "is no room: it has neither agent.toml nor agents/"),
        ({"role": "turn"}, "role is 'turn'; use one of: all, turns, tools"),
        ({"names": ()}, "names has to have different names of workers"),
        ({"names": ("one", "one")}, "names has to have different names of workers"),
    ],
)
def test_plan_that_cannot_be_carried_out_is_refused(fields, problem):
    with pytest.raises(pytest.UsageError, match=problem):
        NodePlan(**{"room": ROOM, **fields})


class Containers:
    """Docker's, as far as pytest-docker-tools asks for them."""

    def __init__(self) -> None:
        self.requests = []

    def run(self, **options):
        self.requests.append(_create_container_args({**options, "version": "1.43"}))
        return Started("chordage")


class Started(LocalProcess):
    status = "running"

    def logs(self, **_more):
        return b"celery@chordage ready."

    def remove(self, **_more): ...


class Broker(RedisContainer):
    port = 6379

    def ready(self):
        return True


@pytest.fixture
def docker_client():
    return SimpleNamespace(containers=Containers())


@pytest.fixture
def default_pytest_celery_network():
    return SimpleNamespace(name="of-the-test")


@pytest.fixture
def chordage_room():
    return ROOM


@pytest.fixture
def celery_broker_cluster():
    return CeleryBrokerCluster(RedisTestBroker(Broker(LocalProcess("redis"))))


class TestContainers:
    @pytest.fixture
    def chordage_container_database(self):
        return DATABASE

    def test_worker_node_is_a_container_of_the_image_with_the_room(self, docker_client, celery_worker_cluster):
        (node,) = celery_worker_cluster
        (request,) = docker_client.containers.requests

        assert type(node) is CeleryTestWorker
        assert node.hostname() == f"chordage@{node.container.id[:12]}"
        assert request["image"] == "chordage"
        assert request["host_config"]["Binds"] == [f"{ROOM}:/room:rw"]
        assert request["host_config"]["NetworkMode"] == "of-the-test"
        assert request["environment"] == {
            "CHORDAGE_REDIS_URL": "redis://127.0.0.1/0", "CHORDAGE_DATABASE_URL": DATABASE, "CHORDAGE_ROOM": "/room",
            "CHORDAGE_STATE": "/state", "PYTHONUNBUFFERED": "1",
        }  # fmt: skip

    def test_worker_migrates_the_database_and_is_started_as_the_local_one(self, default_worker_container_cls):
        """tests/live/test_nodes.py starts it with these options."""
        worker = "celery -A chordage worker -l INFO -n chordage@%h --role all --concurrency 2"
        command = default_worker_container_cls.command("--concurrency", "2")
        assert command == ["sh", "-c", f"chordage migrate && exec {worker}"]

    def test_client_uses_the_keys_of_the_workers_and_one_redis_for_both(self, celery_setup_app, celery_backend_cluster):
        options = {"global_keyprefix": "chordage:celery:"}
        assert celery_setup_app.conf.broker_transport_options == options
        assert celery_setup_app.conf.result_backend_transport_options == options
        assert celery_setup_app.conf.result_backend == celery_setup_app.conf.broker_url


class TestWithoutRoom:
    @pytest.fixture
    def chordage_room(self):
        return None

    @pytest.mark.parametrize(
        ("name", "overridden"),
        [
            ("chordage_container_database", "chordage_container_database"),
            ("chordage_room_folder", "chordage_room"),
            ("chordage_nodes", "chordage_nodes"),
        ],
    )
    def test_fixture_that_has_to_be_overridden_says_so(self, name, overridden, request):
        with pytest.raises(pytest.UsageError, match=f"override the fixture {overridden}[,:]"):
            request.getfixturevalue(name)


def test_worker_in_a_container_needs_a_broker():
    with pytest.raises(pytest.UsageError, match="needs a broker: celery_broker_cluster must not be None"):
        ChordageWorkerContainer.initial_env({"celery_broker_cluster_config": None})
