"""Bulk jobs over HTTP: counted, started, read, stopped; tenants; the same request under one key."""

from __future__ import annotations

import pytest

from chordage.orchestrator import stages, views
from chordage.orchestrator.core.callers import Caller, KeyScope
from chordage.orchestrator.core.status import Disposition
from support.web_server import PROBLEM, as_caller, mounted, served

pytestmark = pytest.mark.redis

CALLERS = {
    "acme": Caller(id="acme", tenant="acme"),
    "globex": Caller(id="globex", tenant="globex"),
    "operator": Caller(id="operator", tenant="ops", sees_all=True),
    "blind": Caller(id="blind", scopes=frozenset(KeyScope) - {KeyScope.PAYLOADS}),
}
QUEUED = {"action": "cancel", "filter": {"status": ["queued"]}}


@pytest.fixture
def client(settings):
    with served(mounted(settings, CALLERS)) as client:
        yield client


def submit(caller, number):
    return [caller.post("/turns", json={"text": f"turn {one}"}).json()["turn_id"] for one in range(number)]


def work(rt, job_id):
    while views.bulk_job(rt.store, job_id).is_open:
        stages.continue_bulk(rt, job_id)


def test_what_fits_is_counted_and_then_cancelled_and_the_job_reports(client, rt):
    with as_caller(client, "acme") as acme, as_caller(client, "globex") as globex:
        ours, theirs = submit(acme, 3), submit(globex, 2)
        assert acme.post("/bulk/count", json=QUEUED).json() == {"number": 3, "is_estimate": False}

        answer = acme.post("/bulk", json={**QUEUED, "reason": "enough"})
        job = answer.json()
        work(rt, job["id"])
        done = acme.get(answer.headers["location"]).json()

        assert (answer.status_code, job["state"], job["done"]) == (202, "open", 0)
        assert (done["state"], done["counted"], done["done"], done["refused"]) == ("done", 3, 3, 0)
        assert (done["asked_by"], done["reason"], done["filter"]) == ("acme", "enough", {"states": ["queued"]})
        assert [one["id"] for one in acme.get("/bulk").json()["data"]] == [job["id"]]
        assert globex.get("/bulk").json()["data"] == []
        for path in ("", "/refusals"):
            assert globex.get(f"/bulk/{job['id']}{path}").status_code == 404
        assert globex.post(f"/bulk/{job['id']}/stop", json={}).status_code == 404
    assert {views.turn(rt.store, turn).disposition for turn in ours} == {Disposition.CANCELLED}
    assert {views.turn(rt.store, turn).disposition for turn in theirs} == {None}


def test_named_turns_of_others_are_refused_and_pages_of_refusals_follow_each_other(client, rt):
    with as_caller(client, "acme") as acme, as_caller(client, "globex") as globex:
        theirs = submit(globex, 3)
        job_id = acme.post("/bulk", json={"action": "cancel", "ids": theirs}).json()["id"]
        work(rt, job_id)

        first = acme.get(f"/bulk/{job_id}/refusals", params={"limit": 2}).json()
        rest = acme.get(f"/bulk/{job_id}/refusals", params={"limit": 2, "after": first["next"]}).json()

    assert [one["target"] for one in [*first["data"], *rest["data"]]] == sorted(theirs)
    assert rest["next"] is None
    assert all("there is no turn" in one["why"] for one in first["data"])


def test_the_same_request_under_one_key_is_one_job(client):
    with as_caller(client, "operator") as operator:
        submit(operator, 1)
        key = {"Idempotency-Key": "k1"}
        first, again = (operator.post("/bulk", json=QUEUED, headers=key).json() for _ in range(2))
        other = operator.post("/bulk", json={**QUEUED, "reason": "x"}, headers=key)

        assert first["id"] == again["id"]
        assert (other.status_code, other.headers["content-type"]) == (409, PROBLEM)


def test_a_job_is_stopped_and_stays_so(client, rt):
    with as_caller(client, "operator") as operator:
        (turn,) = submit(operator, 1)
        job = operator.post("/bulk", json=QUEUED).json()

        assert operator.post(f"/bulk/{job['id']}/stop", json={}).json()["state"] == "stopped"
        stages.continue_bulk(rt, job["id"])
        assert operator.post(f"/bulk/{job['id']}/stop", json={}).json()["state"] == "stopped"

    assert views.turn(rt.store, turn).disposition is None
    assert [entry.action.value for entry in views.audit_page(rt.store).data] == ["bulk_stopped", "bulk_started"]


@pytest.mark.parametrize(
    ("body", "status", "fault"),
    [
        ({"action": "cancel"}, 422, "give a filter or ids"),
        ({"action": "cancel", "filter": {"status": ["failed"]}}, 422, "turns that are not done"),
        ({"action": "retry", "filter": {"status": ["queued"]}}, 422, "ended without an answer"),
        ({"action": "redeliver", "filter": {"status": ["queued"]}}, 422, "dead letters have none"),
        ({"action": "redeliver", "ids": ["x"]}, 422, "not the number of a delivery"),
        ({"action": "cancel", "filter": {"status": ["queued"]}, "ids": ["x"]}, 422, "not both"),
        ({"action": "erase", "ids": ["x"]}, 422, "action"),
    ],
)
def test_requests_that_make_no_sense_say_what_to_do(client, body, status, fault):
    with as_caller(client, "operator") as operator:
        for path in ("/bulk", "/bulk/count"):
            answer = operator.post(path, json=body)
            assert (answer.status_code, answer.headers["content-type"]) == (status, PROBLEM)
            assert fault in answer.text


def test_a_caller_without_payloads_neither_searches_in_texts_nor_reads_them(client):
    with as_caller(client, "blind") as blind:
        search = {"action": "cancel", "filter": {"status": ["queued"], "text": "secret"}}
        assert blind.post("/bulk/count", json=search).status_code == 403

        job = blind.post("/bulk", json={**QUEUED, "reason": "sesame"}).json()

        assert (job["reason"], job["filter"], job["payloads"]) == (None, None, False)
