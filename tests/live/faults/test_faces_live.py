"""Unchanged clients of AG-UI and the AI SDK while the worker that writes their texts is killed."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import pytest

from chordage.orchestrator import views
from chordage.workers import web
from support import agui_order
from support.following import reading
from support.node_clients import play
from support.rig import Rig
from support.waiting import until
from support.web_server import served

pytestmark = [pytest.mark.redis, pytest.mark.slow]

WORDS = " ".join(f"word{number}" for number in range(60))
REASONING = WORDS[:70]
# While the file `slow` is there, a first text takes so long that the kill meets those of all clients.
SCRIPT = f"""
from pathlib import Path

from chordage.orchestrator.gateways.models.script import PromptPosition

def reply(prompt, attempt):
    if PromptPosition.of(prompt).index:
        return {{"text": "Then {WORDS}", "pace": 0.01, "chunk": 7}}
    way = {{"pace": 1.0, "chunk": 24}} if Path(__file__).with_name("slow").exists() else {{"pace": 0.03, "chunk": 7}}
    calls = [{{"name": "pure", "arguments": {{"who": "a"}}}}]
    return {{"reasoning": "{REASONING}", "text": "First {WORDS}", "tool_calls": calls, **way}}
"""
AGUI, AI_SDK = ("agui10", "agui0"), ("ai6", "ai7")


@pytest.fixture
def rig(make_rig, migrated_database_url):
    rig = make_rig(migrated_database_url("sqlite"))
    rig.agent("teller", "scripted:teller.py", SCRIPT)
    return rig


def texts_on_record(rig: Rig, thread: str) -> list[str]:
    return [remark.text for remark in views.history(rig.runtime.store, f"api:{thread}") if remark.role == "assistant"]


def played(url: str, client: str) -> dict[str, Any]:
    """On the thread of the client's name. Version 6 of the AI SDK gets an error, and comes back."""
    if client in AGUI:
        chats = [{"thread": client, "steps": [{"text": "tell"}]}]
        return play("agui.mjs", {"url": f"{url}/agui/teller", "client": client, "chats": chats})[0]
    steps = [{"text": "tell"}, *([{"back": True}] if client == "ai6" else [])]
    task = {
        "url": f"{url}/ai/teller/chat?sdk={client[-1]}",
        "client": client,
        "chats": [{"id": client, "steps": steps}],
    }
    return play("ai_sdk.mjs", task)[0]


def texts_of(client: str, result: dict[str, Any]) -> list[str]:
    if client in AGUI:
        said = agui_order.said(message for message in result["messages"] if message["role"] != "activity")
        return [one["text"] for one in said if one["role"] == "assistant"]
    return [part["text"] for part in result["messages"][-1]["parts"] if part["type"] == "text"]


def reasonings_of(client: str, result: dict[str, Any]) -> list[str]:
    if client in AGUI:
        return agui_order.reasoned(result["messages"])
    return [part["text"] for part in result["messages"][-1]["parts"] if part["type"] == "reasoning"]


def test_worker_killed_in_the_middle_of_a_text(rig):
    rig.worker("a", "--role", "all", "--concurrency", "8")
    rig.ready()
    (rig.room / "slow").touch()
    clients = [*AGUI, *AI_SDK]
    with served(web.wired(rig.settings)) as http, ThreadPoolExecutor() as threads, ExitStack() as stack:
        results = {client: threads.submit(played, str(http.base_url), client) for client in clients}
        until(lambda: len(views.turns(rig.runtime.store)) == len(clients), "all have sent their message")
        turn_ids = [line.turn_id for line in views.turns(rig.runtime.store)]
        readers = [stack.enter_context(reading(http, f"/turns/{turn_id}/events")) for turn_id in turn_ids]
        until(lambda: all(len(reader.texts.get(1, "")) > 60 for reader in readers), "texts come")
        rig.workers["a"].kill()
        (rig.room / "slow").unlink()
        rig.worker("b", "--role", "all", "--concurrency", "8")
        ended = {client: result.result(timeout=180) for client, result in results.items()}

    assert all(reader.resets for reader in readers)
    for client, result in ended.items():
        assert texts_of(client, result) == texts_on_record(rig, client) == [f"First {WORDS}", f"Then {WORDS}"], client
        assert reasonings_of(client, result) == [REASONING], client
        errors = [run.get("error") for run in result["runs"]]
        assert ["from its start" in (error or "") for error in errors] == [
            client == "ai6" and run == 0 for run in range(len(errors))
        ]
