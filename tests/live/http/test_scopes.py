"""What a key may do: every endpoint without its scope, without payloads, and from another space."""

from __future__ import annotations

import json

import pytest

from chordage.orchestrator.core.callers import Caller, KeyScope
from chordage.orchestrator.core.groups import Group
from chordage.orchestrator.core.message import CALLERS
from support import asking_room
from support.web_server import PROBLEM, as_caller, finish, mounted, served

pytestmark = pytest.mark.redis

ALL = frozenset(KeyScope)
CALLERS_OF_THE_TEST = {
    "all": Caller(id="all"),
    "reader": Caller(id="reader", scopes=frozenset({KeyScope.READ})),
    "nothing": Caller(id="nothing", scopes=frozenset()),
    "sender": Caller(id="sender", scopes=frozenset({KeyScope.SUBMIT})),
    "acme": Caller(id="acme", tenant="acme"),
    "globex": Caller(id="globex", tenant="globex"),
    "operator": Caller(id="operator", tenant="ops", sees_all=True),
    "bobs": Caller(id="bobs", agents=frozenset({"bob"}), groups=frozenset({Group.TASK})),
}
OPEN = {"/health", "/live", "/ready"}
FACES = ("/v1/", "/agui/", "/ai/")  # they answer errors in their own form: test_keys.py asks them
OF_KEYS = {"/keys", "/audit", "/sessions"}  # they need another scope, and have no texts of turns
OF_OPERATORS = {"/doctor"}
ENDLESS = ("/events",)  # the texts of streams: test_streams.py
FLEET = {"/metrics", "/groups", "/groups/{name}", "/workers", "/doctor", "/channels", "/hooks", "/pulse",
         "/pulse/{name}/run", "/pulse/{name}/pause", "/pulse/{name}/resume"}  # fmt: skip
BODIES = {
    "submit_turn": {"text": "x"},
    "step_turn": {"verb": "next"},
    "steer_run": {"text": "x"},
    "set_budget": {"budget": 1},
    "change_turn": {"group": "chore"},
    "start_bulk": {"action": "cancel", "filter": {"status": ["queued"]}},
    "count_bulk": {"action": "cancel", "filter": {"status": ["queued"]}},
    "decide": {"decisions": [{"target": "x", "action": "cancel"}]},
}
SECRETS = ("please add", "Sums:", "sesame", "Let me add")


@pytest.fixture
def app(settings):
    return mounted(settings, CALLERS_OF_THE_TEST)


@pytest.fixture
def client(app):
    with served(app) as client:
        yield client


@pytest.fixture
def asking(settings):
    (settings.room_path / "agent.toml").unlink()
    asking_room.write(settings.room_path)


def operations(app, keep=lambda path: True):
    for path, item in app.openapi()["paths"].items():
        for verb, operation in item.items():
            if path not in OPEN and not path.startswith(FACES) and keep(path):
                yield verb.upper(), path, operation["operationId"]


def call(client, verb, path, operation_id, **ids):
    known = {"turn_id": "x", "run_id": "x", "call_id": "x", "thread_id": "x", "question_id": "x", "name": "chat",
             "delivery_id": "1", "bulk_id": "x", **ids}  # fmt: skip
    for name, value in known.items():
        path = path.replace(f"{{{name}}}", str(value))
    body = {"json": BODIES.get(operation_id, {})} if verb != "GET" else {}
    return client.request(verb, path, **body)


def test_every_endpoint_names_the_scope_that_a_key_lacks(app, client):
    seen = 0
    with as_caller(client, "nothing") as nothing:
        for verb, path, operation_id in operations(app):
            answer = call(nothing, verb, path, operation_id)
            assert (answer.status_code, answer.headers["content-type"]) == (403, PROBLEM), (verb, path)
            assert answer.json()["scope"] in set(KeyScope), (verb, path)
            seen += 1

    assert seen > 25


def test_a_reader_changes_nothing(app, client):
    with as_caller(client, "reader") as reader:
        for verb, path, operation_id in operations(app):
            if verb != "GET" and path != "/tickets":  # which let a reader read
                answer = call(reader, verb, path, operation_id)
                assert answer.status_code == 403, (verb, path)
                assert answer.json()["scope"] in {"submit", "operate", "decide", "admin"}


def test_what_is_of_the_whole_fleet_is_not_for_a_tenant(app, client):
    with as_caller(client, "acme") as acme, as_caller(client, "operator") as operator:
        for verb, path, operation_id in operations(app, keep=FLEET.__contains__):
            assert call(acme, verb, path, operation_id).status_code == 403, (verb, path)
            assert call(operator, verb, path, operation_id).status_code != 403, (verb, path)


def worked(client, rt, name, text="please add", **fields):
    """A turn of this caller that is done, with the ids of all that came of it."""
    with as_caller(client, name) as caller:
        body = {"text": text, "meta": {"word": "sesame"}, "thread_id": "t", **fields}
        receipt = caller.post("/turns", json=body).json()
        finish(rt, receipt["turn_id"])
        run_id = caller.get(f"/turns/{receipt['turn_id']}").json()["run_id"]
        calls = caller.get(f"/runs/{run_id}/calls").json()["data"]
    return {
        "turn_id": receipt["turn_id"], "thread_id": receipt["thread_id"], "run_id": run_id,
        "call_id": calls[0]["id"] if calls else "x",
    }  # fmt: skip


def test_without_payloads_every_text_is_null_and_the_answer_says_so(app, client, rt):
    ids, read = worked(client, rt, "all"), 0
    with as_caller(client, "reader") as reader, as_caller(client, "all") as everything:
        for verb, path, operation_id in operations(app):
            if verb != "GET" or path.endswith(ENDLESS) or path in OF_KEYS | OF_OPERATORS:
                continue
            shown, whole = (call(each, verb, path, operation_id, **ids) for each in (reader, everything))
            assert shown.status_code == whole.status_code, path
            assert not [secret for secret in SECRETS if secret in shown.text], path
            if '"payloads":true' in whole.text:
                assert '"payloads":false' in shown.text and '"payloads":true' not in shown.text, path
                read += any(secret in whole.text for secret in SECRETS)

    assert read >= 6, "there was something to hide"


@pytest.mark.usefixtures("asking")
def test_without_payloads_the_inbox_shows_that_something_waits_and_not_what(client, rt):
    asking_room.waiting_turn(rt, "send", space=CALLERS)

    with as_caller(client, "reader") as reader:
        first = reader.get("/inbox").json()["data"][0]
        one = reader.get(f"/inbox/{first['id']}").json()

    assert (first["tool"], first["arguments"], first["prompt"], first["payloads"]) == ("send", None, None, False)
    assert (one["status"], one["is_open"], one["question"]) == ("open", True, first)


def test_ids_of_another_tenant_are_not_there(app, client, rt):
    ids, seen = worked(client, rt, "acme"), 0
    with as_caller(client, "globex") as other:
        for verb, path, operation_id in operations(app, keep=lambda path: path not in FLEET and "{" in path):
            if "{delivery_id}" in path or "{name}" in path or "{question_id}" in path:
                continue
            answer = call(other, verb, path, operation_id, **ids)
            assert answer.status_code == 404, (verb, path, answer.text)
            nowhere = call(other, verb, path, operation_id)
            words = answer.json()["detail"]
            for value in ids.values():
                words = words.replace(value, "x")
            assert words == nowhere.json()["detail"], "it says the same of an id that no one has"
            seen += 1
        for path in ("/turns", "/runs", "/threads", "/inbox", "/deliveries"):
            assert other.get(path).json() == {"data": [], "next": None}

    assert seen >= 12


def test_an_operator_sees_the_threads_of_all(client, rt):
    ids = worked(client, rt, "acme")

    with as_caller(client, "operator") as operator:
        assert operator.get(f"/turns/{ids['turn_id']}").json()["thread_id"] == "api@acme:t"
        assert operator.get("/threads/api@acme:t/history").json()["data"][0]["text"] == "please add"
        assert [turn["turn_id"] for turn in operator.get("/turns").json()["data"]] == [ids["turn_id"]]
        assert [turn["turn_id"] for turn in operator.get("/turns?thread_id=api@acme:t").json()["data"]] == [
            ids["turn_id"]
        ]


def test_the_same_key_of_two_tenants_makes_two_turns(client):
    made = []
    for name in ("acme", "globex", "all"):
        with as_caller(client, name) as caller:
            made.append(caller.post("/turns", json={"text": "x", "dedupe_key": "order-17"}).json())

    assert [receipt["duplicate"] for receipt in made] == [False, False, False]
    assert len({receipt["turn_id"] for receipt in made}) == 3


def test_a_turn_counts_for_the_tenant_of_its_key_whatever_it_says(client):
    with as_caller(client, "acme") as acme:
        turn = acme.post("/turns", json={"text": "x", "tenant": "globex"}).json()["turn_id"]
        shown = acme.get(f"/turns/{turn}").json()

    assert (shown["tenant"], shown["thread_id"]) == ("acme", f"api@acme:{turn}")


def test_a_key_addresses_its_own_agents_and_groups_alone(client):
    with as_caller(client, "bobs") as bobs:
        default = bobs.post("/turns", json={"text": "x", "group": "task"})
        other_group = bobs.post("/turns", json={"text": "x", "agent": "bob"})
        taken = bobs.post("/turns", json={"text": "x", "agent": "bob", "group": "task"})
        listed = [agent["name"] for agent in bobs.get("/agents").json()["data"]]
        hidden = bobs.get("/agents/ada")

    assert (default.status_code, other_group.status_code, taken.status_code) == (403, 403, 202)
    assert "'ada'" in default.json()["detail"]
    assert (listed, hidden.status_code) == (["bob"], 404)


def test_who_only_sends_neither_waits_nor_decides(client):
    with as_caller(client, "sender") as sender:
        plain = sender.post("/turns", json={"text": "x"})
        waits = sender.post("/turns?wait=1", json={"text": "x"})
        decides = sender.post("/turns", json={"text": "x", "decisions": [{"target": "x", "action": "cancel"}]})
        stepped = sender.post("/turns", json={"text": "x", "control": "step"}).json()["turn_id"]
        verb = {"verb": "decide", "args": {"ask_id": "x", "allow": True}}
        by_verb = sender.post(f"/turns/{stepped}/steps", json=verb)

    assert plain.status_code == 202
    assert (waits.status_code, waits.json()["scope"]) == (403, "read")
    assert (decides.status_code, decides.json()["scope"]) == (403, "decide")
    assert (by_verb.status_code, by_verb.json()["scope"]) == (403, "decide")


def test_hidden_fields_are_null_in_json_and_not_left_out(client, rt):
    ids = worked(client, rt, "all")
    with as_caller(client, "reader") as reader:
        turn = json.loads(reader.get(f"/turns/{ids['turn_id']}").text)

    assert {turn[name] for name in ("text", "answer", "output", "detail")} == {None}
    assert (turn["meta"], turn["status"], turn["payloads"]) == (None, "done", False)
