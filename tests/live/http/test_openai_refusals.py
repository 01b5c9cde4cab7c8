"""What OpenAI's API refuses, in the form that its clients read."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from chordage.orchestrator.core import errors
from chordage.orchestrator.core.callers import LOCAL, Caller, KeyScope
from support.openai_moments import ReplayedStreams, ended, plain, queued, started
from support.openai_server import ScriptedEngine, openai_server, without_a_database  # noqa: F401
from support.web_server import raising

HELLO: dict[str, Any] = {"model": "ada", "input": "hello"}
CHAT: dict[str, Any] = {"model": "ada", "messages": [{"role": "user", "content": "hello"}]}


pytestmark = pytest.mark.usefixtures("without_a_database")


@pytest.fixture
def engine() -> ScriptedEngine:
    return ScriptedEngine(scripts=[plain("Hello")] * 5)


@pytest.fixture
def client(engine: ScriptedEngine) -> Iterator[httpx.Client]:
    with openai_server(engine) as one:
        yield one


def refused(response: httpx.Response) -> tuple[int, str, str | None]:
    assert response.headers["content-type"] == "application/json"
    assert response.headers["x-request-id"].startswith("req_")
    error = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    return response.status_code, error["code"], error["param"]


@pytest.mark.parametrize(
    ("more", "param"),
    [
        ({"tools": [{"type": "web_search"}]}, "tools.0"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"store": False}, "store"),
        ({"text": {"format": {"type": "json_schema"}}}, "text.format"),
        ({"prompt": {"id": "p"}}, "prompt"),
        ({"max_tool_calls": 3}, "max_tool_calls"),
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "input.0.content.0"),
    ],
)
def test_what_no_agent_has_is_refused_and_not_ignored(client: httpx.Client, more: dict[str, Any], param: str):
    assert refused(client.post("/v1/responses", json=HELLO | more)) == (400, "unsupported_parameter", param)


@pytest.mark.parametrize(
    ("more", "param"),
    [
        ({"tools": [{"type": "custom", "name": "f"}]}, "tools.0"),
        ({"functions": [{}]}, "functions"),
        ({"n": 2}, "n"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"stop": ["\n"]}, "stop"),
        ({"logprobs": True}, "logprobs"),
    ],
)
def test_the_same_of_a_chat(client: httpx.Client, more: dict[str, Any], param: str):
    assert refused(client.post("/v1/chat/completions", json=CHAT | more)) == (400, "unsupported_parameter", param)


def test_what_only_tunes_a_model_is_ignored(client: httpx.Client):
    harmless = {"temperature": 0.2, "max_tokens": 5, "user": "u", "tools": [], "tool_choice": "auto", "store": True}

    assert client.post("/v1/chat/completions", json=CHAT | harmless).status_code == 200


WRONG: list[tuple[dict[str, Any], tuple[int, str, str | None]]] = [
    ({"input": "hello"}, (400, "missing_required_parameter", "model")),
    ({"model": "nobody", "input": "hello"}, (404, "model_not_found", "model")),
    ({"model": "ada", "input": " "}, (400, "invalid_request", "input")),
    ({"model": "ada", "input": [{"role": "user", "content": " "}]}, (400, "invalid_value", "input")),
    ({"model": "ada", "input": [{"role": "assistant", "content": "Hi"}]}, (400, "invalid_request", "input")),
    ({"model": "ada", "input": [{"role": "boss", "content": "Hi"}]}, (400, "invalid_value", "input.0.role")),
    ({"model": "ada", "input": [{"role": "user", "content": 7}]}, (400, "invalid_type", "input.0.content")),
    ({"model": "ada", "input": 7}, (422, "invalid", "input.str")),
    ({"model": "ada", "input": "\x00"}, (422, "invalid", "text")),
    (
        HELLO | {"conversation": "a", "previous_response_id": "resp_turn-1"},
        (400, "invalid_request", "conversation"),
    ),
    (HELLO | {"previous_response_id": "resp_nothing"}, (404, "not_found", None)),
    (HELLO | {"previous_response_id": "../turns"}, (404, "not_found", None)),
    (HELLO | {"conversation": "\x01"}, (422, "invalid", "thread_id")),
    (HELLO | {"metadata": {"a": 1}}, (422, "invalid", "metadata.a")),
    (
        {"model": "ada", "input": [{"type": "mcp_approval_response", "approve": True}]},
        (400, "missing_required_parameter", "input.0"),
    ),
    (
        {"model": "ada", "input": [{"type": "mcp_approval_response", "approval_request_id": "q", "approve": True}]},
        (400, "missing_required_parameter", "previous_response_id"),
    ),
]


def test_a_wrong_request_is_told_what_to_change(client: httpx.Client):
    for body, refusal in WRONG:
        given = client.post("/v1/responses", content=json.dumps(body), headers={"Content-Type": "application/json"})

        assert refused(given) == refusal, body


NO_UNICODE: list[dict[str, Any]] = [
    {"model": "\ud800"},
    {"metadata": {"\ud800": "a"}},
    {"metadata": {"a": "\ud800"}},
    {"metadata": {"\ud800": 1}},
    {"conversation": "\ud800", "metadata": {"thread_id": "\ud800"}},
    {"previous_response_id": "resp_\ud800", "messages": [{"role": "\ud800"}]},
    {"input": "\ud800", "messages": [{"role": "user", "content": "\ud800"}]},
    {"instructions": "\ud800", "messages": []},
    {"input": [{"role": "\ud800", "content": "a"}], "messages": [{"role": "user", "content": [{"\ud800": 1}]}]},
    {"input": [{"type": "mcp_approval_response", "approval_request_id": "\ud800", "approve": True}], "n": "\ud800"},
    {"\ud800": 1, "model": None},
]


@pytest.mark.parametrize("path", ["/v1/responses", "/v1/chat/completions"])
def test_text_that_is_no_unicode_is_the_fault_of_the_caller(client: httpx.Client, path: str):
    for more in NO_UNICODE:
        body = json.dumps({**HELLO, **CHAT, **more})
        answer = client.post(path, content=body, headers={"Content-Type": "application/json"})

        assert 400 <= answer.status_code < 500, more


def test_a_body_that_is_no_json_is_refused_in_the_same_form(client: httpx.Client):
    broken = client.post("/v1/responses", content="{", headers={"Content-Type": "application/json"})
    form = client.post("/v1/responses", data={"model": "ada"})

    assert refused(broken) == (400, "bad_request", None)
    assert refused(form) == (415, "unsupported_media_type", None)


@pytest.mark.parametrize(
    ("error", "refusal", "header"),
    [
        (
            errors.Unauthenticated("no key"),
            (401, "unauthenticated", None),
            ("www-authenticate", 'Bearer realm="chordage"'),
        ),
        (errors.TooManyRequests("slower", 7.2), (429, "too_many_requests", None), ("retry-after", "8")),
        (errors.Unavailable("the database is away"), (503, "unavailable", None), ("retry-after", "5")),
        (RuntimeError("secret"), (500, "internal", None), None),
    ],
)
@pytest.mark.parametrize("path", ["/v1/models", "/v1/responses/resp_turn-1"])
def test_errors_of_the_way_in_have_the_form_too(
    engine: ScriptedEngine, path: str, error: Exception, refusal: tuple[int, str, None], header: tuple[str, str] | None
):
    with openai_server(engine, authenticate=raising(error)) as client:
        response = client.get(path)

    assert refused(response) == refusal
    assert header is None or response.headers[header[0]] == header[1]
    assert "secret" not in response.text


def key(*scopes: KeyScope, **more: Any) -> Any:
    return lambda _headers: Caller(id="k1", scopes=frozenset(scopes), **more)


ALL = tuple(KeyScope)


@pytest.mark.parametrize(
    ("method", "path", "body", "missing"),
    [
        ("GET", "/v1/models", None, KeyScope.READ),
        ("POST", "/v1/responses", HELLO, KeyScope.SUBMIT),
        ("POST", "/v1/responses", HELLO, KeyScope.PAYLOADS),
        ("POST", "/v1/chat/completions", CHAT, KeyScope.SUBMIT),
        ("GET", "/v1/responses/resp_turn-1", None, KeyScope.PAYLOADS),
        ("GET", "/v1/responses/resp_turn-1/input_items", None, KeyScope.READ),
        ("POST", "/v1/responses/resp_turn-1/cancel", {}, KeyScope.OPERATE),
        ("DELETE", "/v1/responses/resp_turn-1", {}, KeyScope.OPERATE),
        ("POST", "/v1/responses/compact", HELLO, KeyScope.SUBMIT),
        (
            "POST",
            "/v1/responses",
            {"model": "ada", "input": [{"type": "mcp_approval_response", "approval_request_id": "q", "approve": True}]},
            KeyScope.DECIDE,
        ),
    ],
)
def test_a_key_needs_the_scopes_of_what_it_asks_for(
    engine: ScriptedEngine, method: str, path: str, body: dict[str, Any] | None, missing: KeyScope
):
    scopes = [scope for scope in ALL if scope is not missing]
    with openai_server(engine, authenticate=key(*scopes)) as client:
        response = client.request(method, path, json=body)

    assert refused(response)[:2] == (403, "forbidden")
    assert missing.value in response.json()["error"]["message"]


def test_a_key_sees_and_uses_only_its_agents(engine: ScriptedEngine):
    with openai_server(engine, authenticate=key(*ALL, agents=frozenset({"bob"}))) as client:
        names = [model["id"] for model in client.get("/v1/models").json()["data"]]
        hidden = refused(client.get("/v1/models/ada"))
        used = refused(client.post("/v1/responses", json=HELLO))

    assert names == ["bob"]
    assert hidden == (404, "model_not_found", "model")
    assert used[0] == 403


def test_a_turn_of_another_space_is_not_found(engine: ScriptedEngine):
    with openai_server(engine) as client:
        client.post("/v1/responses", json=HELLO)
    with openai_server(engine, authenticate=key(*ALL, tenant="other")) as client:
        paths = ["/v1/responses/resp_turn-1", "/v1/responses/resp_turn-1/input_items"]
        assert [client.get(path).status_code for path in paths] == [404, 404]
        assert refused(client.post("/v1/responses", json=HELLO | {"previous_response_id": "resp_turn-1"}))[0] == 404
        assert refused(client.post("/v1/responses/resp_turn-1/cancel", json={}))[0] == 404


def test_a_tenant_is_that_of_the_key(engine: ScriptedEngine):
    with openai_server(engine, authenticate=key(*ALL, tenant="acme")) as client:
        client.post("/v1/responses", json=HELLO | {"conversation": "t1"})

    assert (engine.requests[0].tenant, engine.requests[0].message.thread_id) == ("acme", "api@acme:t1")


def test_a_stream_that_cannot_begin_is_refused_with_a_status(engine: ScriptedEngine):
    engine.streams = ReplayedStreams()
    with openai_server(engine) as client:
        client.post("/v1/responses", json=HELLO | {"background": True})
        engine.streams.turns.clear()
        response = client.get("/v1/responses/resp_turn-1", params={"stream": "true"})

    assert refused(response) == (404, "not_found", None)


def test_without_streams_only_background_responses_are_taken(engine: ScriptedEngine):
    with openai_server(engine, streams=None) as client:
        assert client.post("/v1/responses", json=HELLO | {"background": True}).json()["status"] == "queued"
        assert refused(client.post("/v1/responses", json=HELLO)) == (503, "unavailable", None)
    assert len(engine.requests) == 1, "nothing is stored that could not be answered"


@pytest.mark.parametrize(
    ("disposition", "status", "code"), [("failed", 502, "model_auth"), ("cancelled", 409, "cancelled")]
)
def test_a_chat_without_an_answer_is_an_error_that_is_not_tried_again(disposition: str, status: int, code: str):
    ends = [queued(), started(), ended(disposition=disposition, code=code if disposition == "failed" else None)]
    with openai_server(ScriptedEngine(scripts=[ends])) as client:
        response = client.post("/v1/chat/completions", json=CHAT)

    assert refused(response)[:2] == (status, code)
    assert response.headers["x-should-retry"] == "false"


@pytest.mark.parametrize(("path", "body"), [("/v1/responses", HELLO), ("/v1/chat/completions", CHAT)])
def test_a_stream_that_breaks_off_says_so(path: str, body: dict[str, Any]):
    with openai_server(ScriptedEngine(scripts=[plain("Hello")[:4]])) as client:
        lines = client.post(path, json=body | {"stream": True}).text.splitlines()

    data = [line for line in lines if line.startswith("data: ")]
    assert "stream_interrupted" in data[-1]
    assert "[DONE]" not in data[-1]


def test_a_stream_has_line_feeds_alone_and_forbids_buffering(client: httpx.Client):
    response = client.post("/v1/responses", json=HELLO | {"stream": True})

    assert response.headers["content-type"].startswith("text/event-stream")
    assert (response.headers["cache-control"], response.headers["x-accel-buffering"]) == ("no-store", "no")
    assert "\r" not in response.text
    events = [line.removeprefix("event: ") for line in response.text.splitlines() if line.startswith("event: ")]
    assert (events[0], events[-1]) == ("response.created", "response.completed")
    assert response.text.endswith("data: [DONE]\n\n")
    assert "\nid:" not in response.text


def test_deleting_a_response_is_refused_and_says_why(client: httpx.Client):
    client.post("/v1/responses", json=HELLO)

    assert refused(client.request("DELETE", "/v1/responses/resp_turn-1", json={}))[:2] == (400, "unsupported_operation")


def test_a_local_program_needs_no_key() -> None:
    assert KeyScope.DECIDE in LOCAL.scopes
