"""Stepped turns over HTTP: one is submitted, read with its revision, and moved by verbs."""

from __future__ import annotations

import pytest

from chordage.orchestrator import views
from chordage.workers import local
from support.web_server import PROBLEM

pytestmark = pytest.mark.redis


@pytest.fixture
def turn_id(client):
    body = {"text": "please add", "control": "step", "step": {"max_iterations": 5, "on_held": "park"}}
    return client.post("/turns", json=body).json()["turn_id"]


def move(client, turn_id, verb, if_match=None, key=None, **args):
    headers = {name: value for name, value in (("If-Match", if_match), ("Idempotency-Key", key)) if value is not None}
    return client.post(f"/turns/{turn_id}/steps", json={"verb": verb, "args": args}, headers=headers)


def carry_on(rt, turn_id):
    local.carry_out(rt, local.begin(rt, views.turn(rt.store, turn_id)))


def held(client, rt, turn_id):
    """Its first reply is held."""
    move(client, turn_id, "next")
    carry_on(rt, turn_id)
    return client.get(f"/turns/{turn_id}/stepped")


def test_a_stepped_turn_waits_for_its_consumer(client, turn_id):
    answer = client.get(f"/turns/{turn_id}/stepped")

    state = answer.json()
    assert (state["standing"], state["max_iterations"], state["reply"]) == ("queued", 5, None)
    assert answer.headers["ETag"].startswith(f'"{state["rev"]}-')


def test_a_reply_is_held_and_its_run_finds_it_too(client, rt, turn_id):
    state = held(client, rt, turn_id).json()

    assert (state["standing"], state["reply"]["text"]) == ("held", "Let me add.")
    assert [ask["name"] for ask in state["reply"]["asks"]] == ["add", "add"]
    assert client.get(f"/turns/{state['run_id']}/stepped").json() == state


def test_verbs_carry_a_turn_to_its_end(client, rt, turn_id):
    steered = move(client, turn_id, "steer", text="Be short.")
    done = move(client, turn_id, "run")
    carry_on(rt, turn_id)

    assert steered.status_code == done.status_code == 200
    assert done.json()["rev"] > steered.json()["rev"]
    assert client.get(f"/turns/{turn_id}").json()["disposition"] == "answered"


def test_what_has_not_changed_is_not_sent_again(client, turn_id):
    first = client.get(f"/turns/{turn_id}/stepped")
    again = client.get(f"/turns/{turn_id}/stepped", headers={"If-None-Match": first.headers["ETag"]})
    move(client, turn_id, "options", options={"stream": False})
    changed = client.get(f"/turns/{turn_id}/stepped", headers={"If-None-Match": first.headers["ETag"]})

    assert (again.status_code, again.content, again.headers["ETag"]) == (304, b"", first.headers["ETag"])
    assert changed.status_code == 200


def test_a_verb_for_an_older_revision_is_412_and_changes_nothing(client, turn_id):
    seen = client.get(f"/turns/{turn_id}/stepped").headers["ETag"]
    moved = move(client, turn_id, "options", seen, options={"stream": False})
    stale = move(client, turn_id, "options", seen, options={"stream": True})

    assert (moved.status_code, stale.status_code, stale.headers["content-type"]) == (200, 412, PROBLEM)
    assert (stale.json()["code"], stale.json()["rev"]) == ("stale_rev", moved.json()["rev"])
    assert client.get(f"/turns/{turn_id}/stepped").json()["options"] == {"stream": False}


def test_the_answer_to_a_verb_has_the_tag_for_the_next(client, turn_id):
    first = move(client, turn_id, "options", options={"stream": False})
    second = move(client, turn_id, "options", first.headers["ETag"], options={"stream": True})

    assert second.status_code == 200


def test_the_same_key_moves_once_and_has_the_same_answer(client, turn_id):
    first = move(client, turn_id, "steer", key="k", text="x")
    again = move(client, turn_id, "steer", key="k", text="x")
    other = move(client, turn_id, "steer", key="k", text="y")

    assert again.json() == {**first.json(), "duplicate": True}
    assert (other.status_code, other.json()["code"]) == (409, "key_reused")
    assert client.get(f"/turns/{turn_id}/stepped").json()["steers"] == ["x"]


def test_a_verb_that_is_not_allowed_now_says_how_the_turn_stands(client, turn_id):
    refused = move(client, turn_id, "retry", ask_ids=["x"])

    assert (refused.status_code, refused.json()["standing"]) == (409, "queued")
    assert "rev" in refused.json()


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"verb": "steer"}, "text"),
        ({"verb": "next", "args": {"x": 1}}, "x"),
        ({"verb": "sing"}, "verb"),
        ({"verb": "steer", "args": {"text": 7}}, "text"),
    ],
)
def test_a_verb_without_its_arguments_is_refused(client, turn_id, body, field):
    answer = client.post(f"/turns/{turn_id}/steps", json=body)

    assert (answer.status_code, answer.json()["field"]) == (422, field)


@pytest.mark.parametrize("tag", ["x", '"x"', '"-1"', '"99999999999999999999"'])
def test_a_tag_that_is_no_revision_is_refused(client, turn_id, tag):
    answer = move(client, turn_id, "next", tag)

    assert (answer.status_code, answer.json()["field"]) == (422, "If-Match")


def test_a_turn_that_the_engine_drives_has_nothing_held(client):
    turn = client.post("/turns", json={"text": "hello"}).json()["turn_id"]

    assert client.get(f"/turns/{turn}/stepped").status_code == 409
    assert move(client, turn, "next").status_code == 409


def test_terms_without_control_step_are_refused(client):
    answer = client.post("/turns", json={"text": "x", "step": {"max_iterations": 3}})

    assert (answer.status_code, answer.json()["field"]) == (422, "step")


@pytest.mark.parametrize("terms", [{"max_iterations": 0}, {"hold_seconds": -1}, {"params": {"model": "other"}}])
def test_terms_that_cannot_be_are_refused(client, terms):
    assert client.post("/turns", json={"text": "x", "control": "step", "step": terms}).status_code == 422
