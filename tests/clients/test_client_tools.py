"""Every stock client in a conversation with a fleet in processes of its own: parallel tools of the agent, an approval,
and a tool that the client carries out. What each ends with is what is on record.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

from chordage.orchestrator import views
from chordage.orchestrator.store.database import Store
from chordage.workers.fleet.member import free_port
from support import agui_order
from support.face_server import write_room
from support.fleet_folder import alive_in, call, kill
from support.node_clients import play as play_node
from support.plain_room import forget_settings

pytestmark = [pytest.mark.redis, pytest.mark.slow]

SCHEMA = {"type": "object", "properties": {"of": {"type": "array", "items": {"type": "string"}}}, "required": ["of"]}
PATIENCE = 240.0  # seconds; a loaded machine takes long to start five processes
PICK = {"name": "pick", "description": "Have the person pick one.", "parameters": SCHEMA}


class Fleet:
    def __init__(self, url: str, store: Store) -> None:
        self.url = url
        self.store = store

    def said(self, thread_id: str) -> list[str]:
        """All texts of the thread but those of its user, sorted: results come as they are ready."""
        texts = []
        for remark in views.history(self.store, thread_id):
            texts += [remark.text] if remark.role == "assistant" and remark.text else []
            texts += [each.content or "" for each in remark.calls]
        return sorted(texts)

    def results(self) -> list[tuple[str, str | None, str | None]]:
        """Of the calls of the newest turn: tool, worker and content."""
        newest = views.turns(self.store, limit=1)[0]
        assert newest.run_id is not None
        remarks = [one for one in views.history(self.store, newest.thread_id) if one.run_id == newest.run_id]
        return sorted((each.tool, each.worker, each.content) for one in remarks for each in one.calls)


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory, valkey_program: Path) -> Iterator[Fleet]:
    room = write_room(tmp_path_factory.mktemp("fleet") / "room")
    with pytest.MonkeyPatch.context() as environ:
        forget_settings(environ)
        port = str(free_port())
        try:
            started = call(room, "start", "--tools", "1", "--port", port, patience=PATIENCE)
            assert started.code == 0, started.err
            with contextlib.closing(Store(f"sqlite:///{room / 'execution.db'}")) as store:
                yield Fleet(f"http://127.0.0.1:{port}", store)
        finally:
            call(room, "stop", patience=PATIENCE)
            kill(alive_in(room))


@pytest.mark.parametrize("client", ["agui10", "agui0"])
def test_agui(fleet: Fleet, client: str) -> None:
    steps = [
        {"text": "choose"},
        {"result": "red"},
        {"text": "everything"},
        {"answer": {"approved": True}, "result": "blue"},
    ]
    chats = [{"thread": client, "steps": steps, "tools": [PICK]}]
    (chat,) = play_node("agui.mjs", {"url": f"{fleet.url}/agui/ada", "client": client, "chats": chats})

    assert [run.get("error") for run in chat["runs"]] == [None] * 4
    assert [run["outcome"] for run in chat["runs"]] == ["success", "success", "interrupt", "success"]
    spoken = agui_order.said(message for message in chat["messages"] if message["role"] not in {"activity", "user"})
    assert sorted(one["text"] for one in spoken if one["text"]) == fleet.said(f"api:{client}")
    carried_out = [(tool, worker is None, content) for tool, worker, content in fleet.results()]
    assert carried_out == [("add", False, "3"), ("pick", True, "blue"), ("send", False, "sent to bob: True")]


@pytest.mark.parametrize("version", ["6", "7"])
def test_ai_sdk(fleet: Fleet, version: str) -> None:
    steps = [{"text": "choose"}, {"result": "red"}, {"text": "everything"}, {"approve": True, "result": "blue"}]
    chats = [{"id": f"ai{version}", "steps": steps, "tools": [PICK]}]
    url = f"{fleet.url}/ai/ada/chat?sdk={version}"
    (chat,) = play_node("ai_sdk.mjs", {"url": url, "client": f"ai{version}", "chats": chats})

    assert [run.get("error") for run in chat["runs"]] == [None] * 4
    assert [run.get("wouldSend") for run in chat["runs"]] == [None, True, None, True]
    parts = [part for one in chat["messages"] if one["role"] == "assistant" for part in one["parts"]]
    spoken = [part["text"] for part in parts if part["type"] == "text"]
    spoken += [part["output"] for part in parts if part["type"] == "dynamic-tool"]
    assert sorted(spoken) == fleet.said(f"api:ai{version}")


@pytest.fixture
def client(fleet: Fleet) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{fleet.url}/v1", api_key="any", max_retries=0) as one:
        yield one


@pytest.mark.parametrize("streams", [True, False])
def test_chat_completions(fleet: Fleet, client: openai.OpenAI, streams: bool) -> None:
    tools: Any = [{"type": "function", "function": PICK}]
    messages: list[Any] = [{"role": "user", "content": "everything"}]
    asked = complete(client, streams, messages=messages, tools=tools)
    (asked_for,) = asked.message.tool_calls
    messages += [asked.message, {"role": "tool", "tool_call_id": asked_for.id, "content": "red"}]
    waiting = complete(client, streams, messages=messages, tools=tools)
    again = complete(client, streams, messages=messages, tools=tools)

    assert (asked.finish_reason, asked_for.function.arguments) == ("tool_calls", '{"of": ["red", "blue"]}')
    assert asked.message.content == "May bob be written to?"
    assert (waiting.finish_reason, waiting.message.content) == ("stop", "May bob be written to?")
    assert again.message.content == waiting.message.content, "the same result again is the same decision"
    (question,) = views.inbox(fleet.store)
    answer = client.responses.create(
        model="ada",
        previous_response_id=f"resp_{views.turns(fleet.store, limit=1)[0].turn_id}",
        input=[{"type": "mcp_approval_response", "approval_request_id": question.id, "approve": True}],
    )
    assert answer.output_text.startswith("All in all: 3")
    assert [(tool, content) for tool, _, content in fleet.results()] == [
        ("add", "3"), ("pick", "red"), ("send", "sent to bob: True"),
    ]  # fmt: skip


def complete(client: openai.OpenAI, streams: bool, **request: Any) -> Any:
    if not streams:
        return client.chat.completions.create(model="ada", **request).choices[0]
    with client.chat.completions.stream(model="ada", **request) as stream:
        return stream.get_final_completion().choices[0]


@pytest.mark.parametrize("streams", [True, False])
def test_responses(fleet: Fleet, client: openai.OpenAI, streams: bool) -> None:
    tools: Any = [{"type": "function", **PICK, "strict": False}]
    asked = respond(client, streams, input="everything", tools=tools)
    kinds = {item.type: item for item in asked.output}
    assert sorted(kinds) == ["function_call", "mcp_approval_request", "mcp_call"]
    given: Any = [
        {"type": "mcp_approval_response", "approval_request_id": kinds["mcp_approval_request"].id, "approve": True},
        {"type": "function_call_output", "call_id": kinds["function_call"].call_id, "output": "red"},
    ]
    answered = respond(client, streams, previous_response_id=asked.id, input=given, tools=tools)

    assert answered.id == asked.id
    assert [item.type for item in answered.output] == ["mcp_call", "message"]
    assert answered.output_text.startswith("All in all: 3")
    spoken = [item.output for item in (*asked.output, *answered.output) if item.type == "mcp_call"]
    assert sorted([*spoken, "red", answered.output_text]) == fleet.said(answered.conversation.id)


def respond(client: openai.OpenAI, streams: bool, **request: Any) -> Any:
    if not streams:
        return client.responses.create(model="ada", **request)
    with client.responses.stream(model="ada", **request) as stream:
        return stream.get_final_response()


def test_npm_package(fleet: Fleet, play: Callable[..., Any]) -> None:
    chat = play("openai_conversation.mjs", f"{fleet.url}/v1", "any", "functions_chat")
    of_chat = fleet.results()
    response = play("openai_conversation.mjs", f"{fleet.url}/v1", "any", "functions")

    assert (chat["reason"], chat["calls"]) == ("tool_calls", [["pick", '{"of": ["red", "blue"]}']])
    assert chat["text"].startswith("So it is: 3")
    assert [(tool, content) for tool, _, content in of_chat] == [("add", "3"), ("pick", "red")]
    assert [kind for kind, _ in response["asked"]] == ["message", "mcp_call", "function_call"]
    assert response["answered"] == [["message", "completed"]]
    assert response["text"].startswith("So it is: 3")
    assert [(tool, content) for tool, _, content in fleet.results()] == [("add", "3"), ("pick", "red")]
