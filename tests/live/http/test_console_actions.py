"""Actions of the run page besides its end: group, deadline, a step of a held run, and the run as a file."""

from __future__ import annotations

import re
from datetime import timedelta

import pytest

from chordage.config.settings import load
from chordage.orchestrator import stages, views
from chordage.orchestrator.core.agent_versions import SHOWN
from chordage.orchestrator.core.audit import CLI
from chordage.orchestrator.core.callers import KeyScope
from chordage.orchestrator.core.keys import KeyTerms
from chordage.tasks.schema import request_from
from support import console_room
from support.console_room import log_in, token_in
from support.web_server import finish

pytestmark = pytest.mark.redis


@pytest.fixture
def settings(tmp_path, migrated_database_url, redis_url):
    room = console_room.write(tmp_path / "room")
    return load(room=room, database_url=migrated_database_url("sqlite"), redis_url=redis_url)


@pytest.fixture
def console(client, rt):
    return log_in(client, rt.store)


def queued(rt, text="hello", **fields):
    return stages.admit(rt, request_from({"text": text, **fields}, source="test", space="api"))[0].turn_id


def post(console, turn, path, **fields):
    page = console.get(f"/console/runs/{turn}")
    return console.post(f"/console/runs/{turn}/{path}", data={"csrf": token_in(page.text), **fields})


def test_a_turn_that_waits_is_moved_down_by_its_page(console, rt):
    turn = queued(rt, group="task")
    page = console.get(f"/console/runs/{turn}").text
    assert re.findall(r"<option>(\w+)</option>", page) == ["chore", "will"]

    answer = post(console, turn, "group", group="chore")

    assert answer.status_code == 303
    assert views.turn(rt.store, turn).group == "chore"
    assert "It waits in another group now." in console.get(answer.headers["location"]).text


def test_a_turn_that_started_meanwhile_stays_as_it_was_and_the_page_says_why(console, rt):
    turn = queued(rt, group="task")
    token = token_in(console.get(f"/console/runs/{turn}").text)
    finish(rt, turn)

    answer = console.post(f"/console/runs/{turn}/group", data={"csrf": token, "group": "chore"})

    assert answer.status_code == 409
    assert "Nothing was changed: turn" in answer.text
    assert views.turn(rt.store, turn).group == "task"


def test_a_deadline_is_extended_once_however_often_the_form_is_sent(console, rt):
    deadline = rt.now() + timedelta(hours=1)
    turn = queued(rt, deadline=deadline.isoformat())
    (was,) = re.findall(r'name="was" value="([^"]+)"', console.get(f"/console/runs/{turn}").text)

    first = post(console, turn, "deadline", was=was, by="1 hour")
    again = post(console, turn, "deadline", was=was, by="1 hour")

    assert (first.status_code, again.status_code) == (303, 409)
    assert "changed since this page was loaded" in again.text
    assert views.turn(rt.store, turn).deadline == deadline + timedelta(hours=1)


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        ("group", {"group": "moon"}),
        ("group", {"group": "chat"}),
        ("deadline", {"by": "1 hour", "was": "yesterday"}),
        ("deadline", {"by": "1 week", "was": "9999-12-31T23:59:59+00:00"}),
        ("step", {"verb": "cancel", "rev": "1"}),
    ],
)
def test_a_form_that_no_page_made_changes_nothing(console, rt, path, fields):
    turn = queued(rt, group="task")

    answer = post(console, turn, path, **fields)

    assert answer.status_code == 422
    assert "Nothing was changed:" in answer.text
    assert views.turn(rt.store, turn).group == "task"
    refused = console.post(f"/console/runs/{turn}/{path}", data=fields)
    assert (refused.status_code, "not of your session" in refused.text) == (403, True)


def test_a_held_run_is_moved_on_unless_its_consumer_was_first(console, rt):
    turn = queued(rt, control="step")
    (rev,) = re.findall(r'name="rev" value="(\d+)"', console.get(f"/console/runs/{turn}").text)

    moved = post(console, turn, "step", verb="run", rev=rev)
    stale = post(console, turn, "step", verb="next", rev=rev)

    assert (moved.status_code, stale.status_code) == (303, 409)
    assert "look at it again" in stale.text
    finish(rt, turn)
    assert views.turn(rt.store, turn).answer == "You said: hello"


def test_who_may_not_operate_finds_no_action(client, rt):
    terms = KeyTerms(name="reader", tenant=None, scopes=frozenset({KeyScope.READ}))
    key = stages.create_key(rt.store, terms, CLI, rt.now())
    client.post("/console/login", data={"key": key.text})
    turn = queued(rt, group="task")

    page = client.get(f"/console/runs/{turn}").text
    answer = post(client, turn, "group", group="chore")

    assert "Change the group" not in page
    assert answer.status_code == 403
    assert views.turn(rt.store, turn).group == "task"


def test_a_run_is_exported_as_one_document_with_whole_results(console, client, rt):
    turn = queued(rt, "echo")
    finish(rt, turn)
    run_id = views.turn(rt.store, turn).run_id
    page = console.get(f"/console/runs/{run_id}").text
    assert f'href="/console/runs/{run_id}/export"' in page

    answer = console.get(f"/console/runs/{run_id}/export")

    document = answer.json()
    assert answer.headers["content-disposition"] == f'attachment; filename="run-{run_id}.json"'
    assert document == client.get(f"/runs/{run_id}/export").json()
    assert document["format"] == "chordage.run/1"
    assert [step["kind"] for step in document["root"]["run"]["steps"]] == ["inference", "tool_round", "inference"]
    assert document["root"]["turn"]["answer"]
    assert (document["children"], document["left_out"]) == ([], [])
    assert document == console.get(f"/console/runs/{run_id}/export").json()


def test_an_export_without_the_scope_holds_no_text(client, rt):
    turn = queued(rt, "echo")
    finish(rt, turn)
    run_id = views.turn(rt.store, turn).run_id
    terms = KeyTerms(name="reader", tenant=None, scopes=frozenset({KeyScope.READ}))
    key = stages.create_key(rt.store, terms, CLI, rt.now())
    client.post("/console/login", data={"key": key.text})

    answer = client.get(f"/console/runs/{run_id}/export")

    assert answer.status_code == 200
    root = answer.json()["root"]
    calls = [call for step in root["run"]["steps"] for call in step.get("calls", ())]
    assert (root["turn"]["text"], root["turn"]["answer"], root["turn"]["payloads"]) == (None, None, False)
    assert [(call["arguments"], call["content"]) for call in calls] == [(None, None)] * 2
    assert [step["text"] for step in root["run"]["steps"] if "text" in step] == [None, None]


def test_a_step_has_an_address_of_its_own(console, rt):
    turn = queued(rt, "echo")
    finish(rt, turn)
    page = console.get(f"/console/runs/{views.turn(rt.store, turn).run_id}").text

    anchors = re.findall(r'id="(step-\d+)"', page)
    assert len(anchors) == len(set(anchors)) == 3
    assert all(f'href="#{anchor}"' in page for anchor in anchors)


def test_standing_work_is_paused_and_resumed_by_its_page(console, settings):
    (settings.room_path / "chores").mkdir()
    (settings.room_path / "chores" / "look.md").write_text("---\ncron: 0 9 * * 1-5\n---\nlook\n")
    page = console.get("/console/pulse").text
    assert "every weekday at 09:00" in page

    def send(to):
        token = token_in(console.get("/console/pulse").text)
        return console.post("/console/pulse/pause", data={"csrf": token, "item": "chore:look", "to": to})

    assert send("pause").status_code == 303
    paused = console.get("/console/pulse").text
    assert "by local" in paused
    assert 'aria-label="Resume chore:look"' in paused
    assert send("resume").status_code == 303
    assert 'aria-label="Pause chore:look"' in console.get("/console/pulse").text


def test_standing_work_is_paused_and_resumed_over_http(client, settings):
    (settings.room_path / "chores").mkdir()
    (settings.room_path / "chores" / "look.md").write_text("---\nevery: 1h\n---\nlook\n")

    paused = client.post("/pulse/chore:look/pause", json={})
    resumed = client.post("/pulse/chore:look/resume", json={})

    assert (paused.status_code, paused.json()["state"], paused.json()["paused_by"]) == (200, "paused", "local")
    assert (resumed.status_code, resumed.json()["state"], resumed.json()["paused_by"]) == (200, "live", None)
    assert client.post("/pulse/chore:nothing/pause", json={}).status_code == 404


def test_the_page_of_agents_says_how_their_tools_do(console, rt):
    finish(rt, queued(rt, "echo"))

    page = console.get("/console/agents").text

    (row,) = re.findall(r'<code class="tool">echo</code>.*?</tr>', page)
    assert re.findall(r'<td class="num[^"]*">([^<]*)</td>', row) == ["1", "0"]
    assert views.digest_of(rt.agents, rt.agents.get("ada"))[:SHOWN] in page
