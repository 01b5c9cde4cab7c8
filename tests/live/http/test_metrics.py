"""`GET /metrics`: who may read it, what it says of a fleet, and of the requests of this process."""

from __future__ import annotations

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse
from pydantic import SecretStr

from chordage.orchestrator import stages
from chordage.orchestrator.core.callers import KeyScope
from chordage.orchestrator.core.metrics import FAMILIES
from chordage.orchestrator.views import metrics
from chordage.workers import web
from support.waiting import until
from support.web_server import PROBLEM, finish, served

pytestmark = pytest.mark.redis

TOKEN = "a token for monitors"


def samples(text, read=parse):
    return {
        (one.name, *sorted(one.labels.items())): one.value for family in read(text) for one in family.samples
    }  # fmt: skip


def test_metrics_tell_of_turns_queues_and_requests(client, settings, rt):
    turn = client.post("/turns", json={"text": "please add", "thread_id": "t"}).json()["turn_id"]
    finish(rt, turn)
    while stages.count_journal(rt):
        pass

    answer = client.get("/metrics")

    assert answer.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    found = samples(answer.text)
    assert found["chordage_turns_ended_total", ("agent", "ada"), ("disposition", "answered"), ("group", "chat")] == 1
    assert found["chordage_turns_queued", ("group", "chat")] == 0
    assert found["chordage_group_budget", ("group", "will")] == 1
    assert ("chordage_queue_messages", ("queue", "system")) in found
    assert found["chordage_workers_up", ("queue", "chat"), ("role", "turns")] == 0
    route = ("chordage_http_request_seconds_count", ("face", "api"), ("route", "/turns"), ("status", "202"))
    assert found[route] == 1
    assert "please add" not in answer.text
    for name in FAMILIES:
        assert f"# TYPE {name} " in answer.text


def test_openmetrics_is_sent_where_it_is_asked_for(client):
    answer = client.get("/metrics", headers={"Accept": "application/openmetrics-text; version=1.0.0, text/plain;q=0.5"})

    assert answer.headers["content-type"].startswith("application/openmetrics-text; version=1.0.0")
    assert answer.text.endswith("# EOF\n")
    assert samples(answer.text, parse_openmetrics)


def test_a_path_that_nobody_serves_makes_no_label(client):
    for n in range(3):
        client.get(f"/made/up/{n}")
    found = samples(client.get("/metrics").text)

    routes = {dict(key[1:])["route"] for key in found if key[0] == "chordage_http_request_seconds_count"}
    assert routes == {"other"}


def test_the_token_of_monitors_opens_metrics_and_nothing_else(settings):
    with served(web.wired(settings.model_copy(update={"keyless": "none", "metrics_token": SecretStr(TOKEN)}))) as one:
        bearer = {"Authorization": f"Bearer {TOKEN}"}

        assert one.get("/metrics", headers=bearer).status_code == 200
        assert one.get("/groups", headers=bearer).status_code == 401
        for wrong in ({}, {"Authorization": f"Bearer {TOKEN}x"}, {"X-Api-Key": b"\xc3\xa9"}):
            answer = one.get("/metrics", headers=wrong)
            assert (answer.status_code, answer.headers["content-type"]) == (401, PROBLEM)


def test_a_key_needs_the_scope_read_and_no_tenant(client, key):
    assert client.get("/metrics", headers=key(KeyScope.READ)).status_code == 200
    assert client.get("/metrics", headers=key(KeyScope.SUBMIT)).json()["scope"] == "read"
    assert client.get("/metrics", headers=key(KeyScope.READ, tenant="acme")).status_code == 403


def test_numbers_of_the_fleet_are_read_once_in_five_seconds(rt):
    moment = [0.0]
    fleet = metrics.FleetMetrics(rt.store, rt.queues, rt.budgets, now=rt.now, clock=lambda: moment[0])
    first = fleet.read()
    moment[0] = 4.9
    kept = fleet.read()
    moment[0] = 5.0

    assert kept is first
    assert fleet.read() is not first


def test_numbers_of_a_process_are_read_each_time_and_those_of_the_fleet_are_not(client, monkeypatch):
    monkeypatch.setattr(metrics, "KEPT", 3600.0)
    before = samples(client.get("/metrics").text)
    client.post("/turns", json={"text": "hi", "thread_id": "t"})
    after = samples(client.get("/metrics").text)

    queued = "chordage_turns_queued", ("group", "chat")
    assert before[queued] == after[queued] == 0
    requests = "chordage_http_request_seconds_count", ("face", "api"), ("route", "/metrics"), ("status", "200")
    assert after[requests] == 1, "those of this process are as they are now"


def test_a_stream_is_open_until_its_reader_goes(client):
    name = "chordage_streams_open", ("face", "api")
    with client.stream("GET", "/events"):
        until(lambda: samples(client.get("/metrics").text)[name] == 1, "it is open")

    until(lambda: samples(client.get("/metrics").text)[name] == 0, "it was closed")
