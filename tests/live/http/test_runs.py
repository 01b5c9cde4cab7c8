"""Runs over HTTP: their steps and calls, and messages that go into one."""

from __future__ import annotations

import pytest

from chordage.orchestrator import views
from chordage.orchestrator.core.intents import Advance
from chordage.orchestrator.core.message import CALLERS
from chordage.workers import local
from support import asking_room
from support.web_server import finish

pytestmark = pytest.mark.redis


@pytest.fixture
def run_id(client, rt):
    turn = client.post("/turns", json={"text": "please add", "thread_id": "t"}).json()["turn_id"]
    finish(rt, turn)
    return client.get(f"/turns/{turn}").json()["run_id"]


@pytest.fixture
def asking(settings):
    """The agent of the room has tools that ask."""
    (settings.room_path / "agent.toml").unlink()
    asking_room.write(settings.room_path)


def test_a_run_is_read_with_its_steps_and_calls(client, run_id):
    run = client.get(f"/runs/{run_id}").json()

    assert (run["status"], run["reason"], run["rounds"]) == ("done", "natural_end", 1)
    assert [step["kind"] for step in run["steps"]] == ["inference", "tool_round", "inference"]
    assert [call["content"] for call in run["steps"][1]["calls"]] == ["3", "34"]
    assert run["steps"][2]["text"] == "Sums: 3\n34"


def test_steps_and_calls_are_lists_of_their_own(client, run_id):
    run = client.get(f"/runs/{run_id}").json()
    first = client.get(f"/runs/{run_id}/steps", params={"limit": 2}).json()
    second = client.get(f"/runs/{run_id}/steps", params={"limit": 2, "after": first["next"]}).json()
    calls = client.get(f"/runs/{run_id}/calls").json()

    assert first["data"] + second["data"] == run["steps"]
    assert (len(first["data"]), second["next"]) == (2, None)
    assert calls == {"data": run["steps"][1]["calls"], "next": None}


@pytest.mark.parametrize("part", ["", "/steps", "/calls"])
def test_a_run_that_is_not_there_is_a_404(client, part):
    assert client.get(f"/runs/nothing{part}").status_code == 404


@pytest.mark.usefixtures("asking")
def test_a_message_is_steered_into_a_run_that_is_at_work(client, rt):
    turn = asking_room.waiting_turn(rt, "send", space=CALLERS, thread_id="t")

    answer = client.post(f"/runs/{turn.run_id}/steer", json={"text": "Only bob.", "meta": {"by": "desk"}})

    steering = client.get(answer.headers["Location"]).json()
    assert (answer.status_code, steering["thread_id"], steering["text"]) == (202, "api:t", "Only bob.")
    assert steering["meta"] == {"by": "desk"}
    decide = [{"target": one["id"], "action": "resume", "payload": True} for one in client.get("/inbox").json()["data"]]
    client.post("/decisions", json={"decisions": decide})
    local.carry_out(rt, [Advance(run_id=turn.run_id, group=turn.group)])
    assert views.turn(rt.store, steering["turn_id"]).disposition == "steered"


@pytest.mark.usefixtures("asking")
def test_a_message_that_is_steered_twice_under_one_key_is_one(client, rt):
    turn = asking_room.waiting_turn(rt, "send", space=CALLERS)
    headers = {"Idempotency-Key": "k"}

    first, again = (
        client.post(f"/runs/{turn.run_id}/steer", json={"text": "x"}, headers=headers).json() for _ in range(2)
    )

    assert again == {**first, "duplicate": True}


def test_a_run_that_is_done_is_steered_nowhere(client, run_id):
    answer = client.post(f"/runs/{run_id}/steer", json={"text": "x"})

    assert answer.status_code == 409
    assert "api:t" in answer.json()["detail"]
