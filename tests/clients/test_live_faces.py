"""Unchanged clients of AG-UI and the AI SDK, with the streams that the server has: from Redis and the journal."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from chordage.config.settings import load
from chordage.orchestrator import stages, views
from chordage.orchestrator.core.intents import Advance
from chordage.orchestrator.core.status import TurnStatus
from chordage.orchestrator.runtime import Runtime
from chordage.workers import local, web
from chordage.workers.bootstrap import runtime_from
from support import agui_order
from support.face_server import write_room
from support.node_clients import play
from support.web_server import served

pytestmark = pytest.mark.redis

LEAD = """\
- {text: I ask the clerk., tool_calls: [{name: ask_clerk, arguments: {message: write to bob}}]}
- {text: "The clerk said: {results}"}
"""
CLERK = """\
- {tool_calls: [{name: send, arguments: {to: bob}}]}
- {text: "It came to this: {results}"}
"""


def add_a_sub_agent(room: Path) -> None:
    """The lead asks the clerk, whose tool asks a person."""
    (tools,) = room.glob("face_room_tools_*.py")
    (room / "agents" / "lead.toml").write_text('model = "scripted:lead.yaml"\nagents = ["clerk"]\n')
    (room / "agents" / "clerk.toml").write_text(f'model = "scripted:clerk.yaml"\ntools = ["{tools.stem}:send"]\n')
    (room / "lead.yaml").write_text(LEAD)
    (room / "clerk.yaml").write_text(CLERK)


@pytest.fixture(params=["sqlite-wait", "postgres-wait", "sqlite-continue"])
def settings(request, tmp_path, migrated_database_url, redis_url):
    """With `continue` the model is asked again before the decision, so that the last result comes behind that reply."""
    backend, _, mixed_round = request.param.partition("-")
    room = write_room(tmp_path / "room", mixed_round=mixed_round)
    add_a_sub_agent(room)
    return load(room=room, database_url=migrated_database_url(backend), redis_url=redis_url)


@pytest.fixture
def rt(settings) -> Iterator[Runtime]:
    """Of a worker, as it were: it carries out what comes until the test is over."""
    runtime = runtime_from(settings)
    over = threading.Event()
    worker = threading.Thread(target=_work, args=(runtime, over))
    worker.start()
    yield runtime
    over.set()
    worker.join()
    runtime.store.close()


def _work(rt: Runtime, over: threading.Event) -> None:
    while not over.wait(0.02):
        for line in views.turns(rt.store, status=TurnStatus.QUEUED):
            local.carry_out(rt, local.begin(rt, views.turn(rt.store, line.turn_id)))
        for line in views.turns(rt.store, status=TurnStatus.ACTIVE):
            if line.reason is None and line.run_id is not None:
                local.carry_out(rt, [Advance(run_id=line.run_id, group=line.group)])
        stages.project(rt)


@pytest.fixture
def address(settings, rt) -> Iterator[str]:
    with served(web.wired(settings)) as client:
        yield str(client.base_url)


def spoken(rt: Runtime, thread_id: str) -> list[str]:
    said: list[str] = []
    for remark in views.history(rt.store, thread_id):
        said += [remark.text] if remark.text else []
        said += [call.content or "" for call in remark.calls]
    return sorted(said)


@pytest.mark.parametrize("client", ["agui10", "agui0"])
def test_agui_client(address, rt, client):
    steps = [{"text": "write to bob"}, {"answer": {"approved": True}}, {"text": "thanks"}, {"text": "fail"}]
    task = {"url": f"{address}/agui/ada", "client": client, "chats": [{"thread": "t1", "steps": steps}]}
    (chat,) = play("agui.mjs", task)

    assert [run.get("error") for run in chat["runs"]] == [None, None, None, None]
    assert [run.get("outcome") for run in chat["runs"]] == ["interrupt", "success", "success", None]
    assert chat["runs"][3]["code"]
    said = agui_order.said(message for message in chat["messages"] if message["role"] != "activity")
    assert sorted(one["text"] for one in said if one["text"]) == spoken(rt, "api:t1")


@pytest.mark.parametrize("client", ["agui10", "agui0"])
def test_agui_client_answers_a_sub_agent(address, rt, client):
    steps = [{"text": "delegate"}, {"answer": {"approved": True}}]
    task = {"url": f"{address}/agui/lead", "client": client, "chats": [{"thread": "t1", "steps": steps}]}
    (chat,) = play("agui.mjs", task)
    asked, answered = chat["runs"]

    assert [run.get("error") for run in chat["runs"]] == [None, None]
    assert [run.get("outcome") for run in chat["runs"]] == ["interrupt", "success"]
    (interrupt,) = asked["interrupts"]
    if client == "agui10":
        (child,) = (line for line in views.turns(rt.store) if line.agent == "clerk")
        started, suspended = sub_agents(asked)
        again, finished = sub_agents(answered)
        assert (started["name"], started["subagentRunId"]) == ("clerk", child.turn_id)
        assert started["parentToolCallId"] == views.turn(rt.store, child.turn_id).parent_call
        assert interrupt["subagentRunId"] == suspended["subagentRunId"] == child.turn_id
        assert suspended["outcome"] == {"type": "suspended", "interruptIds": [interrupt["id"]]}
        assert again == started
        assert (finished["outcome"], finished["result"]) == (
            {"type": "success"}, views.turn(rt.store, child.turn_id).answer,
        )  # fmt: skip
        for run in chat["runs"]:
            agui_order.check(run["events"])
    else:
        assert [*sub_agents(asked), *sub_agents(answered)] == []
        assert "subagentRunId" not in interrupt
    said = agui_order.said(message for message in chat["messages"] if message["role"] != "activity")
    assert sorted(one["text"] for one in said if one["text"]) == spoken(rt, "api:t1")


def sub_agents(run: dict[str, Any]) -> list[dict[str, Any]]:
    return [event for event in run["events"] if event["type"].startswith("SUBAGENT_")]


@pytest.mark.parametrize("version", ["6", "7"])
def test_ai_sdk_client(address, rt, version):
    steps = [{"text": "write to bob"}, {"approve": True}, {"text": "thanks"}, {"back": True}]
    url = f"{address}/ai/ada/chat?sdk={version}"
    (chat,) = play("ai_sdk.mjs", {"url": url, "client": f"ai{version}", "chats": [{"id": "c1", "steps": steps}]})

    assert [run.get("error") for run in chat["runs"]] == [None, None, None, None]
    assert chat["runs"][3]["nothing"]
    parts = [part for message in chat["messages"] for part in message["parts"]]
    said = [part["text"] for part in parts if part["type"] == "text"]
    said += [part["output"] for part in parts if part["type"] == "dynamic-tool"]
    assert sorted(said) == spoken(rt, "api:c1")
