"""The inbox and decisions over HTTP: read, answered, answered again, and everything that is refused."""

from __future__ import annotations

import json
import re

import pytest

from chordage.config.settings import load
from chordage.orchestrator import views
from chordage.orchestrator.core.intents import Advance
from chordage.orchestrator.core.message import CALLERS
from chordage.tasks import names
from chordage.workers import local
from chordage.workers.app import make_app
from chordage.workers.bootstrap import redis_from
from support import asking_room
from support.web_server import PROBLEM

pytestmark = pytest.mark.redis


@pytest.fixture
def settings(tmp_path, migrated_database_url, redis_url):
    room = asking_room.write(tmp_path / "room")
    return load(room=room, database_url=migrated_database_url("sqlite"), redis_url=redis_url)


def waiting_turn(rt, text, **fields):
    """Of a caller: who decides over HTTP, or by name, decides about its own turns."""
    return asking_room.waiting_turn(rt, text, space=CALLERS, **fields)


def carry_on(rt, turn):
    local.carry_out(rt, [Advance(run_id=turn.run_id, group=turn.group)])
    return views.turn(rt.store, turn.turn_id)


def yes(question, **more):
    return {"target": question["id"], "action": "resume", "payload": True, **more}


def messages(settings):
    with redis_from(settings) as redis:
        return [
            json.loads(message)["headers"]["task"] for message in redis.lrange(settings.broker_prefix + "chat", 0, -1)
        ]


def test_open_question_is_read_decided_and_its_run_continues(client, rt, settings):
    turn = waiting_turn(rt, "send", thread_id="t")
    first, second = client.get("/inbox", params={"thread_id": "api:t"}).json()["data"]

    response = client.post(
        "/decisions", json={"decisions": [yes(first), {"target": second["call_id"], "action": "cancel"}]}
    )

    stored = response.json()["decisions"]
    assert response.status_code == 202
    assert [(one["suspension_id"], one["run_id"], one["duplicate"]) for one in stored] == [
        (first["id"], turn.run_id, False), (second["id"], turn.run_id, False),
    ]  # fmt: skip
    assert messages(settings) == [names.ADVANCE]
    assert client.get("/inbox").json() == {"data": [], "next": None}
    assert "sent to" in carry_on(rt, turn).answer


def test_question_is_shown_with_its_schema_and_its_expiry(client, rt):
    waiting_turn(rt, "deploy")

    (question,) = client.get("/inbox").json()["data"]

    assert (question["why"], question["arguments"]) == ("tool", {"env": "prod"})
    assert question["schema"]["required"] == ["ok"]
    assert question["expires_at"] > question["created_at"]


def test_the_inbox_is_read_page_by_page(client, rt):
    waiting_turn(rt, "send")
    waiting_turn(rt, "deploy")

    first = client.get("/inbox?limit=2").json()
    rest = client.get("/inbox", params={"limit": 2, "after": first["next"]}).json()

    assert [one["tool"] for one in first["data"]] == ["send", "send"]
    assert [one["tool"] for one in rest["data"]] == ["deploy"]
    assert (rest["next"], client.get("/inbox?why=permission").json()["data"]) == (None, [])


def test_the_same_answer_again_is_the_same_answer(client, rt):
    waiting_turn(rt, "send")
    question = client.get("/inbox").json()["data"][0]
    body = {"decisions": [yes(question, decision_key="k")]}

    first, again = (client.post("/decisions", json=body) for _ in range(2))

    assert again.status_code == 202
    assert again.json()["decisions"] == [{**first.json()["decisions"][0], "duplicate": True}]


def test_another_answer_with_the_same_key_is_a_conflict(client, rt):
    waiting_turn(rt, "send")
    question = client.get("/inbox").json()["data"][0]
    client.post("/decisions", json={"decisions": [yes(question, decision_key="k")]})

    response = client.post("/decisions", json={"decisions": [yes(question, decision_key="k", reason="other")]})

    assert (response.status_code, response.headers["Content-Type"]) == (409, PROBLEM)
    detail = response.json()["detail"]
    assert re.search(r"was approved at \S+ \S+ UTC by local \(http\), with the same key 'k' and other content;", detail)


OK = {"target": "x", "action": "resume"}
BROKEN = {
    "no decisions": ({}, "decisions", "is missing"),
    "an empty list": ({"decisions": []}, "decisions", "at least 1 item"),
    "no target": ({"decisions": [{"action": "resume"}]}, "decisions.0.target", "is missing"),
    "no such action": ({"decisions": [{**OK, "action": "go"}]}, "decisions.0.action", "'resume' or 'cancel'"),
    "unknown field": ({"decisions": [{**OK, "id": 1}]}, "decisions.0.id", "there is no such field"),
    "NUL in payload": ({"decisions": [{**OK, "payload": ["\0"]}]}, "decisions.0.payload", "NUL"),
    "half a surrogate": ({"decisions": [{**OK, "reason": "\ud800"}]}, "decisions.0.reason", "surrogate"),
    "empty key": ({"decisions": [{**OK, "decision_key": ""}]}, "decisions.0.decision_key", "at least 1"),
    "args are a list": ({"decisions": [{**OK, "edited_args": []}]}, "decisions.0.edited_args", "dictionary"),
}


@pytest.mark.parametrize(("body", "field", "detail"), BROKEN.values(), ids=BROKEN)
def test_a_decision_that_breaks_a_rule_names_the_field(client, body, field, detail):
    response = client.post("/decisions", content=json.dumps(body), headers={"Content-Type": "application/json"})

    assert (response.status_code, response.headers["Content-Type"]) == (422, PROBLEM)
    assert response.json()["field"] == field
    assert detail in response.json()["detail"]


def test_answer_that_does_not_fit_is_refused_with_the_possible_answers(client, rt):
    waiting_turn(rt, "deploy")
    (question,) = client.get("/inbox").json()["data"]

    response = client.post("/decisions", json={"decisions": [yes(question)]})

    assert (response.status_code, response.json()["field"]) == (422, "payload")
    assert 'with a payload such as {"ok": true | false}' in response.json()["detail"]


def test_unasked_question_is_not_found_and_nothing_of_its_batch_is_stored(client, rt):
    waiting_turn(rt, "send")
    question = client.get("/inbox").json()["data"][0]

    response = client.post("/decisions", json={"decisions": [yes(question), {**OK, "target": "nope"}]})

    assert (response.status_code, response.json()["type"]) == (404, "urn:chordage:problem:not_found")
    assert question in client.get("/inbox").json()["data"]


@pytest.mark.parametrize(("query", "status"), [("after=nope", 404), ("limit=0", 422), ("why=fun", 422)])
def test_a_page_that_there_is_not_is_refused(client, query, status):
    response = client.get(f"/inbox?{query}")

    assert (response.status_code, response.headers["Content-Type"]) == (status, PROBLEM)


def test_a_message_can_bring_decisions_and_wait_behind_its_run(client, rt):
    turn = waiting_turn(rt, "deploy", thread_id="t")
    (question,) = client.get("/inbox").json()["data"]
    message = {"text": "go ahead", "thread_id": "t", "while_waiting": "hold"}

    held = client.post("/turns", json=message).json()["turn_id"]
    client.post("/turns", json={**message, "decisions": [yes(question, payload={"ok": True})]})

    assert carry_on(rt, turn).answer == "It came to this: deployed to prod"
    assert client.get(f"/turns/{held}").json()["status"] == "queued"


def test_a_message_whose_decision_is_refused_is_not_stored(client, rt):
    before = views.turns(rt.store)

    response = client.post("/turns", json={"text": "x", "decisions": [OK]})

    assert (response.status_code, views.turns(rt.store)) == (404, before)


def test_any_service_decides_by_the_name_of_a_celery_task(rt, settings):
    waiting_turn(rt, "send")
    question = views.inbox(rt.store)[0]
    task = make_app(settings).tasks[names.DECIDE]
    batch = [{"target": question.id, "action": "resume", "payload": True}]

    first, redelivered = (task.apply(kwargs={"decisions": batch}).get() for _ in range(2))
    refused = task.apply(kwargs={"decisions": [{"target": question.id}]})

    assert (len(first), redelivered) == (1, first)
    assert messages(settings) == [names.ADVANCE]
    assert "0.action: is missing" in str(refused.result)


def test_a_refusal_is_an_answer_and_no_fault_to_be_logged(rt, settings, caplog):
    task = make_app(settings).tasks[names.DECIDE]
    with caplog.at_level("INFO", logger="celery.app.trace"):
        refused = task.apply(kwargs={"decisions": [{"target": "nobody", "action": "cancel"}]})

    assert "nobody" in str(refused.result)
    assert [record.levelname for record in caplog.records if record.name.startswith("celery")] == ["INFO"]
