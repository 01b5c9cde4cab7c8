"""A Celery project of its own beside the fleet, on a broker of its own: what its tasks are when users' code calls them.

The room's tool and plugin call a `shared_task` of the project. It has to run on the project's worker, whatever pool the
worker that carries the tool out has.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from contextlib import closing
from pathlib import Path

import pytest
from celery import Celery
from redis import Redis

from support import processes
from support.rig import UNHURRIED, Plan, Rig
from support.waiting import until

pytestmark = [pytest.mark.redis, pytest.mark.slow]

AGENT = """
model = "fake:model"
tools = ["rig_tools", "team_tools"]
[models.fake]
wire = "openai"
base_url = "{url}/v1"
[permission]
default = "allow"
[[plugins]]
use = "team_tools:Watcher"
"""
PROJECT = """
import os
from celery import Celery

app = Celery("proj", broker=os.environ["PROJ_REDIS"], backend=os.environ["PROJ_REDIS"])
app.conf.update(
    task_default_queue="proj-work", imports=["proj_tasks"],
    broker_transport_options={"global_keyprefix": "proj:"},
    result_backend_transport_options={"global_keyprefix": "proj:"},
)
"""
TASKS = """
from celery import shared_task


@shared_task(bind=True)
def double(self, number):
    return {"app": self.app.main, "host": self.request.hostname, "queue": self.request.delivery_info["routing_key"],
            "result": 2 * number}
"""
TOOLS = '''
import json
import os
from pathlib import Path

from celery import current_app
from proj_tasks import double

from chordage import tool
from chordage.orchestrator.plugins.base import Plugin

LEDGER = Path(os.environ["TEAM_LEDGER"])


def note(**fact):
    with LEDGER.open("a") as file:
        file.write(json.dumps(fact) + "\\n")


@tool(effect="pure")
def ask_the_team(who: str, seconds: float = 0.0) -> object:
    """Have the project double a number."""
    try:
        answer = double.delay(7).get(timeout=120)
    except Exception as error:
        answer = repr(error)
    note(who="tool", current=current_app.main, answer=answer)
    return answer


class Watcher(Plugin):
    id = "watcher"

    def run_start(self, context):
        note(who="plugin", current=current_app.main)
'''


class Project:
    """The team's own folder, worker and broker database."""

    def __init__(self, folder: Path, redis_url: str) -> None:
        self.folder = folder
        self.redis_url = redis_url
        folder.mkdir()
        (folder / "proj.py").write_text(PROJECT)
        (folder / "proj_tasks.py").write_text(TASKS)
        self.env = {"PROJ_REDIS": redis_url, "TEAM_LEDGER": str(folder / "ledger.jsonl")}
        command = [sys.executable, "-m", "celery", "-A", "proj", "worker", "--pool", "threads", "-n", "theirs@here"]
        self.worker = processes.spawn(
            command, folder / "worker.log", cwd=folder, env={**os.environ, **self.env, "PYTHONPATH": str(folder)}
        )

    def facts(self, who: str) -> list[dict]:
        ledger = self.folder / "ledger.jsonl"
        lines = ledger.read_text().splitlines() if ledger.exists() else []
        return [fact for line in lines if (fact := json.loads(line))["who"] == who]

    def wait_until_ready(self) -> None:
        with closing(Celery("asks", broker=self.redis_url, set_as_current=False)) as app:
            app.conf.broker_transport_options = {"global_keyprefix": "proj:"}
            until(lambda: app.control.inspect(timeout=2).ping(), "the project's worker answers")

    def close(self) -> None:
        processes.stop(self.worker)


@pytest.fixture(scope="module")
def place(databases, redis_databases, tmp_path_factory):
    """A project with its worker, and a rig without workers that can import it."""
    urls = [next(redis_databases), next(redis_databases)]
    for url in urls:
        with Redis.from_url(url) as redis:
            redis.flushdb()
    url = databases.migrated("sqlite")
    folder = tmp_path_factory.mktemp("team")
    with (
        closing(Project(folder / "project", urls[1])) as project,
        closing(Rig(folder, url, urls[0], **UNHURRIED)) as rig,
        pytest.MonkeyPatch.context() as patch,  # the test itself reads the room as well
    ):
        patch.syspath_prepend(project.folder)
        patch.setenv("TEAM_LEDGER", project.env["TEAM_LEDGER"])
        (rig.room / "agent.toml").write_text(AGENT.format(url=rig.model.url))
        (rig.room / "team_tools.py").write_text(TOOLS)
        rig.env.update(project.env)
        rig.env["PYTHONPATH"] += os.pathsep + str(project.folder)
        project.wait_until_ready()
        yield project, rig
    databases.drop(url)


POOLS = {
    "prefork": [("--role", "turns", "--concurrency", "4"), ("--role", "tools", "--concurrency", "1")],
    "threads": [("--role", "all", "--concurrency", "4")],
}


@contextlib.contextmanager
def workers(rig, pool: str, **env: str):
    for number, arguments in enumerate(POOLS[pool]):
        rig.worker(f"{pool}{number}", *arguments, env=env)
    try:
        rig.ready()
        yield
    finally:
        for worker in rig.workers.values():
            worker.kill()
        rig.workers.clear()


def ask(rig, project, plan: str) -> dict:
    rig.submit(Plan(id=plan, tools=("ask_the_team",)))
    rig.wait_until_done()
    return project.facts("tool")[-1]


@pytest.mark.parametrize("pool", POOLS)
def test_a_shared_task_that_a_tool_calls_runs_on_the_workers_of_the_project(place, pool) -> None:
    project, rig = place
    with workers(rig, pool, CHORDAGE_CELERY_APP="proj:app"):
        told = ask(rig, project, f"with-{pool}")

    answer = {"app": "proj", "host": "theirs@here", "queue": "proj-work", "result": 14}
    assert told == {"who": "tool", "current": "proj", "answer": answer}
    assert {fact["current"] for fact in project.facts("plugin")[-1:]} == {"proj"}


@pytest.mark.parametrize("pool", POOLS)
def test_without_the_setting_tools_find_an_app_of_celerys_own_and_never_ours(place, pool) -> None:
    project, rig = place
    with workers(rig, pool):
        told = ask(rig, project, f"without-{pool}")
        until(lambda: not rig.queue_lengths(), "no message is left that none of our workers takes")

    assert told["current"] == "default"
    assert "OperationalError" in told["answer"]  # Celery's own app looks for RabbitMQ on this machine
