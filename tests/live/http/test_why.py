"""Why things wait, over HTTP: the words of the command, within what the caller reaches."""

from __future__ import annotations

import pytest

from chordage.orchestrator import stages, views
from chordage.orchestrator.core.groups import Group
from chordage.orchestrator.core.message import Message, Origin, Sender, TurnRequest
from chordage.orchestrator.store import groups
from chordage.orchestrator.views import WaitSources
from support.web_server import PROBLEM

pytestmark = pytest.mark.redis


@pytest.fixture
def paused(rt) -> None:
    with rt.store.write() as tx:
        groups.set_budget(tx, Group.CHAT, 0)


@pytest.fixture
def turn(client, paused) -> str:
    return client.post("/turns", json={"text": "hi", "thread_id": "mine"}).json()["turn_id"]


def of_another(rt) -> str:
    message = Message(origin=Origin.INVOKE, channel=None, sender=Sender.PEER, thread_id="tg:2", text="a secret")
    return stages.admit(rt, TurnRequest(message=message, source="poll:tg"))[0].turn_id


def test_reason_is_the_one_of_the_command(client, rt, turn):
    answer = client.get(f"/why/{turn}")

    seen = views.why(WaitSources(store=rt.store, now=rt.now(), budgets=rt.budgets, locks=rt.locks), turn)
    assert (answer.status_code, answer.json()["text"]) == (200, seen.text)
    reason = answer.json()["reason"]
    assert (reason["cause"], reason["owner"]) == ("group_paused", {"kind": "group", "id": "chat"})
    assert reason["remedy"] == {"command": "chordage groups set chat NUMBER", "http": "PATCH /groups/chat"}


def test_thread_is_named_as_it_was_answered(client, turn):
    answer = client.get("/why/api:mine").json()

    assert (answer["kind"], answer["reason"]["id"]) == ("thread", turn)


def test_list_has_what_the_caller_reaches(client, rt, turn):
    of_another(rt)

    answer = client.get("/why").json()

    assert [reason["id"] for reason in answer["reasons"]] == [turn]
    assert client.get("/why", params={"limit": 1}).json() == answer


def test_what_the_caller_does_not_reach_is_not_found(client, rt, turn):
    other = of_another(rt)

    for some_id in (other, "tg:2", "pulse:will", "channel:tg", "nothing", "17"):
        answer = client.get(f"/why/{some_id}")
        assert (answer.status_code, answer.headers["content-type"]) == (404, PROBLEM), some_id
        assert "a secret" not in answer.text


@pytest.mark.parametrize("limit", [0, 501, "x"])
def test_limit_that_cannot_be_is_refused(client, limit):
    assert client.get("/why", params={"limit": limit}).status_code == 422


def test_what_is_done_has_no_reason(client, rt, turn):
    stages.cancel_turn(rt, turn)

    answer = client.get(f"/why/{turn}").json()

    assert (answer["reason"], answer["text"]) == (None, f"Turn {turn} does not wait: cancelled.")
