"""Keys that speak for users: each user has threads of its own, and is recorded as who sent and decided."""

from __future__ import annotations

import pytest

from chordage.orchestrator import views
from support import asking_room
from support.web_server import PROBLEM, with_database

pytestmark = pytest.mark.redis

ALICE, BOB = {"Chordage-User": "alice@example.org"}, {"Chordage-User": "bob"}


@pytest.fixture
def settings(settings, database_url):
    return with_database(settings, database_url).model_copy(update={"keyless": "none"})


def id_of(headers):
    return headers["X-Api-Key"].split("_")[1]


def send(client, headers, **fields):
    answer = client.post("/turns", json={"text": "x", "thread_id": "t", **fields}, headers=headers)
    assert answer.status_code == 202, answer.text
    return answer.json()


def test_each_user_has_threads_of_its_own_below_the_tenant(client, key, rt):
    front = key(tenant="acme", act_as=True)

    alice, bob, own = (send(client, {**front, **user}) for user in (ALICE, BOB, {}))

    threads = [turn["thread_id"] for turn in (alice, bob, own)]
    assert threads == ["api@acme~alice@example.org:t", "api@acme~bob:t", "api@acme:t"]
    assert {views.turn(rt.store, turn["turn_id"]).tenant for turn in (alice, bob, own)} == {"acme"}
    for user, visible in ((ALICE, alice), (BOB, bob), ({}, own)):
        listed = client.get("/turns", headers={**front, **user}).json()["data"]
        assert [turn["turn_id"] for turn in listed] == [visible["turn_id"]]
    assert client.get(f"/turns/{alice['turn_id']}", headers={**front, **BOB}).status_code == 404
    assert client.post(f"/turns/{alice['turn_id']}/cancel", json={}, headers={**front, **BOB}).status_code == 404
    assert client.get(f"/turns/{alice['turn_id']}", headers=key(tenant="acme")).status_code == 404


def test_a_dedupe_key_of_one_user_finds_no_turn_of_another(client, key):
    front = key(act_as=True)

    alice = send(client, {**front, **ALICE}, dedupe_key="k")
    again = send(client, {**front, **ALICE}, dedupe_key="k")
    bob = send(client, {**front, **BOB}, dedupe_key="k")

    assert (again["turn_id"], again["duplicate"]) == (alice["turn_id"], True)
    assert (bob["turn_id"] != alice["turn_id"], bob["duplicate"]) == (True, False)


def test_the_turn_says_who_sent_it(client, key):
    front = key(act_as=True)
    alice, own = send(client, {**front, **ALICE}), send(client, front)

    def sent_by(turn, headers):
        return client.get(f"/turns/{turn['turn_id']}", headers=headers).json()["sent_by"]

    assert sent_by(alice, {**front, **ALICE}) == f"{id_of(front)}~alice@example.org"
    assert sent_by(own, front) == id_of(front)


def test_without_the_right_no_user_is_spoken_for(client, key):
    plain = key()
    for path in ("/turns", "/inbox", "/v1/models"):
        refused = client.get(path, headers={**plain, **ALICE})
        assert refused.status_code == 403, path
        assert "--act-as" in refused.text

    refused = client.post("/turns", json={"text": "x"}, headers={**plain, **ALICE})
    assert (refused.status_code, refused.headers["Content-Type"]) == (403, PROBLEM)
    assert client.get("/turns", headers=plain).json()["data"] == []


@pytest.mark.parametrize("name", ["a:b", "a~b", "-a", "", "a b", "x" * 101, "api@acme:"])
def test_a_name_that_could_be_part_of_an_id_is_refused(client, key, name):
    refused = client.get("/turns", headers={**key(act_as=True), "Chordage-User": name})

    assert (refused.status_code, "no name of a user" in refused.text) == (403, True)


def test_an_operator_who_speaks_for_a_user_sees_that_user_alone(client, key):
    front = key(act_as=True)
    send(client, front)

    assert client.get("/turns", headers={**front, **ALICE}).json()["data"] == []
    assert client.get("/groups", headers={**front, **ALICE}).status_code == 403
    assert len(client.get("/turns", headers=front).json()["data"]) == 1


@pytest.mark.usefixtures("asking")
def test_a_decision_and_the_record_name_the_user(client, key, rt):
    turn = asking_room.waiting_turn(rt, "send", space="api@acme~bob")
    question = views.inbox(rt.store)[0]
    front = key(tenant="acme", act_as=True)
    body = {"decisions": [{"target": question.id, "action": "resume", "payload": True}]}

    assert client.post("/decisions", json=body, headers={**front, **ALICE}).status_code == 404
    assert client.post("/decisions", json=body, headers={**front, **BOB}).status_code == 202

    steps = views.run(rt.store, turn.run_id).steps
    calls = [call for step in steps for call in getattr(step, "calls", ())]
    answers = {call.question.answer.decided_by for call in calls if call.question.answer}
    (entry,) = client.get("/audit", headers=front, params={"kind": "decided", "key": id_of(front)}).json()["data"]
    assert answers == {f"{id_of(front)}~bob"}
    assert (entry["actor"], entry["user"], entry["tenant"]) == (id_of(front), "bob", "acme")


@pytest.fixture
def asking(settings):
    asking_room.write(settings.room_path)


def test_the_right_is_given_with_the_key(client, key):
    boss = key()

    made = client.post("/keys", json={"name": "front", "scopes": ["submit"], "act_as": True}, headers=boss).json()
    listed = {one["id"]: one["act_as"] for one in client.get("/keys", headers=boss).json()["data"]}

    assert listed == {made["key"]["id"]: True, id_of(boss): False}
    assert send(client, {"X-Api-Key": made["secret"], **BOB})["thread_id"] == "api~bob:t"
