"""Messages to a busy thread, through real processes: into a running round, and against a running tool."""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import closing

import pytest
from redis import Redis

from support.databases import BACKENDS
from support.invariants import check_all
from support.rig import UNHURRIED, Rig
from support.waiting import PATIENCE, until

pytestmark = [pytest.mark.redis, pytest.mark.slow]

AGENT = """
model = "scripted:script.yaml"
tools = ["gate_tools"]

[models.fake]
wire = "openai"
base_url = "{url}/v1"
"""
TOOLS = '''
import time
from pathlib import Path

from chordage import Context, tool

HERE = Path(__file__).parent


@tool(effect="idempotent", timeout=300)
def wait_at(gate: str, ctx: Context) -> str:
    """Wait until the gate is open."""
    (HERE / f"{gate}.begun").touch()
    while not (HERE / f"{gate}.open").exists():
        if ctx.cancelled:
            (HERE / f"{gate}.cancelled").touch()
            return "never mind"
        time.sleep(0.05)
    return f"{gate} is open"
'''
SCRIPT = """
- when: wait
  tool_calls: [{name: wait_at, arguments: {gate: "{user}"}}]
- when: wait
  text: "Done: {results}"
- when: mind
  text: "I heard: {user}"
"""


@pytest.fixture(scope="module", params=BACKENDS)
def fleet(request, databases, redis_databases, tmp_path_factory):
    url, redis_url = databases.migrated(request.param), next(redis_databases)
    with Redis.from_url(redis_url) as redis:
        redis.flushdb()
    with closing(Rig(tmp_path_factory.mktemp("rig"), url, redis_url, **UNHURRIED)) as rig:
        (rig.room / "agent.toml").write_text(AGENT.format(url=rig.model.url))
        (rig.room / "script.yaml").write_text(SCRIPT)
        (rig.room / "gate_tools.py").write_text(TOOLS)
        rig.worker("turns", "--role", "turns", "--concurrency", "4")
        rig.worker("tools", "--role", "tools", "--concurrency", "2")
        rig.ready()
        yield rig
    databases.drop(url)


def submit(rig: Rig, text: str, thread: str, **fields: object) -> str:
    """As any Celery app does, by the name of the task."""
    kwargs = {"text": text, "thread_id": thread, **fields}
    sent = rig.app.send_task("turns.submit", kwargs=kwargs, queue="chat")
    turn_id = sent.get(timeout=PATIENCE)
    sent.forget()
    return turn_id


def chordage(rig: Rig, *arguments: str) -> str:
    command = [sys.executable, "-m", "chordage.workers.cli", *arguments]
    done = subprocess.run(
        command, cwd=rig.folder, env=rig.env, capture_output=True, text=True, check=False, timeout=PATIENCE
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def end_of(rig: Rig, turn_id: str) -> str:
    until(lambda: rig.row("turns", id=turn_id)["disposition"], "the turn is done")
    return rig.row("turns", id=turn_id)["disposition"]


def test_a_message_is_taken_into_a_running_round(fleet):
    first = submit(fleet, "wait-1", "steered")
    until((fleet.room / "wait-1.begun").exists, "the tool is at work")
    second = submit(fleet, "mind this", "steered", when_busy="steer")
    assert fleet.row("turns", id=second)["status"] == "queued"
    (fleet.room / "wait-1.open").touch()

    assert (end_of(fleet, first), end_of(fleet, second)) == ("answered", "steered")
    shown = json.loads(chordage(fleet, "show", second, "--json"))
    assert shown["turn"]["answer"] == "I heard: mind this"
    assert shown["run"]["turn_id"] == first
    assert [step["kind"] for step in shown["run"]["steps"]] == ["inference", "tool_round", "steered", "inference"]
    assert f"steered into run {shown['run']['run_id']}" in chordage(fleet, "show", second)
    assert fleet.rows("calls", thread_id="api:steered")[0]["content"] == "wait-1 is open"
    check_all(fleet.runtime.store)


def test_client_that_waits_for_a_steered_turn_gets_the_answer_of_its_run(fleet):
    submit(fleet, "wait-2", "waited")
    until((fleet.room / "wait-2.begun").exists, "the tool is at work")
    command = [sys.executable, "-m", "chordage.workers.cli", "submit", "mind me", "--thread", "api:waited"]
    waits = subprocess.Popen(
        [*command, "--when-busy", "steer", "--wait"], cwd=fleet.folder, env=fleet.env, stdout=subprocess.PIPE, text=True
    )
    until(lambda: len(fleet.rows("turns", thread_id="api:waited")) == 2, "the message is stored")
    (fleet.room / "wait-2.open").touch()

    said, _ = waits.communicate(timeout=PATIENCE)
    assert (waits.returncode, said) == (0, "I heard: mind me\n")


@pytest.mark.parametrize("when_busy", ["interrupt", "rollback"])
def test_a_running_tool_sees_that_a_message_has_ended_its_run(fleet, when_busy):
    gate = f"wait-{when_busy}"
    first = submit(fleet, gate, when_busy)
    until((fleet.room / f"{gate}.begun").exists, "the tool is at work")
    second = submit(fleet, "mind this instead", when_busy, when_busy=when_busy)

    assert (end_of(fleet, first), end_of(fleet, second)) == ("cancelled", "answered")
    until((fleet.room / f"{gate}.cancelled").exists, "the tool was told")
    assert fleet.answer(second) == "I heard: mind this instead"
    assert fleet.row("calls", thread_id=f"api:{when_busy}")["status"] == "cancelled"
    remarks = json.loads(chordage(fleet, "show", f"api:{when_busy}", "--json"))["history"]
    assert (gate in json.dumps(remarks)) == (when_busy == "interrupt")
    check_all(fleet.runtime.store)
