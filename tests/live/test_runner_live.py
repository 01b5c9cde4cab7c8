"""A stepped run in real processes: one process breaks off, every worker is replaced, another process continues."""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import closing

import pytest
from redis import Redis

from support.databases import BACKENDS
from support.rig import UNHURRIED, Plan, Rig
from support.waiting import PATIENCE

pytestmark = pytest.mark.redis

DRIVE = """
import json, sys
import chordage

given = json.loads(sys.argv[1])
with chordage.client() as client:
    runner = client.runner(**given, timeout=100)
    told = []
    for message in runner:
        results = runner.generate_tool_response()
        told.append([message.iteration, len(message.asks), results is not None])
        if message.iteration == 1 and "text" in given:
            runner.set_params(max_tokens=77)
            break
    print(json.dumps({"run": runner.run_id, "turn": runner.turn_id, "told": told, "standing": runner.standing}))
"""


@pytest.fixture(params=BACKENDS)
def rig(request, databases, redis_databases, tmp_path):
    url, redis_url = databases.migrated(request.param), next(redis_databases)
    with Redis.from_url(redis_url) as redis:
        redis.flushdb()
    with closing(Rig(tmp_path, url, redis_url, **UNHURRIED)) as rig:
        start(rig, "1")
        yield rig
    databases.drop(url)


def start(rig: Rig, name: str) -> None:
    rig.worker(f"turns{name}", "--role", "turns", "--concurrency", "4")
    rig.worker(f"tools{name}", "--role", "tools", "--concurrency", "2")
    rig.ready()


def drive(rig: Rig, **given: object) -> dict:
    """In a process of its own."""
    command = [sys.executable, "-c", DRIVE, json.dumps(given)]
    done = subprocess.run(
        command, cwd=rig.folder, env=rig.env, capture_output=True, text=True, check=False, timeout=2 * PATIENCE
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_a_run_broken_off_by_one_process_is_continued_by_another_after_all_workers_were_replaced(rig):
    plan = Plan(id="stepped", rounds=2, tools=("unsafe", "idempotent"))
    first = drive(rig, text=plan.text, thread_id="t")
    assert first["told"] == [[1, 2, True]]
    assert first["standing"] == "parked"

    for worker in list(rig.workers.values()):
        worker.kill()
    rig.workers.clear()
    start(rig, "2")
    second = drive(rig, run_id=first["run"])

    assert second["told"] == [[1, 2, True], [2, 2, True], [3, 0, False]]
    assert rig.row("turns", id=first["turn"])["disposition"] == "answered"
    assert len(rig.facts(name="unsafe", phase="begin")) == 2, "once in each round"
    assert len(rig.facts(name="idempotent", phase="begin")) == 2
    assert [one.body.get("max_tokens") for one in rig.model.requests] == [None, 77, 77]


BY_NAME = """
import json, sys
import chordage
from celery import Celery

text, redis = sys.argv[1:]
app = Celery("theirs", broker=redis, backend=redis, set_as_current=False)
app.conf.broker_transport_options = app.conf.result_backend_transport_options = {"global_keyprefix": "chordage:celery:"}
with chordage.client(app=app) as client:
    runner = client.runner(text, timeout=100, max_iterations=5)
    told = [[message.iteration, len(message.asks)] for message in runner]
    try:
        runner.steer("too late")
    except chordage.StepRefused as refused:
        told.append([refused.code, refused.standing])
    try:
        client.runner("hi", max_iterations=0)
    except Exception as refused:
        told.append(str(refused))
    print(json.dumps([runner.standing, *told]))
"""


def test_any_celery_app_drives_a_run_by_name_and_gets_its_errors(rig):
    command = [sys.executable, "-c", BY_NAME, Plan(id="by-name", tools=("pure",)).text, rig.settings.redis]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=2 * PATIENCE)
    assert done.returncode == 0, done.stderr
    *told, refused = json.loads(done.stdout)

    assert told == ["done", [1, 1], [2, 0], ["not_allowed", "done"]]
    assert "at least 1" in refused
