"""What a caller does with a turn it has sent: wait, cancel, retry, look what happened; and sending it safely twice."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor

import pytest

from chordage.orchestrator import views
from chordage.tasks import names
from chordage.workers.bootstrap import redis_from
from support.web_server import PROBLEM, finish

pytestmark = pytest.mark.redis


def submit(client, text="hello", **fields):
    return client.post("/turns", json={"text": text, **fields}).json()["turn_id"]


def post(client, path, body=None, **headers):
    return client.post(path, json=body or {}, headers=headers)


def test_a_queued_turn_is_cancelled_with_its_reason(client):
    turn = submit(client)

    answer = post(client, f"/turns/{turn}/cancel", {"reason": "asked by mistake"})

    assert (answer.status_code, answer.json()["status"], answer.json()["disposition"]) == (200, "done", "cancelled")
    assert answer.json()["detail"] == "asked by mistake"


def test_cancelling_twice_or_too_late_changes_nothing(client, rt):
    cancelled, answered = submit(client), submit(client)
    finish(rt, answered)
    first = post(client, f"/turns/{cancelled}/cancel")

    assert post(client, f"/turns/{cancelled}/cancel").json() == first.json()
    assert post(client, f"/turns/{answered}/cancel").json()["disposition"] == "answered"


def test_a_cancel_needs_no_body_but_says_that_it_is_json(client):
    turn = submit(client)

    assert client.post(f"/turns/{turn}/cancel").status_code == 415
    assert client.post(f"/turns/{turn}/cancel", headers={"Content-Type": "application/json"}).status_code == 200


def test_a_failed_turn_is_sent_again_as_a_new_one(client, rt, settings):
    failed = submit(client, "fail", thread_id="t", meta={"order": 17}, tenant="acme", limits={"timeout": 9})
    finish(rt, failed)

    answer = post(client, f"/turns/{failed}/retry")

    again = client.get(answer.headers["Location"]).json()
    assert (answer.status_code, answer.json()["duplicate"], again["turn_id"] != failed) == (202, False, True)
    for name in ("text", "meta", "tenant", "thread_id", "agent", "group", "strategy"):
        assert again[name] == client.get(f"/turns/{failed}").json()[name], name
    assert again["status"] == "queued"
    with redis_from(settings) as redis:
        (message, *_) = redis.lrange(settings.broker_prefix + "chat", 0, -1)
    assert json.loads(message)["headers"]["task"] == names.DISPATCH


def test_a_turn_is_retried_once_however_often_it_is_asked_for(client, rt):
    failed = submit(client, "fail")
    finish(rt, failed)

    first, second = (post(client, f"/turns/{failed}/retry").json() for _ in range(2))

    assert second == {**first, "duplicate": True}
    assert len(views.turns(rt.store)) == 2


def test_a_turn_that_need_not_be_retried_is_refused(client, rt):
    queued, answered = submit(client, thread_id="a"), submit(client, thread_id="b")
    finish(rt, answered)

    for turn, why in ((queued, "is queued"), (answered, "is answered")):
        answer = post(client, f"/turns/{turn}/retry")
        assert (answer.status_code, answer.headers["content-type"]) == (409, PROBLEM)
        assert why in answer.json()["detail"]


def test_a_cancelled_turn_can_be_retried(client):
    turn = submit(client)
    post(client, f"/turns/{turn}/cancel")

    assert post(client, f"/turns/{turn}/retry").status_code == 202


def test_the_trace_of_a_turn_tells_what_happened_in_its_order(client, rt):
    turn = submit(client, "please add")
    finish(rt, turn)

    trace = client.get(f"/turns/{turn}/trace").json()

    kinds = [event["kind"] for event in trace["events"]]
    assert kinds[:2] == ["received", "queued"]
    assert kinds[-1] == "ended"
    assert kinds.count("call") == 2
    assert trace["turn"]["turn_id"] == turn


@pytest.mark.parametrize("path", ["/turns/nothing/trace", "/turns/nothing", "/turns/nothing/stepped"])
def test_a_turn_that_is_not_there_is_a_404(client, path):
    assert client.get(path).status_code == 404


@pytest.mark.parametrize("path", ["/turns/nothing/cancel", "/turns/nothing/retry", "/turns/nothing/steps"])
def test_what_is_not_there_cannot_be_changed(client, path):
    assert post(client, path, {"verb": "next"} if path.endswith("steps") else {}).status_code == 404


def test_reading_may_wait_for_the_end(client, rt):
    turn = submit(client)
    with ThreadPoolExecutor() as threads:
        response = threads.submit(client.get, f"/turns/{turn}", params={"wait": 60})
        finish(rt, turn)

    assert response.result().json()["disposition"] == "answered"


def test_reading_waits_no_longer_than_it_is_told(client):
    answer = client.get(f"/turns/{submit(client)}", params={"wait": 0.1})

    assert (answer.status_code, answer.json()["status"]) == (200, "queued")


def test_the_same_idempotency_key_makes_one_turn(client):
    first = post(client, "/turns", {"text": "hello"}, **{"Idempotency-Key": "k-1"}).json()
    again = post(client, "/turns", {"text": "hello"}, **{"Idempotency-Key": "k-1"}).json()
    in_body = post(client, "/turns", {"text": "hello", "dedupe_key": "k-1"}, **{"Idempotency-Key": "k-1"}).json()

    assert again == in_body == {**first, "duplicate": True}


def test_two_keys_that_differ_are_refused(client):
    answer = post(client, "/turns", {"text": "hello", "dedupe_key": "a"}, **{"Idempotency-Key": "b"})

    assert (answer.status_code, answer.json()["field"]) == (422, "Idempotency-Key")


@pytest.mark.parametrize("key", ["a b", "x" * 201, ""])
def test_an_idempotency_key_is_short_and_visible(client, key):
    assert post(client, "/turns", {"text": "hello"}, **{"Idempotency-Key": key}).status_code == 422


def change(client, turn, body, **headers):
    return client.patch(f"/turns/{turn}", json=body, headers=headers)


def test_a_queued_turn_is_moved_to_a_lower_group_and_gets_more_time(client):
    turn = submit(client, deadline="2100-01-01T00:00:00Z", group="task")
    tag = client.get(f"/turns/{turn}").headers["ETag"]

    moved = change(client, turn, {"group": "chore", "deadline": "2100-01-02T00:00:00Z"}, **{"If-Match": tag})

    assert (moved.status_code, moved.json()["group"], moved.json()["status"]) == (200, "chore", "queued")
    assert moved.json()["deadline"] == "2100-01-02T00:00:00Z"
    assert moved.headers["ETag"] == client.get(f"/turns/{turn}").headers["ETag"] != tag
    stale = change(client, turn, {"group": "will"}, **{"If-Match": tag})
    assert (stale.status_code, stale.headers["content-type"], stale.json()["type"]) == (
        412, PROBLEM, "urn:chordage:problem:stale",
    )  # fmt: skip
    assert client.get(f"/turns/{turn}").json()["group"] == "chore"


def test_a_change_that_is_not_allowed_says_why_and_changes_nothing(client, rt):
    turn, answered = submit(client, group="task"), submit(client)
    finish(rt, answered)
    before = client.get(f"/turns/{turn}").json()

    refusals = [
        (turn, {"group": "chat"}, 422, "can only be moved down"),
        (turn, {"deadline": "2100-01-01T00:00:00Z"}, 409, "no deadline to extend"),
        (turn, {"priority": 1}, 422, "priority"),
        (answered, {"group": "chore"}, 409, "is done"),
        ("nowhere", {"group": "chore"}, 404, "there is no turn"),
    ]
    for target, body, status, words in refusals:
        answer = change(client, target, body)
        assert (answer.status_code, answer.headers["content-type"]) == (status, PROBLEM), body
        assert words in answer.json()["detail"], body

    assert client.get(f"/turns/{turn}").json() == before


def test_a_reader_that_has_the_turn_gets_304(client):
    turn = submit(client)
    tag = client.get(f"/turns/{turn}").headers["ETag"]

    assert client.get(f"/turns/{turn}", headers={"If-None-Match": tag}).status_code == 304
    client.post(f"/turns/{turn}/cancel", json={})
    assert client.get(f"/turns/{turn}", headers={"If-None-Match": tag}).status_code == 200
