"""The fleet over HTTP: agents, groups and budgets, workers, channels, hooks, the pulse, deliveries, readiness."""

from __future__ import annotations

import json

import pytest

from chordage.orchestrator.core.groups import Group
from chordage.orchestrator.store import groups
from chordage.tasks import names
from chordage.workers import web
from chordage.workers.bootstrap import redis_from
from support.web_server import PROBLEM, finish, raising, served, server_with

pytestmark = pytest.mark.redis

HOOKS = """\
[hooks.github]
path = "/hooks/github"
signature = "github"
secret_env = "GITHUB_SECRET"
"""
CHORE = """\
---
every: "1d"
---
Water the plants.
"""


def test_agents_are_listed_with_what_they_are_and_none_is_left_out(client):
    page = client.get("/agents").json()

    assert [(agent["name"], agent["is_default"], agent["fault"]) for agent in page["data"]] == [
        ("ada", True, None), ("bob", False, None),
    ]  # fmt: skip
    assert page["next"] is None


def test_an_agent_shows_its_tools_and_limits_and_no_secret(client, settings):
    file = settings.room_path / "agent.toml"
    file.write_text(f'{file.read_text()}instructions = "the word is sesame"\n[params]\ntemperature = 0.25\n')
    with served(web.wired(settings)) as fresh:
        answer = fresh.get("/agents/ada")

    agent = answer.json()
    assert [(tool["name"], tool["effect"]) for tool in agent["tools"]] == [("add", "pure"), ("wait", "unsafe")]
    assert (agent["model"], agent["strategy"], agent["limits"]["max_rounds"]) == ("scripted:script.yaml", "react", 25)
    assert "sesame" not in answer.text
    assert "0.25" not in answer.text


def test_an_agent_that_has_not_changed_is_not_sent_again(client, settings):
    tag = client.get("/agents/ada").headers["ETag"]

    assert client.get("/agents/ada", headers={"If-None-Match": tag}).status_code == 304
    assert client.get("/agents/bob", headers={"If-None-Match": tag}).status_code == 200


def test_a_broken_agent_is_shown_with_its_fault(settings):
    (settings.room_path / "agents" / "beta.toml").write_text('name = "beta"\nmodel = 3\n')
    with served(web.wired(settings)) as client:
        listed = {agent["name"]: agent["fault"] for agent in client.get("/agents").json()["data"]}
        one = client.get("/agents/beta")

    assert "model: must be a text" in listed["beta"]
    assert listed["ada"] is None
    assert (one.status_code, one.json()["tools"]) == (200, [])


def test_an_agent_that_is_not_there_is_a_404_that_names_another(client):
    answer = client.get("/agents/adda")

    assert (answer.status_code, answer.headers["content-type"]) == (404, PROBLEM)
    assert "did you mean ada?" in answer.json()["detail"]


def test_groups_are_listed_with_what_runs_and_waits(client):
    client.post("/turns", json={"text": "hello"})

    rows = {row["group"]: row for row in client.get("/groups").json()["data"]}

    assert list(rows) == ["chat", "task", "chore", "will"]
    assert (rows["chat"]["queued"], rows["chat"]["running"], rows["chat"]["budget_from"]) == (1, 0, "settings")


def test_a_budget_is_set_and_wakes_what_waits(client, rt, settings):
    changed = client.patch("/groups/task", json={"budget": 3})

    assert (changed.status_code, changed.json()["budget"], changed.json()["budget_from"]) == (200, 3, "database")
    with rt.store.read() as tx:
        assert groups.budgets(tx)[Group.TASK] == 3
    with redis_from(settings) as redis:
        (message,) = redis.lrange(settings.broker_prefix + "task", 0, -1)
    assert json.loads(message)["headers"]["task"] == names.DISPATCH
    assert client.patch("/groups/task", json={"budget": None}).json()["budget_from"] == "settings"


def test_a_budget_that_others_changed_meanwhile_is_kept(client):
    seen = client.get("/groups/chat").headers["ETag"]
    mine = client.patch("/groups/chat", json={"budget": 3}, headers={"If-Match": seen})
    stale = client.patch("/groups/chat", json={"budget": 9}, headers={"If-Match": seen})
    again = client.patch("/groups/chat", json={"budget": 9}, headers={"If-Match": mine.headers["ETag"]})

    assert (mine.status_code, stale.status_code, again.status_code) == (200, 412, 200)
    assert stale.headers["content-type"] == PROBLEM


def test_the_tag_of_a_group_holds_while_only_its_work_changes(client):
    seen = client.get("/groups/chat").headers["ETag"]
    client.post("/turns", json={"text": "hello"})

    assert client.get("/groups/chat", headers={"If-None-Match": seen}).status_code == 200
    assert client.patch("/groups/chat", json={"budget": 3}, headers={"If-Match": seen}).status_code == 200


@pytest.mark.parametrize("body", [{"budget": -1}, {"budget": 2**31}, {"budget": "x"}, {}, {"budget": 1, "x": 1}])
def test_a_budget_that_cannot_be_is_refused(client, body):
    assert client.patch("/groups/chat", json=body).status_code == 422


def test_a_group_that_is_not_there_is_a_404(client):
    assert client.get("/groups/nothing").status_code == client.patch("/groups/x", json={"budget": 1}).status_code == 404


def test_workers_and_channels_of_an_empty_fleet_are_empty_lists(client):
    for path in ("/workers", "/channels", "/deliveries"):
        assert client.get(path).json() == {"data": [], "next": None}


def test_hooks_are_listed_with_their_counts_and_without_their_secret(settings, monkeypatch):
    monkeypatch.setenv("GITHUB_SECRET", "sesame-" * 6)
    (settings.room_path / "hooks.toml").write_text(HOOKS)
    with served(web.wired(settings)) as client:
        refused = client.post("/hooks/github", json={"x": 1})
        answer = client.get("/hooks")

    (hook,) = answer.json()["data"]
    assert refused.status_code == 401
    assert (hook["name"], hook["path"], hook["fault"], hook["accepted"]) == ("github", "/hooks/github", None, 0)
    assert "sesame" not in answer.text


def test_a_broken_hook_is_listed_with_its_fault(settings):
    (settings.room_path / "hooks.toml").write_text(HOOKS)
    with served(web.wired(settings)) as client:
        (hook,) = client.get("/hooks").json()["data"]

    assert "GITHUB_SECRET" in hook["fault"]


def test_work_of_the_room_is_listed_and_run_by_hand(client, rt, settings):
    folder = settings.room_path / "chores"
    folder.mkdir()
    (folder / "water.md").write_text(CHORE)

    (item,) = client.get("/pulse").json()["items"]
    started = client.post(f"/pulse/{item['name']}/run", json={})
    again = client.post(f"/pulse/{item['name']}/run", json={})

    assert (item["name"], item["state"]) == ("chore:water", "new")
    assert (started.status_code, started.json()["thread_id"]) == (202, "chore:water")
    assert (again.status_code, again.headers["content-type"]) == (409, PROBLEM)
    finish(rt, started.json()["turn_id"])
    assert client.get("/pulse").json()["items"][0]["turns"] == 1


def test_work_that_is_not_there_is_a_404(client):
    answer = client.post("/pulse/chore:nothing/run", json={})

    assert answer.status_code == 404


def test_a_dead_letter_is_listed_and_sent_again(settings, rt):
    listed = settings.model_copy(update={"reply_hosts": ("crm.example.org",)})
    with served(web.wired(listed)) as client:
        target = {"url": "https://crm.example.org/in"}
        turn = client.post("/turns", json={"text": "hello", "reply_target": target}).json()["turn_id"]
        finish(rt, turn)
        (pending,) = client.get("/deliveries").json()["data"]
        not_dead = client.post(f"/deliveries/{pending['id']}/retry", json={})
        _bury(rt, pending["id"])
        (dead,) = client.get("/deliveries", params={"status": "dead"}).json()["data"]
        again = client.post(f"/deliveries/{dead['id']}/retry", json={})

    assert (pending["turn_id"], pending["status"], pending["target"]) == (turn, "pending", target)
    assert (not_dead.status_code, again.status_code, again.json()["status"]) == (409, 202, "pending")


def _bury(rt, number):
    from sqlalchemy import update

    from chordage.orchestrator.store.schema import outbox

    with rt.store.write() as tx:
        tx.execute(update(outbox).where(outbox.c.id == number).values(status="dead", dead_at=rt.now(), error="gone"))


@pytest.mark.parametrize("path", ["/deliveries/7", "/deliveries/x"])
def test_a_delivery_that_is_not_there_is_a_404(client, path):
    assert client.get(path).status_code == 404


def test_a_process_is_alive_and_ready(client):
    assert client.get("/live").json() == client.get("/ready").json() == {"status": "ok"}


def test_a_process_is_alive_but_not_ready_while_a_service_is_away():
    with served(server_with(checks={"database": raising(OSError("gone"))})) as client:
        alive, ready = client.get("/live"), client.get("/ready")

    assert alive.status_code == 200
    assert (ready.status_code, ready.headers["content-type"]) == (503, PROBLEM)
    assert "database" in ready.json()["detail"]
    assert "Retry-After" in ready.headers
