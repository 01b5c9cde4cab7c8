"""The AI SDK over HTTP: what is taken, what is refused, and how a client comes back."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import httpx
import pytest

from chordage.config.settings import load
from chordage.orchestrator import stages, views
from chordage.orchestrator.core.callers import LOCAL, KeyScope
from chordage.orchestrator.core.groups import Group
from chordage.orchestrator.core.intents import Hint
from chordage.tasks.schema import request_from
from chordage.workers.bootstrap import runtime_from
from support.face_server import RecordedStreams, server_of, write_room
from support.moments import Script
from support.sse import DONE, events_in
from support.web_server import served

STREAM = "/ai/ada/chat/c1/stream"


@pytest.fixture
def settings(tmp_path, migrated_database_url):
    return load(room=write_room(tmp_path / "room"), database_url=migrated_database_url("sqlite"))


@pytest.fixture
def rt(settings):
    runtime = runtime_from(settings, with_redis=False)
    yield runtime
    runtime.store.close()


@pytest.fixture
def streams(rt) -> RecordedStreams:
    return RecordedStreams(rt=rt)


@pytest.fixture
def client(rt, streams) -> Iterator[httpx.Client]:
    with served(server_of(rt, streams)) as one:
        yield one


def given(text: str = "hello", **fields: Any) -> dict[str, Any]:
    message = {"id": "u1", "role": "user", "parts": [{"type": "text", "text": text}]}
    return {"id": "c1", "trigger": "submit-message", "messages": [message], **fields}


def send(client: httpx.Client, text: str = "hello", **fields: Any) -> list[Any]:
    return events_in(client.post("/ai/ada/chat", json=given(text, **fields)))


def answered(approval_id: str, approved: bool = True, **fields: Any) -> list[dict[str, Any]]:
    part = {"type": "dynamic-tool", "toolName": "send", "toolCallId": "whatever", "state": "approval-responded"}
    part["input"] = {"to": "the arguments of a client count for nothing"}
    approval = {"id": approval_id, "approved": approved, **fields}
    return [{"id": "a1", "role": "assistant", "parts": [{"type": "step-start"}, {**part, "approval": approval}]}]


def approval_in(chunks: list[Any]) -> str:
    (request,) = [chunk for chunk in chunks if chunk != DONE and chunk["type"] == "tool-approval-request"]
    return request["approvalId"]


def test_message_is_a_turn_of_the_callers_thread(client, rt):
    chunks = send(client)
    turn = views.turn(rt.store, views.turns(rt.store)[0].turn_id)

    assert chunks[0] == {"type": "start", "messageId": turn.turn_id}
    assert chunks[-2:] == [{"type": "finish", "finishReason": "stop"}, DONE]
    assert (turn.thread_id, turn.source, turn.text) == ("api:c1", "ai_sdk", "hello")


def test_headers_of_the_protocol(client):
    headers = client.post("/ai/ada/chat", json=given()).headers

    assert headers["x-vercel-ai-ui-message-stream"] == "v1"
    assert headers["x-accel-buffering"] == "no"


@pytest.mark.parametrize(
    ("fields", "status"),
    [
        ({"id": None}, 422),
        ({"id": "x" * 201}, 422),
        ({"messages": []}, 422),
        ({"messages": [{"id": "u1", "role": "tool", "parts": []}]}, 422),
        ({"messages": [{"id": "u1", "role": "user", "parts": [{"type": "file", "url": "x"}]}]}, 422),
        ({"messages": [{"id": "u1", "role": "user", "parts": []}]}, 422),
        ({"messages": [{"id": "a1", "role": "assistant", "parts": []}]}, 422),
        ({"messages": [{"id": "s1", "role": "system", "parts": []}]}, 422),
        ({"messages": answered("unknown")}, 404),
        ({"trigger": "other"}, 422),
        ({"text": "x" * 300_000}, 413),
    ],
)
def test_what_cannot_be_taken_is_refused_before_the_stream_as_plain_json(client, fields, status):
    response = client.post("/ai/ada/chat", json=given(**fields))

    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/json"


@pytest.mark.parametrize("sdk", ["5", "x"])
def test_unknown_version_is_refused(client, sdk):
    assert client.post(f"/ai/ada/chat?sdk={sdk}", json=given()).status_code == 422
    assert client.post("/ai/ada/chat", json=given(), headers={"X-AI-SDK": sdk}).status_code == 422


def test_version_7_is_asked_for_by_the_query_or_a_header(client, streams):
    reset = Script().started().replied("The whole.", dropped="The who").ended().moments
    streams.scripts["reset"] = lambda: reset
    plain = client.post("/ai/ada/chat", json=given("reset"))
    by_query = client.post("/ai/ada/chat?sdk=7", json=given("reset"))
    by_header = client.post("/ai/ada/chat", json=given("reset"), headers={"X-AI-SDK": "7"})

    assert [chunk["type"] for chunk in events_in(plain)[:-1]][-1] == "error"
    for response in (by_query, by_header):
        assert {"type": "reset-step"} in events_in(response)


def test_same_message_again_attaches_to_the_turn(client, rt):
    assert send(client) == send(client)
    assert len(views.turns(rt.store)) == 1


def test_same_message_of_another_chat_is_another_turn(client, rt):
    send(client)
    send(client, id="c2")

    assert len(views.turns(rt.store)) == 2


def test_approval_continues_the_message_and_may_be_repeated(client, rt):
    first = send(client, "write")
    messages = answered(approval_in(first))
    second, again = send(client, messages=messages), send(client, messages=messages)

    assert second == again
    assert second[0] == first[0]
    (output,) = [chunk for chunk in second[:-1] if chunk["type"] == "tool-output-available"]
    assert output["output"] == "sent to bob: True", "with the arguments on record"


def test_denial_carries_its_reason(client):
    chunks = send(client, messages=answered(approval_in(send(client, "write")), False, reason="not now"))

    assert "not now" in str(chunks)
    assert [chunk["type"] for chunk in chunks[:-1]].count("tool-output-denied") == 1


def test_approval_that_was_answered_otherwise_is_a_conflict(client):
    approval = approval_in(send(client, "write"))
    send(client, messages=answered(approval))

    assert client.post("/ai/ada/chat", json=given(messages=answered(approval, False))).status_code == 409


def test_approval_of_another_chat_is_not_found(client, rt):
    approval = approval_in(send(client, "write"))

    assert client.post("/ai/ada/chat", json=given(id="c2", messages=answered(approval))).status_code == 404
    assert len(views.inbox(rt.store)) == 1


def test_nothing_to_come_back_to(client):
    assert client.get(STREAM).status_code == 204
    send(client)
    assert client.get(STREAM).status_code == 204


def test_chat_that_waits_for_an_approval_has_nothing_to_come_back_to(client):
    send(client, "write")

    assert client.get(STREAM).status_code == 204


def queued_turn(rt, space="api") -> str:
    fields = {"text": "hello", "thread_id": "c1"}
    return stages.admit(rt, request_from(fields, source="test", space=space))[0].turn_id


def test_client_comes_back_to_a_queued_turn(client, rt):
    turn_id = queued_turn(rt)
    chunks = events_in(client.get(STREAM))

    assert chunks[0] == {"type": "start", "messageId": turn_id}
    assert chunks[-1] == DONE


def test_client_comes_back_to_a_turn_at_work(client, rt, streams):
    turn_id = queued_turn(rt)
    stages.dispatch(rt, Group.CHAT, Hint(turn_id=turn_id, thread_id="api:c1"), only=True)
    working = Script().started().replied("At work.").ended().moments
    streams.scripts["hello"] = lambda: working

    assert events_in(client.get(STREAM))[0] == {"type": "start", "messageId": turn_id}


def test_other_tenants_and_agents_find_nothing(client, rt, streams):
    queued_turn(rt)
    with served(server_of(rt, streams, caller=replace(LOCAL, tenant="acme"))) as other:
        assert other.get(STREAM).status_code == 204
    assert client.get("/ai/bob/chat/c1/stream").status_code == 204


def test_stream_that_breaks_off_ends_with_an_error_and_done(client, streams):
    streams.scripts["break"] = lambda: Script().started().say(*Script().replied("Half").moments[:2]).moments
    chunks = send(client, "break")

    assert chunks[-2]["type"] == "error"
    assert chunks[-1] == DONE


def test_failed_turn_is_an_error(client):
    chunks = send(client, "fail")

    assert chunks[-2]["type"] == "error"
    assert chunks[-1] == DONE


def test_scopes(rt, streams, client):
    approval = approval_in(send(client, "write"))
    without_submit = replace(LOCAL, scopes=frozenset({KeyScope.READ, KeyScope.PAYLOADS}))
    without_decide = replace(LOCAL, scopes=frozenset(KeyScope) - {KeyScope.DECIDE})
    with served(server_of(rt, streams, caller=without_submit)) as other:
        assert other.post("/ai/ada/chat", json=given()).status_code == 403
        assert other.get(STREAM).status_code == 204
    with served(server_of(rt, streams, caller=without_decide)) as other:
        assert other.post("/ai/ada/chat", json=given(messages=answered(approval))).status_code == 403
    with served(server_of(rt, streams, caller=replace(LOCAL, agents=frozenset({"bob"})))) as other:
        assert other.post("/ai/ada/chat", json=given()).status_code == 403
        assert other.get(STREAM).status_code == 403
