"""Tokens and cost over HTTP."""

from __future__ import annotations

import pytest

from chordage.orchestrator.core.callers import Caller
from chordage.workers import web
from support.web_server import PROBLEM, finish, mounted, served

pytestmark = pytest.mark.redis

PRICES = '[prices]\n"scripted:script.yaml" = { input = 1, output = 10 }\n'
CALLERS = {
    "acme": Caller(id="acme", tenant="acme"),
    "globex": Caller(id="globex", tenant="globex"),
    "operator": Caller(id="operator", sees_all=True),
}


@pytest.fixture
def priced(settings):
    file = settings.room_path / "agent.toml"
    file.write_text(file.read_text() + PRICES)
    return settings


def test_every_level_says_what_it_cost_and_they_add_up(priced, rt):
    with served(web.wired(priced)) as client:
        sent = client.post("/turns", json={"text": "please add", "thread_id": "sums"}).json()
        finish(rt, sent["turn_id"])
        turn = client.get(f"/turns/{sent['turn_id']}").json()
        run = client.get(f"/runs/{turn['run_id']}").json()
        thread = client.get("/threads/sums").json()
        listed = [client.get(path).json()["data"][0]["usage"] for path in ("/turns", "/runs")]
        report = client.get("/usage").json()
        days = client.get("/usage", params={"by": "day"}).json()

    steps = [step["usage"] for step in run["steps"] if "usage" in step]
    assert len(steps) == 2
    assert all(usage["cost_nanos"] == 1000 * usage["input_tokens"] + 10_000 * usage["output_tokens"] for usage in steps)
    total = {name: sum(usage[name] for usage in steps) for name in steps[0]}
    assert [turn["usage"], run["usage"], run["own_usage"], thread["usage"], *listed] == [total] * 6
    assert [(line["key"], line["runs"], line["usage"]) for line in report["lines"]] == [("ada", 1, total)]
    assert (report["by"], report["is_cut"], [line["usage"] for line in days["lines"]]) == ("agent", False, [total])


def test_an_unknown_cost_is_null(client, rt):
    sent = client.post("/turns", json={"text": "hello"}).json()
    finish(rt, sent["turn_id"])

    usage = client.get(f"/turns/{sent['turn_id']}").json()["usage"]
    assert (usage["cost_nanos"], usage["unpriced"]) == (None, 1)
    assert client.get("/usage", params={"by": "tenant"}).json()["lines"][0]["usage"] == usage


def test_a_tenant_sees_its_own_usage_and_an_operator_all(settings, rt):
    with served(mounted(settings, CALLERS)) as client:
        for name in ("acme", "globex", "globex"):
            sent = client.post("/turns", json={"text": "hello"}, headers={"x-caller": name}).json()
            finish(rt, sent["turn_id"])
        seen = {
            name: {line["key"]: line["runs"] for line in answer.json()["lines"]}
            for name in CALLERS
            if (answer := client.get("/usage", params={"by": "tenant"}, headers={"x-caller": name}))
        }

    assert seen == {"acme": {"acme": 1}, "globex": {"globex": 2}, "operator": {"acme": 1, "globex": 2}}


@pytest.mark.parametrize(
    ("query", "told"),
    [
        ({"by": "moon"}, "by"),
        ({"since": "yesterday"}, "since"),
        ({"since": "2026-01-01T00:00:00"}, "since"),
        ({"since": "2020-01-01T00:00:00Z"}, "92 days or fewer"),
        ({"since": "2026-01-02T00:00:00Z", "until": "2026-01-01T00:00:00Z"}, "is not before until"),
        ({"limit": "0"}, "limit"),
        ({"limit": "201"}, "limit"),
    ],
)
def test_a_wrong_question_is_refused(client, query, told):
    answer = client.get("/usage", params=query)

    assert (answer.status_code, answer.headers["content-type"]) == (422, PROBLEM)
    assert told in answer.text
