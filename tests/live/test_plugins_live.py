"""Plugins in real processes: a room with permissions, a stop and a plugin of its own, and turns that come by name.

The gate is asked in the turns worker and, for a call that was approved, once more in the tools worker.
"""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import closing

import pytest
from redis import Redis

from support.databases import BACKENDS
from support.invariants import check_all
from support.rig import UNHURRIED, Plan, Rig
from support.waiting import PATIENCE, until

pytestmark = [pytest.mark.redis, pytest.mark.slow]

AGENT = """
model = "fake:model"
tools = ["rig_tools"]

[models.fake]
wire = "anthropic"
base_url = "{url}"

[permission]
allow = ["pure"]
ask = ["idempotent"]
deny = ["raises", "unsafe(who=denied*)"]

[stops]
max_rounds = 2

[[plugins]]
use = "house_rules:HouseRules"
text = "Be kind."
"""
HOUSE_RULES = '''
from chordage.orchestrator.core.phases import Scope
from chordage.orchestrator.core.plugin_state import Merge, SetState
from chordage.orchestrator.core.verdicts import AddContextMessage
from chordage.orchestrator.plugins.base import Plugin

FINISHED = "house-rules.finished"


class HouseRules(Plugin):
    """Counts in the tools worker, and tells the model in the turns worker."""

    id = "house-rules"

    def __init__(self, *, text):
        self._text = text

    def before_inference(self, context):
        finished = context.noted(Scope.RUN, FINISHED, 0)
        return [AddContextMessage(key="house-rules", text=f"{self._text} Finished: {finished}.")]

    def after_tool_execute(self, context):
        return [SetState(scope=Scope.RUN, key=FINISHED, value=1, merge=Merge.ADD)]
'''


@pytest.fixture(scope="module", params=BACKENDS)
def fleet(request, databases, redis_databases, tmp_path_factory):
    url, redis_url = databases.migrated(request.param), next(redis_databases)
    with Redis.from_url(redis_url) as redis:
        redis.flushdb()
    with closing(Rig(tmp_path_factory.mktemp("rig"), url, redis_url, **UNHURRIED)) as rig:
        (rig.room / "agent.toml").write_text(AGENT.format(url=rig.model.url))
        (rig.room / "house_rules.py").write_text(HOUSE_RULES)
        rig.worker("turns", "--role", "turns", "--concurrency", "4")
        rig.worker("tools", "--role", "tools", "--concurrency", "2")
        rig.ready()
        yield rig
    databases.drop(url)


@pytest.fixture
def rig(fleet):
    """The fleet of all these tests, and nothing that the model has seen before."""
    fleet.model.requests.clear()
    return fleet


def submit(rig: Rig, plan: Plan) -> str:
    """As any Celery app does, by the name of the task."""
    sent = rig.app.send_task("turns.submit", kwargs={"text": plan.text, "thread_id": plan.id}, queue="chat")
    turn_id = sent.get(timeout=PATIENCE)
    sent.forget()
    return turn_id


def run_of(rig: Rig, turn_id: str) -> dict:
    """Of a turn, once it is done."""
    until(lambda: rig.row("turns", id=turn_id)["disposition"], "the turn is done")
    return rig.row("runs", turn_id=turn_id)


def chordage(rig: Rig, *arguments: str) -> str:
    command = [sys.executable, "-m", "chordage.workers.cli", *arguments]
    done = subprocess.run(
        command, cwd=rig.folder, env=rig.env, capture_output=True, text=True, check=False, timeout=PATIENCE
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def results(rig: Rig) -> list[dict]:
    """What the model was last told of its calls."""
    blocks = [block for message in rig.model.requests[-1].body["messages"] for block in message["content"]]
    return [block for block in blocks if block["type"] == "tool_result"]


def system_of(request) -> str:
    """The system text, whatever of it is marked to be kept by the provider."""
    return "\n\n".join(block["text"] for block in request.body["system"])


def test_call_that_needs_approval_runs_once_it_is_approved(rig):
    turn = submit(rig, Plan(id="asked", tools=("pure", "idempotent")))
    until(lambda: rig.rows("runs", turn_id=turn, status="waiting"), "the run waits")
    (question,) = json.loads(chordage(rig, "inbox", "--json"))
    found = (question["why"], question["tool"], question["arguments"]["who"])
    assert found == ("permission", "idempotent", "asked.0.1")
    assert rig.facts(name="idempotent", phase="begin") == []

    chordage(rig, "approve", question["id"])
    run = run_of(rig, turn)

    assert (run["reason"], rig.answer(turn)) == ("natural_end", "done asked: pure asked.0.0\nidempotent asked.0.1")
    assert len(rig.facts(name="idempotent", phase="end")) == 1
    assert system_of(rig.model.requests[-1]) == "Be kind. Finished: 2."
    assert json.loads(chordage(rig, "inbox", "--json")) == []
    check_all(rig.runtime.store)


def test_a_denied_call_is_an_error_that_the_model_reads(rig):
    turn = submit(rig, Plan(id="denied", tools=("unsafe", "raises", "pure")))
    run = run_of(rig, turn)

    told = [(result.get("is_error", False), result["content"]) for result in results(rig)]
    assert [is_error for is_error, _ in told] == [True, True, False]
    assert """the rule 'unsafe(who="denied*")' does not allow this call""" in told[0][1]
    assert "the rule 'raises' does not allow this call" in told[1][1]
    assert told[2][1] == "pure denied.0.2"
    offered = {tool["name"] for tool in rig.model.requests[0].body["tools"]}
    assert ("unsafe" in offered, "raises" in offered) == (True, False), "what can never run is not shown"
    assert [call["code"] for call in rig.rows("calls", run_id=run["id"])] == ["blocked", "blocked", None]
    assert {fact["name"] for fact in rig.facts(what="tool")} & {"unsafe", "raises"} == set()


def test_a_stop_ends_the_run_with_its_code(rig):
    turn = submit(rig, Plan(id="long", rounds=5, tools=("pure",)))
    run = run_of(rig, turn)

    assert (run["reason"], run["code"], len(rig.model.requests)) == ("stopped", "max_rounds", 2)
    assert [call["status"] for call in rig.rows("calls", run_id=run["id"])] == ["succeeded"] * 2


def test_context_from_a_plugin_of_the_room_is_in_the_prompt(rig):
    turn = submit(rig, Plan(id="kind", tools=("pure", "pure")))
    run_of(rig, turn)

    assert [system_of(request) for request in rig.model.requests] == [
        "Be kind. Finished: 0.",
        "Be kind. Finished: 2.",
    ]
