"""What comes over HTTP, or by the name of a Celery task, reaches only its own threads."""

from __future__ import annotations

import pytest

from chordage.orchestrator import stages, views
from chordage.orchestrator.core.callers import KeyScope
from chordage.orchestrator.core.errors import InvalidMessage, NotFound
from chordage.orchestrator.core.message import Message, Origin, Sender, TurnRequest
from chordage.tasks import names
from chordage.workers import web
from chordage.workers.app import make_app
from support import asking_room
from support.web_server import finish, served

pytestmark = pytest.mark.redis

SEES_ITS_OWN = [KeyScope.READ, KeyScope.PAYLOADS]
FOREIGN = ["tg:2", "mail:ada@example.org", "hook:github:7", "task:x", "chore:x", "will:ada", "child:1", "invoke:1", "t"]


@pytest.fixture
def by_name(settings):
    """Call a Celery task as any service would; what it raises is raised here."""
    app = make_app(settings)
    return lambda name, **kwargs: app.tasks[name].apply(kwargs=kwargs, throw=True).get()


@pytest.fixture
def asking(settings):
    """The agent of the room has tools that ask."""
    (settings.room_path / "agent.toml").unlink()
    asking_room.write(settings.room_path)


def said_on(rt, thread_id, text="a secret", **fields):
    """A message that came by a way of the operator's or of the room's: a channel, say."""
    fields = {"origin": Origin.INVOKE, "channel": None, **fields}
    message = Message(sender=Sender.PEER, thread_id=thread_id, text=text, **fields)
    turn_id = stages.admit(rt, TurnRequest(message=message, source="poll:tg"))[0].turn_id
    finish(rt, turn_id)
    return turn_id


@pytest.mark.parametrize("name", FOREIGN)
def test_a_thread_that_a_caller_names_is_its_own_whatever_it_is_called(client, rt, name):
    said_on(rt, name)

    receipt = client.post("/turns", json={"text": "what was said?", "thread_id": name}).json()
    finish(rt, receipt["turn_id"])

    assert receipt["thread_id"] == f"api:{name}"
    assert [one.text for one in views.turns(rt.store, thread_id=name)] == ["a secret"]
    assert [remark.text for remark in views.history(rt.store, f"api:{name}")][0] == "what was said?"


def test_caller_continues_a_thread_by_its_own_name_and_by_the_returned_one(client, rt, by_name):
    first = client.post("/turns", json={"text": "one", "thread_id": "customer-4"}).json()
    told = client.post("/turns", json={"text": "two", "thread_id": first["thread_id"]}).json()
    by_name(names.SUBMIT, text="three", thread_id="customer-4")

    assert first["thread_id"] == told["thread_id"] == "api:customer-4"
    assert len(views.turns(rt.store, thread_id="api:customer-4")) == 3


def test_caller_can_continue_a_thread_that_was_made_for_it(client):
    first = client.post("/turns", json={"text": "one"}).json()
    again = client.post("/turns", json={"text": "two", "thread_id": first["thread_id"]}).json()

    assert first["thread_id"] == again["thread_id"] == f"api:{first['turn_id']}"


def test_a_name_taken_before_a_channel_is_bound_is_worth_nothing_then(client, rt):
    client.post("/turns", json={"text": "mine", "thread_id": "tg:2"})

    said_on(rt, "tg:2", origin=Origin.CHAT, channel="tg")

    assert [one.text for one in views.turns(rt.store, thread_id="tg:2")] == ["a secret"]


@pytest.mark.parametrize("length", [200, 201])
def test_a_name_of_two_hundred_characters_is_the_longest(client, length):
    response = client.post("/turns", json={"text": "x", "thread_id": "t" * length})

    assert response.status_code == (202 if length == 200 else 422)


@pytest.mark.parametrize("name", ["api:", " ", "api: "])
def test_a_name_that_is_only_the_space_is_refused(client, name):
    response = client.post("/turns", json={"text": "x", "thread_id": name})

    assert (response.status_code, response.json()["field"]) == (422, "thread_id")


def test_same_work_of_a_caller_replaces_no_turn_of_another(client, rt):
    message = Message(origin=Origin.INVOKE, channel=None, sender=Sender.PEER, thread_id="tg:2", text="theirs")
    theirs = stages.admit(rt, TurnRequest(message=message, source="poll:tg", coalesce_key="index"))[0].turn_id

    client.post("/turns", json={"text": "mine", "coalesce_key": "index", "thread_id": "a"})
    mine = client.post("/turns", json={"text": "mine again", "coalesce_key": "index", "thread_id": "a"}).json()

    assert views.turn(rt.store, theirs).status == "queued"
    assert [one.disposition for one in views.turns(rt.store, thread_id="api:a")] == [None, "merged"]
    assert views.turn(rt.store, mine["turn_id"]).coalesce_key == "api:index"


def test_a_turn_of_others_is_not_there(client, rt):
    theirs = said_on(rt, "tg:2")

    there, nowhere = client.get(f"/turns/{theirs}"), client.get("/turns/nowhere")

    assert there.status_code == nowhere.status_code == 404
    assert there.json()["detail"].replace(theirs, "ID") == nowhere.json()["detail"].replace("nowhere", "ID")


@pytest.mark.usefixtures("asking")
def test_questions_of_others_are_neither_shown_nor_answered(client, rt):
    asking_room.waiting_turn(rt, "send", thread_id="tg:2")
    (first, _) = views.inbox(rt.store)
    yes = {"target": first.id, "action": "resume", "payload": True}

    assert client.get("/inbox").json()["data"] == []
    assert client.get("/inbox", params={"thread_id": "tg:2"}).json()["data"] == []
    assert client.get("/inbox", params={"after": first.id}).status_code == 404
    for target in (first.id, first.call_id):
        assert client.post("/decisions", json={"decisions": [{**yes, "target": target}]}).status_code == 404
        assert client.post("/turns", json={"text": "x", "decisions": [{**yes, "target": target}]}).status_code == 404
    assert len(views.inbox(rt.store)) == 2


@pytest.mark.usefixtures("asking")
def test_page_of_the_inbox_is_full_of_the_callers_own(client, rt):
    asking_room.waiting_turn(rt, "send", thread_id="tg:2")
    asking_room.waiting_turn(rt, "send", thread_id="api:a")
    asking_room.waiting_turn(rt, "send", thread_id="api@other:a")

    found = client.get("/inbox?limit=2").json()

    assert {one["thread_id"] for one in found["data"]} == {"api:a"}
    assert len(found["data"]) == 2


@pytest.mark.usefixtures("asking")
@pytest.mark.parametrize("scopes", [SEES_ITS_OWN, [*SEES_ITS_OWN, KeyScope.OPERATE]])
def test_every_list_and_path_takes_the_name_that_a_caller_gave_its_thread(client, rt, key, scopes):
    asking_room.waiting_turn(rt, "send", thread_id="api:a")
    asking_room.waiting_turn(rt, "send", thread_id="api:b")
    client.headers.update(key(*scopes))

    for name in ("a", "api:a"):
        for path, query in (
            ("turns", "thread_id"),
            ("runs", "thread_id"),
            ("inbox", "thread_id"),
            ("inbox", "root_thread"),
        ):
            found = client.get(f"/{path}", params={query: name}).json()["data"]
            assert {one["thread_id"] for one in found} == {"api:a"}, (path, query)
        assert client.get(f"/threads/{name}").json()["thread_id"] == "api:a"
        assert client.get(f"/threads/{name}/history").json()["data"][0]["text"] == "send"
        with client.stream("GET", f"/threads/{name}/events") as events:
            assert events.status_code == 200
        with client.stream("GET", f"/threads/{name}x/events") as events:
            assert events.status_code == 404
    if KeyScope.OPERATE in scopes:
        assert client.post("/threads/a/fork", json={}).json()["forked_from"] == "api:a"
        body = {"action": "cancel", "filter": {"status": ["waiting"], "thread_id": "a"}}
        assert client.post("/bulk/count", json=body).json()["number"] == 1


def test_a_name_hides_no_thread_whose_id_it_is_from_an_operator(client, rt, key):
    said_on(rt, "tg:2")
    finish(rt, client.post("/turns", json={"text": "mine", "thread_id": "tg:2"}).json()["turn_id"])
    client.headers.update(key())

    assert client.get("/threads/tg:2").json()["thread_id"] == "tg:2"
    assert client.get("/threads/api:tg:2").json()["thread_id"] == "api:tg:2"
    assert [one["text"] for one in client.get("/turns?thread_id=tg:2").json()["data"]] == ["a secret"]


OF_A_STEPPED_TURN = {
    names.HELD: {"turn": "{turn}"},
    names.STEP: {"turn": "{turn}", "verb": "next"},
    names.CANCEL: {"turn": "{turn}", "reason": "no"},
    names.COMPACT: {"thread": "tg:2"},
    names.DECIDE: {"decisions": [{"target": "{question}", "action": "cancel"}]},
}


@pytest.mark.usefixtures("asking")
@pytest.mark.parametrize("name", OF_A_STEPPED_TURN)
def test_nothing_by_name_reaches_a_turn_of_others(rt, by_name, name):
    from chordage.orchestrator.core.stepping import Control

    message = Message(origin=Origin.INVOKE, channel=None, sender=Sender.PEER, thread_id="tg:2", text="send")
    turn = stages.admit(rt, TurnRequest(message=message, source="poll:tg", control=Control.STEP))[0].turn_id
    asking_room.waiting_turn(rt, "send", thread_id="tg:3")
    question = views.inbox(rt.store)[0].id
    filled = {"{turn}": turn, "{question}": question}
    kwargs = {
        key: filled.get(value, value) if isinstance(value, str) else [{**one, "target": question} for one in value]
        for key, value in OF_A_STEPPED_TURN[name].items()
    }

    with pytest.raises(NotFound):
        by_name(name, **kwargs)

    assert views.turn(rt.store, turn).status == "queued"
    assert len(views.inbox(rt.store)) == 2


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"origin": "task", "thread_id": "task:x"}, "origin"),
        ({"origin": "chore", "thread_id": "chore:x"}, "origin"),
        ({"origin": "will"}, "origin"),
        ({"sender": "owner"}, "sender"),
        ({"sender": "self"}, "sender"),
    ],
)
def test_caller_cannot_speak_as_the_owner_or_as_the_agent_by_name(rt, by_name, fields, field):
    with pytest.raises(InvalidMessage) as refused:
        by_name(names.SUBMIT, text="x", **fields)

    assert refused.value.field == field
    assert views.turns(rt.store) == []


TARGETS = [{"url": "https://evil.example/in"}, {"channel": "tg", "chat_id": 2}]


@pytest.mark.parametrize("target", TARGETS, ids=str)
def test_a_caller_has_its_answer_sent_nowhere_that_is_not_listed(client, rt, by_name, target):
    """Over HTTP, by name, and for a turn that joins another."""
    responses = [client.post("/turns", json={"text": "x", "reply_target": target, **more}) for more in
                 ({}, {"when_busy": "steer", "thread_id": "a"}, {"coalesce_key": "a"})]  # fmt: skip
    with pytest.raises(InvalidMessage, match="CHORDAGE_REPLY_"):
        by_name(names.SUBMIT, text="x", reply_target=target)

    assert {response.status_code for response in responses} == {422}
    assert {response.json()["field"].partition(".")[0] for response in responses} == {"reply_target"}
    assert views.turns(rt.store) == []


def test_reply_target_that_the_room_lists_or_sets_is_accepted(settings, rt):
    given = settings.model_copy(update={"reply_hosts": ("crm.example.org",), "reply_channels": ("tg?chat_id=2",)})
    listed = [{"url": "https://crm.example.org/in"}, {"channel": "tg", "chat_id": 2}]
    with served(web.wired(given)) as client:
        codes = [client.post("/turns", json={"text": "x", "reply_target": target}).status_code for target in listed]
    message = Message(origin=Origin.CHAT, channel="tg", sender=Sender.PEER, thread_id="tg:3", text="x")
    stages.admit(rt, TurnRequest(message=message, source="poll:tg", reply_target={"channel": "tg", "chat_id": 3}))

    assert codes == [202, 202]
    assert len(views.turns(rt.store)) == 3
