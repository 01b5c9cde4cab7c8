"""The HTTP interface as its clients see it: a real server on a real port, SQLite and Valkey behind it."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor

import pytest

from chordage.orchestrator import views
from chordage.workers.bootstrap import redis_from
from support import asking_room
from support.waiting import until
from support.web_server import PROBLEM, finish

pytestmark = pytest.mark.redis


def test_a_message_is_accepted_with_the_place_where_its_turn_can_be_read(client):
    response = client.post("/turns", json={"text": "hello", "thread_id": "t1", "agent": "bob"})

    receipt = response.json()
    assert response.status_code == 202
    assert receipt["thread_id"] == "api:t1"
    assert receipt["duplicate"] is False
    assert response.headers["Location"] == f"/turns/{receipt['turn_id']}"
    turn = client.get(response.headers["Location"]).json()
    assert (turn["status"], turn["position"], turn["agent"]) == ("queued", 1, "bob")
    assert turn["sender"] == "service"


def test_a_finished_turn_can_be_read_with_its_answer(client, rt):
    turn_id = client.post("/turns", json={"text": "please add"}).json()["turn_id"]
    finish(rt, turn_id)

    turn = client.get(f"/turns/{turn_id}").json()

    assert (turn["status"], turn["disposition"], turn["answer"]) == ("done", "answered", "Sums: 3\n34")
    assert turn["usage"]["input_tokens"] > 0


def test_an_accepted_message_wakes_the_fleet(client, settings):
    client.post("/turns", json={"text": "hello"})

    with redis_from(settings) as redis:
        (message,) = redis.lrange(settings.broker_prefix + "chat", 0, -1)
    assert json.loads(message)["headers"]["task"] == "turns.dispatch"


def test_same_dedupe_key_returns_the_first_turn_again(client):
    first = client.post("/turns", json={"text": "hello", "dedupe_key": "k"}).json()
    again = client.post("/turns", json={"text": "hello again", "dedupe_key": "k"})

    assert again.status_code == 202
    assert again.json() == {**first, "duplicate": True}


def test_waiting_returns_the_finished_turn_as_soon_as_it_is_done(client, rt):
    with ThreadPoolExecutor() as threads:
        response = threads.submit(client.post, "/turns?wait=60", json={"text": "hello", "thread_id": "t1"})
        turn_id = until(lambda: [line.turn_id for line in views.turns(rt.store)], "the turn is there", pause=0.005)[0]
        finish(rt, turn_id)
        done = response.result()

    assert done.status_code == 200
    assert (done.json()["turn_id"], done.json()["answer"]) == (turn_id, "You said: hello")
    assert done.headers["Location"] == f"/turns/{turn_id}"


def test_wait_that_times_out_returns_the_receipt(client):
    response = client.post("/turns?wait=0.2", json={"text": "hello"})

    assert response.status_code == 202
    assert response.json()["duplicate"] is False


def test_wait_for_a_failed_turn_returns_it_all_the_same(client, rt):
    turn_id = client.post("/turns", json={"text": "fail", "dedupe_key": "k"}).json()["turn_id"]
    finish(rt, turn_id)

    response = client.post("/turns?wait=5", json={"text": "fail", "dedupe_key": "k"})

    assert response.status_code == 200
    assert (response.json()["disposition"], response.json()["code"]) == ("failed", "model_auth")


def test_api_sets_the_origin_of_the_sender_itself(client):
    schema = client.get("/openapi.json").json()

    assert "It is `service` for\nevery message over HTTP" in schema["info"]["description"]
    assert "sender" not in schema["components"]["schemas"]["TurnFields"]["properties"]
    answers = schema["paths"]["/turns"]["post"]["responses"]
    assert set(answers) == {
        "200",
        "202",
        "400",
        "401",
        "403",
        "404",
        "408",
        "409",
        "413",
        "415",
        "421",
        "422",
        "429",
        "500",
        "503",
    }
    assert PROBLEM in answers["422"]["content"]


def test_turn_shows_its_origin(client):
    turn_id = client.post("/turns", json={"text": "hello", "dedupe_key": "k"}).json()["turn_id"]
    turn = client.get(f"/turns/{turn_id}").json()
    assert (turn["source"], turn["dedupe_key"], turn["questions"]) == ("http", "k", [])


@pytest.fixture
def asking(settings):
    """The agent of the room has tools that ask."""
    (settings.room_path / "agent.toml").unlink()
    asking_room.write(settings.room_path)


@pytest.mark.usefixtures("asking")
def test_waiting_turn_shows_its_open_questions(client, rt):
    waits = asking_room.waiting_turn(rt, "send", space="api")

    turn = client.get(f"/turns/{waits.turn_id}").json()
    asked = client.get("/inbox").json()["data"]
    client.post("/decisions", json={"decisions": [{"target": asked[0]["id"], "action": "cancel"}]})

    assert turn["questions"] == asked
    assert sorted(one["prompt"] for one in asked) == ["May bob be written to?", "May eve be written to?"]
    assert client.get(f"/turns/{waits.turn_id}").json()["questions"] == asked[1:]
