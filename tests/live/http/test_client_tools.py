"""Tools of the caller over each protocol: what is taken, what is refused, and who may send results."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import httpx
import pytest

from chordage.config.settings import load
from chordage.orchestrator import stages, views
from chordage.orchestrator.core.approvals import Action, DecisionRequest
from chordage.orchestrator.core.callers import LOCAL, Caller, KeyScope
from chordage.workers.bootstrap import runtime_from
from support.face_server import RecordedStreams, server_of, write_room
from support.sse import events_in
from support.web_server import served

SCHEMA = {"type": "object", "properties": {"of": {"type": "array"}}}
PICK = {"name": "pick", "description": "Have the person pick one.", "parameters": SCHEMA}
FUNCTION = {"type": "function", **PICK}
ASKED = {"model": "ada", "messages": [{"role": "user", "content": "choose"}]}
SUBMITS = frozenset({KeyScope.SUBMIT, KeyScope.READ, KeyScope.PAYLOADS})


@pytest.fixture
def rt(tmp_path, migrated_database_url):
    settings = load(room=write_room(tmp_path / "room"), database_url=migrated_database_url("sqlite"))
    runtime = runtime_from(settings, with_redis=False)
    yield runtime
    runtime.store.close()


@pytest.fixture
def streams(rt) -> RecordedStreams:
    return RecordedStreams(rt=rt)


@pytest.fixture
def client(rt, streams) -> Iterator[httpx.Client]:
    """With a key that may not decide."""
    with served(server_of(rt, streams, caller=replace(LOCAL, scopes=SUBMITS))) as one:
        yield one


def complete(client: httpx.Client, *more: dict[str, Any], text: str = "choose", **fields: Any) -> httpx.Response:
    messages = [{"role": "user", "content": text}, *more]
    tools = [{"type": "function", "function": PICK}]
    return client.post("/v1/chat/completions", json={"model": "ada", "messages": messages, "tools": tools, **fields})


def asked(client: httpx.Client, text: str = "choose") -> tuple[dict[str, Any], str]:
    """The message of the assistant, and the id of its call."""
    message = complete(client, text=text).json()["choices"][0]["message"]
    return message, message["tool_calls"][0]["id"]


def result(call_id: str, content: str = "red") -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": call_id, "content": content}


def code(response: httpx.Response) -> tuple[int, str]:
    return response.status_code, response.json()["error"]["code"]


def test_results_need_no_scope_to_decide(client, rt):
    message, call_id = asked(client)
    answer = complete(client, message, result(call_id)).json()["choices"][0]

    assert (answer["finish_reason"], answer["message"]["content"].startswith("So it is: 3")) == ("stop", True)
    assert len(views.turns(rt.store)) == 1


def test_result_that_is_sent_again_is_the_same_and_another_is_refused(client):
    message, call_id = asked(client)
    first, again, other = (complete(client, message, result(call_id, said)) for said in ("red", "red", "blue"))

    assert first.json()["choices"] == again.json()["choices"]
    assert other.status_code == 409


def test_result_with_a_new_message_is_taken_before_it(client, rt):
    message, call_id = asked(client)
    answer = complete(client, message, result(call_id), {"role": "user", "content": "and thanks"}).json()["choices"][0]

    assert answer["message"]["content"] == "You said: and thanks"
    assert len({turn.thread_id for turn in views.turns(rt.store)}) == 1, "the call leads to its thread"


def test_result_that_comes_too_late_does_not_keep_back_a_new_message(client, rt):
    message, call_id = asked(client)
    (turn,) = views.turns(rt.store)
    stages.cancel_turn(rt, turn.turn_id, space=None)
    late = complete(client, message, result(call_id))
    answer = complete(client, message, result(call_id), {"role": "user", "content": "and thanks"})

    assert late.status_code == 409
    assert answer.json()["choices"][0]["message"]["content"] == "You said: and thanks"


def test_result_of_a_call_that_was_denied_does_not_keep_back_the_others(client, rt, streams):
    """Clients send the results of a round together."""
    message = complete(client, text="two of them").json()["choices"][0]["message"]
    first, second = (call["id"] for call in message["tool_calls"])
    _, due = stages.decide(rt, [DecisionRequest(target=first, action=Action.CANCEL)], source="cli")
    streams.due += due
    answer = complete(client, message, result(first, "red"), result(second, "small"), text="two of them")

    assert answer.status_code == 200, answer.text
    content = answer.json()["choices"][0]["message"]["content"]
    assert content.startswith("So it is:")
    assert ("has not carried this call out" in content, "small" in content, "red" in content) == (True, True, False)


def test_result_never_allows_a_call_that_a_person_has_to_allow(client, rt):
    """A text in the place of a result says nothing about whether the agent's own tool may run."""
    message = complete(client, text="write to bob").json()["choices"][0]["message"]
    (question,) = views.inbox(rt.store)
    answers = [complete(client, message, result(name), text="write to bob") for name in (question.call_id, question.id)]

    assert [code(answer) for answer in answers] == [(404, "not_found")] * 2
    assert [one.id for one in views.inbox(rt.store)] == [question.id]


def test_approval_needs_the_scope_to_decide_beside_a_result_too(client, rt):
    tools = {"tools": [FUNCTION]}
    response = client.post("/v1/responses", json={"model": "ada", "input": "everything", **tools}).json()
    ids = {item["type"]: item for item in response["output"]}
    given = [
        {"type": "function_call_output", "call_id": ids["function_call"]["call_id"], "output": "red"},
        {"type": "mcp_approval_response", "approval_request_id": ids["mcp_approval_request"]["id"], "approve": True},
    ]
    both = client.post("/v1/responses", json={"model": "ada", "previous_response_id": response["id"], "input": given})

    assert both.status_code == 403
    assert len(views.inbox(rt.store)) == 2, "all are stored, or none"


@pytest.mark.parametrize("call_id", ["no-such-call", "\x00", "a" * 500, "ü"])
def test_result_of_a_call_that_nobody_made(client, call_id):
    answer = complete(client, {"role": "assistant", "content": None}, result(call_id))

    assert code(answer) == (404, "not_found")


def test_result_of_a_call_of_others_is_not_known(client, rt, streams):
    message, call_id = asked(client)
    other = Caller(id="other", scopes=SUBMITS, tenant="acme")
    with served(server_of(rt, streams, caller=other)) as of_other:
        answer = complete(of_other, message, result(call_id))

    assert code(answer) == (404, "not_found")


@pytest.mark.parametrize(
    ("tool", "words"),
    [
        ({"type": "function", "function": {**PICK, "name": "add"}}, "has a tool 'add' of its own"),
        ({"type": "function", "function": {**PICK, "parameters": {"type": "array"}}}, "no object but 'array'"),
        ({"type": "function", "function": {**PICK, "name": "no such name"}}, "give 1 to 64 letters"),
        ({"type": "function", "function": {"description": "x"}}, "tools.0.function.name"),
    ],
)
def test_tool_that_cannot_be_offered(client, rt, tool, words):
    answer = complete(client, tools=[tool])

    assert code(answer) == (400, "invalid_value")
    assert words in answer.json()["error"]["message"]
    assert views.turns(rt.store) == []


def test_tool_that_is_no_function(client):
    assert code(complete(client, tools=[{"type": "web_search"}])) == (400, "unsupported_parameter")


def test_tools_are_not_offered_where_the_request_says_none(client):
    answer = complete(client, tool_choice="none").json()["choices"][0]

    assert answer["finish_reason"] == "stop"
    assert "There is no tool 'pick'" in answer["message"]["content"]


def test_agui_refuses_a_tool_of_the_agent(client):
    body = {"threadId": "t1", "runId": "r1", "messages": [{"id": "u1", "role": "user", "content": "choose"}]}
    answer = client.post("/agui/ada", json={**body, "tools": [{**PICK, "name": "add"}]})

    assert (answer.status_code, answer.json()["field"]) == (422, "client_tools")


def test_agui_tool_that_failed_is_told_to_the_model(client, rt):
    said = [{"id": "u1", "role": "user", "content": "choose"}]
    body = {"threadId": "t1", "protocolVersion": "1.0", "tools": [PICK]}
    first = events_in(client.post("/agui/ada", json={**body, "runId": "r1", "messages": said}))
    (call_id,) = first[-1]["outcome"]["pendingToolCallIds"]
    reply = {"id": "a1", "role": "assistant", "toolCalls": [{"id": call_id, "function": {"name": "pick"}}]}
    failed = {"id": "m1", "role": "tool", "toolCallId": call_id, "content": "", "error": "the page is closed"}
    second = events_in(client.post("/agui/ada", json={**body, "runId": "r2", "messages": [*said, reply, failed]}))

    assert second[-1]["outcome"]["type"] == "success"
    text = "".join(event["delta"] for event in second if event["type"] == "TEXT_MESSAGE_CONTENT")
    assert "has not carried this call out. The reason given: the page is closed" in text


def test_ai_sdk_output_of_an_agents_own_tool_answers_nothing(client, rt):
    body = {"id": "c1", "messages": [{"id": "u1", "role": "user", "parts": [{"type": "text", "text": "write to bob"}]}]}
    client.post("/ai/ada/chat", json=body)
    (question,) = views.inbox(rt.store)
    part = {"type": "dynamic-tool", "toolCallId": question.call_id, "state": "output-available", "output": "sent"}
    answer = client.post(
        "/ai/ada/chat",
        json={**body, "messages": [*body["messages"], {"id": "a", "role": "assistant", "parts": [part]}]},
    )

    assert answer.status_code == 422
    assert [one.id for one in views.inbox(rt.store)] == [question.id]


def test_native_caller_answers_by_a_decision(rt, streams):
    with served(server_of(rt, streams)) as client:
        tool = {"name": "pick", "parameters": SCHEMA, "expires_in": 60}
        turn = client.post("/turns", json={"text": "choose", "client_tools": [tool]}).json()["turn_id"]
        list(streams._moments(turn, None))
        (question,) = client.get("/inbox").json()["data"]
        decision = {"target": question["call_id"], "action": "approve", "payload": {"colour": "red"}}
        stored = client.post("/decisions", json={"decisions": [decision]})
        list(streams._moments(turn, None))

        assert (question["why"], question["expires_at"] is not None, stored.status_code) == ("client_tool", True, 202)
        assert client.get(f"/turns/{turn}").json()["answer"].endswith('{"colour": "red"}')


def test_decision_beside_a_message_needs_the_scope_where_a_person_is_asked(client, rt):
    complete(client, text="write to bob")
    (question,) = views.inbox(rt.store)
    decision = {"target": question.id, "action": "approve"}
    answer = client.post("/turns", json={"text": "and this", "decisions": [decision]})

    assert (answer.status_code, answer.json()["scope"]) == (403, "decide")
    assert [one.id for one in views.inbox(rt.store)] == [question.id]
