"""Threads of OpenAI's clients in a real database: continued, summarised, and read again."""

from __future__ import annotations

import pytest

from chordage.orchestrator import views
from support.web_server import finish

pytestmark = pytest.mark.redis

HELLO = {"model": "ada", "input": "hello", "background": True}


def test_a_compaction_stands_for_its_thread(client):
    first = client.post("/v1/responses", json=HELLO).json()

    compacted = client.post("/v1/responses/compact", json={"model": "ada", "previous_response_id": first["id"]}).json()
    more = [*compacted["output"], {"role": "user", "content": "and now?"}]
    second = client.post("/v1/responses", json=HELLO | {"input": more}).json()

    assert compacted["object"] == "response.compaction"
    assert second["conversation"] == first["conversation"]


@pytest.mark.parametrize("body", [{"previous_response_id": "resp_x"}, {"model": "ada"}])
def test_a_compaction_needs_a_model_and_a_response(client, body):
    response = client.post("/v1/responses/compact", json=body)

    assert (response.status_code, response.json()["error"]["code"]) == (400, "missing_required_parameter")


def test_what_was_quoted_is_no_part_of_the_input(client, rt):
    said = [
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": "Hi!"},
        {"role": "user", "content": "?"},
    ]
    response = client.post("/v1/responses", json=HELLO | {"input": said, "instructions": "Be short."}).json()
    turn_id = response["id"].removeprefix("resp_")
    finish(rt, turn_id)

    items = client.get(f"/v1/responses/{response['id']}/input_items").json()
    again = client.get(f"/v1/responses/{response['id']}").json()

    assert items["data"][0]["content"] == [{"type": "input_text", "text": "?"}]
    assert again["instructions"] == "Be short."
    text = views.turn(rt.store, turn_id).text
    assert '{"role": "developer", "content": "Be short."}' in text
    assert '{"role": "assistant", "content": "Hi!"}' in text


def test_a_thread_that_was_continued_elsewhere_is_not_continued_from_its_middle(client):
    first = client.post("/v1/responses", json=HELLO | {"conversation": "t1"}).json()
    second = client.post("/turns", json={"text": "from elsewhere", "thread_id": "t1"}).json()["turn_id"]

    response = client.post("/v1/responses", json=HELLO | {"previous_response_id": first["id"]})

    assert response.status_code == 409
    assert second in response.json()["error"]["message"]
