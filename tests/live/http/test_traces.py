"""The spans of a run over HTTP, and the span of the caller that they are linked to."""

from __future__ import annotations

import pytest

from chordage.orchestrator.core.callers import KeyScope
from support.span_truth import spans_in, trace_of
from support.web_server import finish

pytestmark = pytest.mark.redis

TRACEPARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
SECRET = "please add"


@pytest.fixture
def turn(client, rt):
    headers = {"traceparent": TRACEPARENT}
    turn = client.post("/turns", json={"text": SECRET, "thread_id": "t"}, headers=headers).json()["turn_id"]
    finish(rt, turn)
    return turn


def test_the_spans_of_a_run_are_those_of_its_turn_and_of_the_command(client, rt, turn):
    run = client.get(f"/turns/{turn}").json()["run_id"]
    of_run, of_turn = client.get(f"/runs/{run}/traces"), client.get(f"/turns/{turn}/traces")

    assert of_run.headers["content-type"] == "application/json"
    assert of_run.content == of_turn.content == trace_of(rt.store, run).encode()
    (root, *_) = spans_in(of_run.text)
    assert root["traceId"] == run.replace("-", "")
    assert (root["links"][0]["traceId"], root["links"][0]["spanId"]) == tuple(TRACEPARENT.split("-")[1:3])


def test_contents_take_a_parameter_and_a_scope(client, key, turn):
    path = f"/turns/{turn}/traces"

    assert SECRET not in client.get(path).text
    assert SECRET in client.get(path, params={"contents": "true"}).text
    reader = key(KeyScope.READ)
    assert client.get(path, headers=reader).status_code == 200
    refused = client.get(path, params={"contents": "true"}, headers=reader)
    assert (refused.status_code, refused.json()["scope"]) == (403, "payloads")


def test_a_malformed_traceparent_is_no_error(client, rt):
    answer = client.post("/turns", json={"text": "x"}, headers={"traceparent": "00-zzz"})
    finish(rt, answer.json()["turn_id"])

    assert answer.status_code == 202
    assert "links" not in spans_in(client.get(f"/turns/{answer.json()['turn_id']}/traces").text)[0]


def test_a_turn_without_a_run_has_no_spans_and_says_so(client):
    turn = client.post("/turns", json={"text": "x"}).json()["turn_id"]
    answer = client.get(f"/turns/{turn}/traces")

    assert answer.status_code == 404
    assert "has no run, so it has no spans: it is queued" in answer.json()["detail"]
    assert client.get("/turns/nothing/traces").status_code == 404
    assert client.get("/runs/nothing/traces").status_code == 404


def test_the_runs_of_others_are_not_there(client, rt, key, turn):
    run = client.get(f"/turns/{turn}").json()["run_id"]
    other = key(KeyScope.READ, KeyScope.PAYLOADS, tenant="globex")

    for path in (f"/runs/{run}/traces", f"/turns/{turn}/traces"):
        assert client.get(path, headers=other).status_code == 404
