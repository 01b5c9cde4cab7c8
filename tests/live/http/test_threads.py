"""Threads over HTTP: one thread, and what was said on it, whatever it is called."""

from __future__ import annotations

from urllib.parse import quote

import pytest

from chordage.orchestrator import stages
from chordage.orchestrator.core.message import Message, Origin, Sender, TurnRequest
from support.web_server import finish

pytestmark = pytest.mark.redis

NAMES = ["customer-4", "a/b", "a/b/", "/a", "ä ö", "mail:ada@example.org", "50%", "?x=1", "#top", "..", "a%2Fb", "日本"]


def path_of(thread_id, part=""):
    return f"/threads/{quote(thread_id, safe='')}{part}"


def say(client, rt, text, thread_id):
    turn = client.post("/turns", json={"text": text, "thread_id": thread_id}).json()["turn_id"]
    finish(rt, turn)
    return turn


def test_a_thread_is_found_by_its_id_whatever_it_is_called(client, rt):
    for name in NAMES:
        say(client, rt, "hello", name)

        thread = client.get(path_of(f"api:{name}"))
        history = client.get(path_of(f"api:{name}", "/history"))

        assert (thread.status_code, thread.json()["thread_id"], thread.json()["turns"]) == (200, f"api:{name}", 1)
        assert [remark["text"] for remark in history.json()["data"]] == ["hello", "You said: hello"]


def test_a_thread_is_found_by_the_name_that_its_caller_gave_it(client, rt):
    say(client, rt, "hello", "customer-4")

    assert client.get("/threads/customer-4").json() == client.get("/threads/api:customer-4").json()
    assert client.get("/threads/customer-4/history").json()["data"][0]["text"] == "hello"


def test_history_is_read_backwards_page_by_page(client, rt):
    for text in ("one", "two", "three"):
        say(client, rt, text, "t")
    pages, after = [], None
    while True:
        query = {"limit": 4, **({"after": after} if after else {})}
        page = client.get("/threads/t/history", params=query).json()
        pages.append([remark["text"] for remark in page["data"]])
        if (after := page["next"]) is None:
            break

    assert pages == [
        ["two", "You said: two", "three", "You said: three"],
        ["one", "You said: one"],
    ]


def test_a_reply_has_its_calls(client, rt):
    say(client, rt, "please add", "t")

    asked = client.get("/threads/t/history").json()["data"][1]

    assert (asked["role"], [call["arguments"] for call in asked["calls"]]) == (
        "assistant", [{"a": 1, "b": 2}, {"a": 30, "b": 4}],
    )  # fmt: skip


@pytest.mark.parametrize("part", ["", "/history"])
def test_a_thread_that_is_not_there_and_one_of_others_are_the_same_404(client, rt, part):
    message = Message(origin=Origin.INVOKE, channel=None, sender=Sender.PEER, thread_id="tg:2", text="a secret")
    stages.admit(rt, TurnRequest(message=message, source="poll:tg"))

    there, nowhere = client.get(path_of("tg:2", part)), client.get(path_of("tg:3", part))

    assert there.status_code == nowhere.status_code == 404
    assert there.json()["detail"].replace("tg:2", "ID") == nowhere.json()["detail"].replace("tg:3", "ID")
    assert client.get("/threads").json()["data"] == []
