"""Workers as nodes of a pytest-celery cluster: processes that are really killed, and the example of the page."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

import pytest
from redis import Redis

from chordage.orchestrator.core.errors import Unavailable
from chordage.testing.nodes import LocalWorker, NodePlan
from chordage.workers.fleet.reaper import launch_unwatched
from support.repository import ROOT
from support.waiting import PATIENCE

pytestmark = [pytest.mark.redis, pytest.mark.slow]

EXAMPLE = ROOT / "examples" / "nodes"
SHIPPED = "shipped 17\nshipped 18"


@pytest.fixture
def shop(tmp_path, monkeypatch):
    """Workers inherit the variable, so it is set before they start."""
    monkeypatch.setenv("SHOP_OPEN", str(tmp_path / "open"))
    return tmp_path / "open"


@pytest.fixture
def chordage_nodes(shop, valkey_program):
    """With one slot each, none of the workers can take both calls of a round."""
    return NodePlan(room=EXAMPLE / "room", concurrency=1)


@pytest.mark.usefixtures("valkey_program")
def test_the_example_passes_as_a_project_of_its_own(tmp_path):
    shutil.copytree(EXAMPLE, tmp_path / "shop")
    env = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:celery.contrib.pytest"]
    done = subprocess.run(
        command, cwd=tmp_path / "shop", env=env, capture_output=True, text=True, timeout=300, check=False
    )

    assert "1 passed" in done.stdout, done.stdout + done.stderr


def test_worker_is_ready_again_after_a_kill_and_a_restart(celery_setup):
    first, second = celery_setup.worker_cluster
    first.kill()
    assert first.container.status == "exited"

    first.restart()
    first.ready()

    answers = celery_setup.app.control.ping(
        timeout=PATIENCE, destination=[first.hostname(), second.hostname()], limit=2
    )
    assert {name for answer in answers for name in answer} == {first.hostname(), second.hostname()}


def test_worker_asked_to_stop_finishes_its_call_and_exits_with_success(celery_setup, chordage_fleet, shop):
    asked, _ = celery_setup.worker_cluster
    by_name = celery_setup.app.send_task("turns.submit", kwargs={"text": "Ship them."}, queue="chat")
    asked.wait_for_log("waits", timeout=int(PATIENCE))

    asked.kill("SIGTERM")
    shop.touch()

    assert asked.container.process.exit_code() == 0
    assert chordage_fleet.wait(by_name.get(timeout=PATIENCE)).answer == SHIPPED


def test_broker_restart_leaves_the_port_and_the_workers_in_place(celery_setup, chordage_fleet, shop):
    port = celery_setup.broker.container.port

    celery_setup.broker.restart()

    shop.touch()
    assert celery_setup.broker.container.port == port
    assert chordage_fleet.ask("Ship them.").answer == SHIPPED


def test_worker_that_cannot_start_gives_the_reason(chordage_fleet):
    wrong = NodePlan(room=EXAMPLE / "room", arguments=("--no-such-option",))
    worker = LocalWorker("broken", wrong, chordage_fleet.settings, launch_unwatched)

    with pytest.raises(Unavailable, match=r"(?s)broken ended with code.*--no-such-option"):
        worker.wait_until_ready()


def test_turn_that_is_not_done_in_time_is_a_timeout(chordage_fleet):
    turn = chordage_fleet.submit("Ship them.")

    with pytest.raises(TimeoutError, match=f"turn {turn} is queued after 0.1 s"):
        chordage_fleet.wait(turn, timeout=0.1)


class TestOwnRedis:
    @pytest.fixture
    def chordage_nodes(self, redis_url):
        return NodePlan(room=EXAMPLE / "room", redis_url=redis_url)

    @pytest.fixture
    def of_others(self, redis_url):
        """Asked for before the settings, so it looks after they are gone."""
        with Redis.from_url(redis_url) as redis:
            redis.set("of others", "1")
            yield redis
            assert redis.keys() == [b"of others"]

    def test_own_redis_is_not_killed_and_keeps_only_what_others_have_in_it(
        self, of_others, chordage_settings, celery_broker_cluster
    ):
        of_others.set(f"{chordage_settings.broker_prefix}chat", "1")

        with pytest.raises(pytest.UsageError, match="this Redis is yours"):
            celery_broker_cluster[0].kill()
