"""pytest-celery on local processes: workers and brokers that are really killed."""

from __future__ import annotations

from pathlib import Path

import pytest
from celery import chord

from support.container_stand_ins import WorkerPlan
from support.pytest_celery_nodes import WorkerContainer

pytestmark = [pytest.mark.redis, pytest.mark.slow]


@pytest.fixture
def worker_plan():
    here = str(Path(__file__).parent)
    return WorkerPlan(
        app="sample_app",
        env=lambda broker, backend: {"PYTHONPATH": here, "SAMPLE_BROKER": broker, "SAMPLE_BACKEND": backend},
    )


def round_of(app, count, gate=None):
    tools = [app.signature("sample.tool", (number, gate)) for number in range(count)]
    return chord(tools, app.signature("sample.join"))()


def test_chord_completes_though_a_worker_is_lost_with_its_machine(celery_setup, tmp_path):
    lost, kept = celery_setup.worker_cluster
    gate = tmp_path / "gate"

    result = round_of(celery_setup.app, 4, str(gate))
    for worker in (lost, kept):
        worker.wait_for_log("begins", timeout=20)
    lost.kill()
    gate.touch()

    rows = result.get(timeout=90)
    assert [row[0] for row in rows] == [0, 1, 2, 3]
    assert {row[1] for row in rows} == {kept.hostname()}
    assert sum(row[2] for row in rows) == 2, "exactly the two that were running on the lost worker came again"
    assert lost.container.status == "exited"


def test_worker_is_ready_again_after_a_restart(celery_setup):
    first, second = celery_setup.worker_cluster
    first.kill()

    first.restart()

    answers = celery_setup.app.control.ping(timeout=5, destination=[first.hostname(), second.hostname()], limit=2)
    assert {name for answer in answers for name in answer} == {first.hostname(), second.hostname()}


def test_worker_asked_to_stop_finishes_its_work_and_exits_with_success(celery_setup, tmp_path):
    asked, _ = celery_setup.worker_cluster
    gate = tmp_path / "gate"
    result = round_of(celery_setup.app, 4, str(gate))
    asked.wait_for_log("begins", timeout=20)

    asked.kill("SIGTERM")
    gate.touch()

    # Billiard's child waits 30 s for its results to be read, also when Celery's loop has just stopped reading them.
    assert asked.container.process.exit_code(timeout=60) == 0
    assert asked.hostname() in {row[1] for row in result.get(timeout=60)}


def test_broker_restart_leaves_the_port_and_the_workers_in_place(celery_setup):
    port = celery_setup.broker.container.port

    celery_setup.broker.restart()

    assert celery_setup.broker.container.port == port
    assert len(round_of(celery_setup.app, 3).get(timeout=60)) == 3


def test_worker_that_cannot_start_gives_the_reason(tmp_path):
    broken = WorkerContainer("broken", WorkerPlan(app="no_such_module"), {}, tmp_path)

    with pytest.raises(AssertionError, match="(?s)worker broken ended.*no_such_module"):
        broken.ready()
