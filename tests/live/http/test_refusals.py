"""What is refused over HTTP: every rule, every limit, every thing that is not there, as a problem document."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator

import pytest

from chordage.orchestrator import views
from chordage.orchestrator.api.server import largest_body
from chordage.orchestrator.core.message import Bounds
from chordage.workers import local
from support.waiting import PATIENCE
from support.web_server import PROBLEM

pytestmark = pytest.mark.redis


BROKEN = {
    "blank text": ({"text": " \n"}, 422, "text", "text is blank"),
    "no text": ({}, 422, "text", "is missing"),
    "chat without channel": ({"text": "x", "origin": "chat"}, 422, "channel", "needs a channel"),
    "chat with blank channel": ({"text": "x", "origin": "chat", "channel": " "}, 422, "channel", "needs a channel"),
    "invoke with channel": ({"text": "x", "channel": "api"}, 422, "channel", "takes no channel"),
    "task over HTTP": ({"text": "x", "origin": "task"}, 422, "origin", "'invoke' or 'chat'"),
    "chore over HTTP": ({"text": "x", "origin": "chore"}, 422, "origin", "'invoke' or 'chat'"),
    "will over HTTP": ({"text": "x", "origin": "will"}, 422, "origin", "'invoke' or 'chat'"),
    "sender": ({"text": "x", "sender": "owner"}, 422, "sender", "known from the credential"),
    "unknown field": ({"text": "x", "thread": "t"}, 422, "thread", "there is no such field; did you mean thread_id?"),
    "empty thread id": ({"text": "x", "thread_id": ""}, 422, "thread_id", "1 to 200 characters"),
    "long thread id": ({"text": "x", "thread_id": "t" * 201}, 422, "thread_id", "1 to 200 characters, not 201"),
    "control character": ({"text": "x", "thread_id": "a\nb"}, 422, "thread_id", "visible characters"),
    "NUL in text": ({"text": "a\0b"}, 422, "text", "NUL"),
    "half a surrogate": ({"text": "\ud800"}, 422, "text", "Unicode"),
    "NUL in meta": ({"text": "x", "meta": {"a": ["\0"]}}, 422, "meta", "NUL"),
    "half a surrogate in meta": ({"text": "x", "meta": {"a": "\ud800"}}, 422, "meta", "surrogate"),
    "NUL in channel": ({"text": "x", "origin": "chat", "channel": "a\0"}, 422, "channel", "pattern"),
    "long channel": ({"text": "x", "origin": "chat", "channel": "c" * 201}, 422, "channel", "at most 200"),
    "meta is a list": ({"text": "x", "meta": []}, 422, "meta", "dictionary"),
    "no such way when busy": ({"text": "x", "when_busy": "drop"}, 422, "when_busy", "'rollback' or 'steer'"),
    "no such group": ({"text": "x", "group": "vip"}, 422, "group", "'chat', 'task'"),
    "no such strategy": ({"text": "x", "strategy": "think"}, 422, "strategy", "direct, plan_execute, react"),
    "control": ({"text": "x", "control": "hands"}, 422, "control", "'step'"),
    "empty dedupe key": ({"text": "x", "dedupe_key": ""}, 422, "dedupe_key", "1 to 200"),
    "key of a chore": ({"text": "x", "coalesce_key": "chore:x"}, 422, "coalesce_key", "work of the agent's own"),
    "no rounds": ({"text": "x", "limits": {"max_rounds": 0}}, 422, "limits.max_rounds", "greater than or equal to 1"),
    "more rounds": ({"text": "x", "limits": {"max_rounds": 99}}, 422, "limits.max_rounds", "may only tighten it"),
    "no time": ({"text": "x", "limits": {"timeout": 0}}, 422, "limits.timeout", "greater than 0"),
    "no such limit": ({"text": "x", "limits": {"depth": 1}}, 422, "limits.depth", "there is no such field"),
    "deadline without zone": ({"text": "x", "deadline": "2030-01-01T00:00:00"}, 422, "deadline", "timezone"),
    "deadline is over": ({"text": "x", "deadline": "2001-01-01T00:00:00Z"}, 422, "deadline", "past"),
    "outside of time": ({"text": "x", "deadline": "9999-12-31T23:59:59-01:00"}, 422, "deadline", "years 1 to 9999"),
    "starts too late": (
        {"text": "x", "not_before": "2090-01-01T00:00:00Z", "deadline": "2089-01-01T00:00:00Z"},
        422, "not_before", "could never start",
    ),
    "long text": ({"text": "é" * 2001}, 413, "text", "4002 bytes, the limit is 4000"),
    "large meta": ({"text": "x", "meta": {"a": "b" * 65536}}, 413, "meta", "the limit is 65536"),
    "unknown agent": ({"text": "x", "agent": "eve"}, 404, "agent", "there are: ada, bob"),
}  # fmt: skip


def test_a_broken_rule_is_a_problem_document_that_names_the_field(client, rt):
    for case, (fields, status, field, detail) in BROKEN.items():
        response = client.post("/turns", content=json.dumps(fields), headers={"Content-Type": "application/json"})

        problem = response.json()
        assert (response.status_code, response.headers["Content-Type"]) == (status, PROBLEM), case
        assert (problem["status"], problem["field"]) == (status, field), case
        assert detail in problem["detail"], case
        assert problem["type"].startswith("urn:chordage:problem:")
        assert views.turns(rt.store) == [], f"{case}: nothing is stored"


def test_what_json_does_not_have_is_refused(client):
    response = client.post(
        "/turns", content='{"text": "x", "meta": {"a": NaN}}', headers={"Content-Type": "application/json"}
    )

    assert (response.status_code, response.json()["field"]) == (422, "meta")


def test_a_backslash_before_digits_is_no_nul(client):
    assert client.post("/turns", json={"text": "x", "meta": {"a": "\\u0000"}}).status_code == 202


@pytest.mark.parametrize("content", ["{", "", "[1, 2", '{"text": "x"', "\xff", "[" * 5000])
def test_a_body_that_is_no_json_is_a_problem_document(client, content):
    response = client.post("/turns", content=content, headers={"Content-Type": "application/json"})

    assert response.status_code == (422 if content == "" else 400)
    assert response.headers["Content-Type"] == PROBLEM


@pytest.mark.parametrize(
    ("content", "problem"),
    [(b'{"text": "\xff"}', "byte 10 is not UTF-8"), ('{"meta": {"a": ' + "9" * 5000 + "}}", "too many digits")],
)
def test_a_body_that_cannot_be_read_is_refused_with_the_reason(client, content, problem):
    response = client.post("/turns", content=content, headers={"Content-Type": "application/json"})

    assert response.status_code == 400
    assert problem in response.json()["detail"]


def test_a_request_without_a_body_says_that_it_sends_json_too(client):
    refused = client.post("/turns/t/retry")

    assert (refused.status_code, client.post("/turns/t/retry", json={}).status_code) == (415, 404)
    assert refused.json()["detail"].endswith("Content-Type: application/json, also where the request has no body")


@pytest.mark.parametrize("path", ["/health", "/live", "/ready"])
def test_a_monitor_may_send_head(client, path):
    response = client.head(path)

    assert (response.status_code, response.text) == (200, "")


@pytest.mark.parametrize("wait", ["-1", "61", "nan", "soon"])
def test_a_wait_out_of_bounds_is_refused_before_anything_is_stored(client, rt, wait):
    response = client.post(f"/turns?wait={wait}", json={"text": "x"})

    assert (response.status_code, response.json()["field"]) == (422, "wait")
    assert views.turns(rt.store) == []


def test_a_busy_thread_can_be_a_conflict(client, rt):
    turn_id = client.post("/turns", json={"text": "x", "thread_id": "t"}).json()["turn_id"]
    local.begin(rt, views.turn(rt.store, turn_id))

    response = client.post("/turns", json={"text": "y", "thread_id": "t", "when_busy": "reject"})

    assert response.status_code == 409
    assert "thread 'api:t' is busy with run" in response.json()["detail"]


@pytest.mark.parametrize("when_busy", ["enqueue", "interrupt", "rollback", "steer"])
def test_any_other_value_of_when_busy_is_accepted_while_a_thread_is_busy(client, rt, when_busy):
    turn_id = client.post("/turns", json={"text": "x", "thread_id": "t"}).json()["turn_id"]
    local.begin(rt, views.turn(rt.store, turn_id))

    response = client.post("/turns", json={"text": "y", "thread_id": "t", "when_busy": when_busy})

    assert response.status_code == 202
    ended = views.turn(rt.store, turn_id).disposition == "cancelled"
    assert ended == (when_busy in {"interrupt", "rollback"})


@pytest.mark.parametrize("path", ["/turns/nope", "/turns/%00", "/turns/a%2Fb", "/turns/" + "x" * 300, "/nowhere"])
def test_what_is_not_there_is_a_404_document(client, path):
    response = client.get(path)

    assert (response.status_code, response.headers["Content-Type"]) == (404, PROBLEM)
    assert "there is" in response.json()["detail"]


@pytest.mark.parametrize(
    ("method", "path", "detail"),
    [
        ("GET", "/turns?dispositon=failed", "dispositon: there is no such parameter; did you mean disposition?"),
        ("GET", "/agents?x=1", "x: there is no such parameter; there are: none"),
        ("POST", "/turns?wiat=20", "wiat: there is no such parameter; did you mean wait?"),
        ("GET", "/openapi.json?x=1", None),
        ("GET", "/v1/models?api-version=1", None),
    ],
)
def test_a_parameter_that_does_not_exist_is_refused_and_named(client, rt, method, path, detail):
    response = client.request(method, path, json={"text": "x"} if method == "POST" else None)

    assert (response.status_code, response.json().get("detail")) == (422 if detail else 200, detail)
    assert views.turns(rt.store) == []


def test_a_wrong_method_is_a_405_document_that_names_the_right_one(client):
    response = client.put("/turns", json={})

    assert (response.status_code, response.headers["Content-Type"]) == (405, PROBLEM)
    assert response.headers["Allow"] == "GET, POST"
    assert response.json()["detail"] == "PUT is not possible here; use GET or POST"


def test_too_large_a_body_is_refused_by_its_announced_length(client, settings):
    """The body is never sent: its announcement is answered at once."""
    limit = largest_body(Bounds(text_bytes=4000, meta_bytes=settings.max_meta_bytes))
    with socket.create_connection((client.base_url.host, client.base_url.port), timeout=PATIENCE) as connection:
        head = "POST /turns HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        connection.sendall(f"{head}Content-Length: {limit + 1}\r\n\r\n".encode())
        answer = connection.recv(65536).decode()

    assert answer.startswith("HTTP/1.1 413 ")
    assert PROBLEM in answer


def test_too_large_a_body_of_unknown_length_is_refused_while_it_comes(client):
    def endless() -> Iterator[bytes]:
        yield b'{"text": "'
        for _ in range(200):
            yield b"x" * 65536

    response = client.post("/turns", content=endless(), headers={"Content-Type": "application/json"})

    assert (response.status_code, response.headers["Content-Type"]) == (413, PROBLEM)


def test_a_text_at_its_limit_is_accepted_however_it_is_escaped(client):
    body = '{"text": "' + "\\u0041" * 4000 + '"}'

    response = client.post("/turns", content=body, headers={"Content-Type": "application/json"})

    assert response.status_code == 202


@pytest.mark.parametrize("path", ["/turns", "/decisions"])
@pytest.mark.parametrize(
    "inner", ["[" * 100 + "]" * 100, "[" * 900 + "]" * 900, "[" * 500_000, '{"a":' * 100 + "1" + "}" * 100],
    ids=["a little", "much", "open", "objects"],
)  # fmt: skip
def test_a_body_that_is_too_deep_is_refused_before_it_is_parsed(client, path, inner):
    body = f'{{"text": "x", "meta": {{"a": {inner}}}}}'

    response = client.post(path, content=body, headers={"Content-Type": "application/json"})

    assert (response.status_code, response.headers["content-type"]) == (400, PROBLEM)
    assert "more than 100 deep" in response.json()["detail"]
    assert client.post("/turns", json={"text": "hello"}).status_code == 202


def test_a_body_with_two_lengths_is_refused_and_what_follows_is_not_read(client):
    request = (
        "POST /turns HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 5\r\n"
        "Transfer-Encoding: chunked\r\n\r\n0\r\n\r\nGET /turns HTTP/1.1\r\nHost: localhost\r\n\r\n"
    )
    with socket.create_connection((client.base_url.host, client.base_url.port), timeout=PATIENCE) as connection:
        connection.sendall(request.encode())
        answer = b"".join(iter(lambda: connection.recv(65536), b""))
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert answer.count(b"HTTP/1.1") == 1


def test_an_unknown_agent_is_told_without_the_place_of_the_room(client, settings):
    response = client.post("/turns", json={"text": "x", "agent": "nobody"})
    assert response.status_code == 404
    assert response.json()["detail"] == "there is no agent 'nobody'; there are: ada, bob"
