"""Keys over HTTP: what opens without one, what each scope opens, and how far a tenant reaches."""

from __future__ import annotations

import re
import subprocess
import sysconfig
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import product
from pathlib import Path

import pytest

from chordage.orchestrator import stages, views
from chordage.orchestrator.api import authentication
from chordage.orchestrator.core.approvals import Action, DecisionRequest
from chordage.orchestrator.core.audit import CLI, Audited
from chordage.orchestrator.core.callers import KeyScope
from chordage.orchestrator.core.groups import Group
from chordage.orchestrator.core.keys import KeyTerms
from chordage.orchestrator.core.message import Message, Origin, Sender, TurnRequest
from chordage.orchestrator.run import approvals
from chordage.orchestrator.run.unit import Unit
from chordage.orchestrator.store import approvals as questions
from chordage.workers import web
from support import asking_room
from support.web_server import PROBLEM, finish, served, server_with, with_database

pytestmark = pytest.mark.redis

BEYOND = "0.0.0.0"  # noqa: S104 - a setting: the tests listen on loopback
PUBLIC = {"/health", "/live", "/ready"}  # of those that the description of the API has
ALL = frozenset(KeyScope)
PLAIN = "application/json"
OPENAI = "/v1/"
FACES = (OPENAI, "/agui/", "/ai/")  # they answer errors in their own form


@pytest.fixture
def settings(settings, database_url):
    """Both databases; the server listens beyond this machine."""
    return with_database(settings, database_url).model_copy(update={"host": BEYOND})


@pytest.fixture
def app(settings):
    return web.wired(settings)


@pytest.fixture
def client(app):
    with served(app) as one:
        yield one


@pytest.fixture
def key(rt):
    """Make a key; the headers that carry it."""

    def make(*scopes, **terms):
        wanted = KeyTerms(name="n", scopes=frozenset(scopes) or ALL, **terms)
        return {"X-Api-Key": stages.create_key(rt.store, wanted, CLI, datetime.now(UTC)).text}

    return make


def id_of(headers):
    return headers["X-Api-Key"].split("_")[1]


def endpoints(app):
    """Method and path of each endpoint that is not public."""
    paths = {path: methods for path, methods in app.openapi()["paths"].items() if path not in PUBLIC}
    assert len(paths) >= 6
    return [(method.upper(), path) for path, methods in paths.items() for method in methods]


def asked(client, method, path, *, ids="x", **more):
    path = re.sub(r"\{\w+\}", ids, path)
    body = {} if method in {"GET", "HEAD", "DELETE"} else {"json": {}}
    return client.request(method, path, **body, **more)


# Every endpoint.


BAD = [None, "Bearer nonsense", "Bearer sk-123", "Bearer ck_aaaaaaaaaaaa_" + "0" * 43 + "_000000", "Basic YTpi"]


def test_no_endpoint_opens_without_a_key(app, client):
    for sent, (method, path) in product(BAD, endpoints(app)):
        response = asked(client, method, path, headers={"Authorization": sent} if sent else {})

        kind = PLAIN if path.startswith(FACES) else PROBLEM
        assert (response.status_code, response.headers["Content-Type"]) == (401, kind), (method, path)
        assert response.headers["WWW-Authenticate"] == 'Bearer realm="chordage"'


def test_what_is_public_needs_none(client):
    assert client.get("/health").status_code == 200
    description = client.get("/openapi.json").json()
    assert set(description["components"]["securitySchemes"]) == {"bearer", "header"}
    assert {} in description["security"]


def test_no_endpoint_opens_for_the_wrong_scope(app, client, key):
    """The keys of keys open nothing else, and all other scopes together open no key."""
    only_keys, all_else = key(KeyScope.ADMIN), key(*(ALL - {KeyScope.ADMIN}))
    for method, path in endpoints(app):
        of_keys = path.startswith(("/keys", "/audit", "/sessions"))
        response = asked(client, method, path, headers=all_else if of_keys else only_keys)

        assert response.status_code == 403, (method, path)
        scopes = set(ALL) if path.startswith(OPENAI) else {response.json()["scope"]}
        assert scopes <= set(ALL)
        assert any(f"'{scope}'" in response.text for scope in scopes), response.text


def test_no_endpoint_opens_for_a_page_of_another_site(app, client, key):
    headers = {**key(), "Origin": "https://evil.example"}
    for method, path in endpoints(app):
        response = asked(client, method, path, headers=headers)

        assert (response.status_code, response.json()["type"]) == (403, "urn:chordage:problem:foreign_origin")


def test_no_id_of_another_tenant_is_there(app, client, key, rt):
    """Turn, key or call: nothing tells an id of others from one that was never made."""
    theirs, mine = key(tenant="acme"), key(tenant="umbrella")
    turn = client.post("/turns", json={"text": "a secret"}, headers=theirs).json()["turn_id"]
    finish(rt, turn)
    assert client.get(f"/turns/{turn}", headers=theirs).status_code == 200
    walked = 0
    for method, path in endpoints(app):
        if "{" not in path or method not in {"GET", "DELETE"}:
            continue
        for ids in (turn, id_of(theirs)):
            response = asked(client, method, path, ids=ids, headers=mine)
            nothing = {204} if path.endswith("/stream") else {403, 404}  # 403: it is of the whole fleet
            nothing |= {422} if path.endswith("/diff") else set()  # it wants two digests first, of any agent
            assert response.status_code in nothing, (method, path)
            assert "a secret" not in response.text
            walked += 1

    assert walked >= 6
    assert stages.find_key(rt.store, id_of(theirs)).revoked_at is None


# Scopes.


def test_a_turn_is_not_waited_for_with_a_key_that_may_not_read_it(client, key, rt):
    headers = key(*(ALL - {KeyScope.READ}))

    waited = client.post("/turns?wait=0.1", json={"text": "x"}, headers=headers)

    assert (waited.status_code, waited.json()["scope"]) == (403, "read")
    assert views.turns(rt.store) == []
    assert client.post("/turns", json={"text": "x"}, headers=headers).status_code == 202


@pytest.mark.usefixtures("asking")
def test_decisions_in_a_message_need_the_scope_as_well(client, key, rt):
    turn = asking_room.waiting_turn(rt, "send", space="api")
    question = views.inbox(rt.store)[0].id
    body = {"text": "x", "decisions": [{"target": question, "action": "resume", "payload": True}]}

    response = client.post("/turns", json=body, headers=key(KeyScope.SUBMIT))

    assert (response.status_code, response.json()["scope"]) == (403, "decide")
    assert views.turn(rt.store, turn.turn_id).reason == "suspended"


@pytest.mark.parametrize("agent", [None, "ada", "bob"])
def test_a_key_for_an_agent_reaches_that_agent_alone(client, key, agent):
    headers = key(agents=frozenset({"ada"}))

    response = client.post("/turns", json={"text": "x", "agent": agent}, headers=headers)

    assert response.status_code == (403 if agent == "bob" else 202)
    if agent == "bob":
        assert "'bob'" in response.json()["detail"]
        assert "ada" in response.json()["detail"]


def test_a_key_for_another_agent_does_not_reach_the_default_one(client, key):
    assert client.post("/turns", json={"text": "x"}, headers=key(agents=frozenset({"bob"}))).status_code == 403


@pytest.mark.parametrize("group", [None, "chat", "task"])
def test_a_key_for_a_group_reaches_that_group_alone(client, key, group):
    headers = key(groups=frozenset({Group.TASK}))

    response = client.post("/turns", json={"text": "x", "group": group}, headers=headers)

    assert response.status_code == (202 if group == "task" else 403)


# Tenants.


def test_a_turn_counts_for_the_tenant_of_its_key_whatever_it_says(client, key, rt):
    receipt = client.post("/turns", json={"text": "x", "tenant": "other"}, headers=key(tenant="acme")).json()

    turn = views.turn(rt.store, receipt["turn_id"])
    assert (turn.tenant, turn.source) == ("acme", "http@acme")
    assert turn.thread_id == f"api@acme:{turn.turn_id}"


def test_a_key_without_a_tenant_may_name_one(client, key, rt):
    receipt = client.post("/turns", json={"text": "x", "tenant": "other"}, headers=key()).json()

    assert views.turn(rt.store, receipt["turn_id"]).tenant == "other"


def test_tenants_use_the_same_names_for_different_threads(client, key, rt):
    acme, umbrella, none = key(tenant="acme"), key(tenant="umbrella"), key(KeyScope.SUBMIT)
    ids = [
        client.post("/turns", json={"text": "x", "thread_id": "t"}, headers=headers).json()["thread_id"]
        for headers in (acme, umbrella, none)
    ]

    assert ids == ["api@acme:t", "api@umbrella:t", "api:t"]


def test_a_thread_of_another_space_cannot_be_named(client, key):
    headers = key(tenant="umbrella")
    for name in ("api:t", "api@acme:t", "tg:2", "task:x", "will:ada"):
        receipt = client.post("/turns", json={"text": "x", "thread_id": name}, headers=headers).json()

        assert receipt["thread_id"] == f"api@umbrella:{name}"


def test_a_dedupe_key_of_one_tenant_finds_no_turn_of_another(client, key):
    body = {"text": "x", "dedupe_key": "order-1"}
    acme, umbrella = key(tenant="acme"), key(tenant="umbrella")
    first, again = (client.post("/turns", json=body, headers=acme).json() for _ in range(2))
    other = client.post("/turns", json=body, headers=umbrella).json()
    none = client.post("/turns", json=body, headers=key()).json()

    assert (first["turn_id"], again["duplicate"]) == (again["turn_id"], True)
    assert len({first["turn_id"], other["turn_id"], none["turn_id"]}) == 3
    assert not other["duplicate"]


def said_on(rt, thread_id):
    message = Message(origin=Origin.INVOKE, channel=None, sender=Sender.PEER, thread_id=thread_id, text="a secret")
    return stages.admit(rt, TurnRequest(message=message, source="poll:tg"))[0].turn_id


@pytest.mark.parametrize(
    ("scopes", "tenant", "status"),
    [
        (ALL, None, 200),
        ({KeyScope.READ, KeyScope.PAYLOADS, KeyScope.OPERATE}, None, 200),
        ({KeyScope.READ, KeyScope.PAYLOADS, KeyScope.DECIDE}, None, 404),
        (ALL, "acme", 404),
    ],
)
def test_only_an_operator_without_a_tenant_sees_the_threads_of_channels(client, key, rt, scopes, tenant, status):
    turn = said_on(rt, "tg:2")

    assert client.get(f"/turns/{turn}", headers=key(*scopes, tenant=tenant)).status_code == status


def test_an_operator_writes_to_its_own_space_alone(client, key, rt):
    said_on(rt, "tg:2")

    receipt = client.post("/turns", json={"text": "x", "thread_id": "tg:2"}, headers=key()).json()

    assert receipt["thread_id"] == "api:tg:2"


# Decisions.


@pytest.fixture
def asking(settings):
    for file in ("agent.toml", "agents/bob.toml"):
        (settings.room_path / file).unlink(missing_ok=True)
    asking_room.write(settings.room_path)


def yes(question):
    return {"decisions": [{"target": question.id, "action": "resume", "payload": True}]}


@pytest.mark.usefixtures("asking")
def test_a_decision_says_who_made_it_and_from_where(client, key, rt):
    turn = asking_room.waiting_turn(rt, "send", space="api")
    first, second = views.inbox(rt.store)
    headers = key(KeyScope.DECIDE)

    assert client.post("/decisions", json=yes(first), headers=headers).status_code == 202
    assert client.post("/decisions", json=yes(first), headers=headers).status_code == 202

    answers = answers_of(rt, turn)
    assert [(one.source, one.decided_by, one.action) for one in answers] == [("http", id_of(headers), Action.RESUME)]
    (entry,) = [one for one in views.audit_page(rt.store).data if one.action is Audited.DECIDED]
    assert (entry.actor, entry.address, entry.detail["suspension"]) == (id_of(headers), "127.0.0.1", first.id)
    assert second.id in {one.id for one in views.inbox(rt.store)}


def answers_of(rt, turn):
    """By call: several steps of a run may show the same."""
    steps = views.run(rt.store, turn.run_id).steps
    calls = {call.id: call for step in steps for call in getattr(step, "calls", ())}
    return [call.question.answer for call in calls.values() if call.question.answer]


@pytest.mark.usefixtures("asking")
def test_a_question_of_another_tenant_is_neither_shown_nor_answered(client, key, rt):
    asking_room.waiting_turn(rt, "send", space="api@acme")
    question = views.inbox(rt.store)[0]
    theirs, mine = key(tenant="acme"), key(tenant="umbrella")

    assert client.get("/inbox", headers=mine).json()["data"] == []
    assert client.post("/decisions", json=yes(question), headers=mine).status_code == 404
    assert client.post("/turns", json={"text": "x", **yes(question)}, headers=mine).status_code == 404
    assert len(client.get("/inbox", headers=theirs).json()["data"]) == 2
    assert client.post("/decisions", json=yes(question), headers=theirs).status_code == 202


@pytest.mark.usefixtures("asking")
def test_a_key_for_an_agent_decides_about_that_agent_alone(client, key, rt):
    asking_room.waiting_turn(rt, "send", space="api")
    question = views.inbox(rt.store)[0]

    refused = client.post("/decisions", json=yes(question), headers=key(agents=frozenset({"bob"})))

    assert (refused.status_code, "'ada'" in refused.json()["detail"]) == (403, True)
    assert client.post("/decisions", json=yes(question), headers=key(agents=frozenset({"ada"}))).status_code == 202


@pytest.mark.usefixtures("asking")
@pytest.mark.parametrize("way", ["cli", "celery", "with a message", "expiry"])
def test_a_decision_that_came_another_way_says_so(client, key, rt, way):
    """That of the engine itself is no entry of the record."""
    turn = asking_room.waiting_turn(rt, "send", space="api")
    question = views.inbox(rt.store)[0]
    yes_to_it = DecisionRequest(target=question.id, action=Action.RESUME, payload=True)
    headers = key()
    match way:
        case "with a message":
            body = {"text": "x", "thread_id": "t", **yes(question)}
            assert client.post("/turns", json=body, headers=headers).status_code == 202
        case "expiry":
            with Unit(rt) as unit:
                approvals.take_decisions(unit, [yes_to_it], [asked_in(unit, question.id)], "expiry")
        case _:
            stages.decide(rt, [yes_to_it], source=way)

    (answer,) = answers_of(rt, turn)
    recorded = [one.actor for one in views.audit_page(rt.store).data if one.action is Audited.DECIDED]
    who = id_of(headers) if way == "with a message" else way
    assert answer.decided_by == who
    assert recorded == ([] if way == "expiry" else [who])


def asked_in(unit, suspension_id):
    suspension = questions.load(unit.tx, suspension_id)
    assert suspension is not None
    return suspension


# Keys over HTTP.


def test_a_key_is_made_shown_once_used_listed_and_revoked(client, key):
    admin = key(KeyScope.ADMIN)
    made = client.post("/keys", json={"name": "shop", "scopes": ["submit"], "tenant": "acme"}, headers=admin)
    assert made.status_code == 201
    shop = {"Authorization": f"Bearer {made.json()['secret']}"}
    key_id = made.json()["key"]["id"]

    assert client.post("/turns", json={"text": "x"}, headers=shop).status_code == 202
    listed = {one["id"]: one for one in client.get("/keys", headers=admin).json()["data"]}
    assert (listed[key_id]["state"], listed[key_id]["created_by"]) == ("valid", id_of(admin))
    assert listed[key_id]["last_used_at"] is not None
    assert made.json()["secret"].split("_")[2] not in str(listed)

    revoked = client.delete(f"/keys/{key_id}", headers=admin).json()
    assert (revoked["state"], revoked["id"]) == ("revoked", key_id)
    again = client.delete(f"/keys/{key_id}", headers=admin).json()
    assert again["revoked_at"] == revoked["revoked_at"]


def test_a_revoked_key_is_refused_once_its_look_up_is_five_seconds_old(rt, settings):
    moment = [0.0]
    rows = authentication.KeyRows(find=lambda key_id: stages.find_key(rt.store, key_id), record_use=lambda _key: None)
    check = authentication.Authentication(rows, address=BEYOND, now=rt.now, clock=lambda: moment[0])
    new = stages.create_key(rt.store, KeyTerms(name="n", scopes=ALL), CLI, rt.now())
    check({"x-api-key": new.text})
    stages.revoke_key(rt.store, new.key.id, CLI, rt.now())

    moment[0] = authentication.BELIEVED
    with pytest.raises(authentication.Unauthenticated):
        check({"x-api-key": new.text})


def test_a_key_that_has_expired_is_refused(client, rt):
    terms = KeyTerms(name="n", scopes=ALL, expires_at=datetime.now(UTC) - timedelta(hours=1))
    text = stages.create_key(rt.store, terms, CLI, datetime.now(UTC) - timedelta(hours=2)).text

    assert client.get("/inbox", headers={"X-Api-Key": text}).status_code == 401


def test_a_key_of_a_tenant_makes_and_sees_keys_of_that_tenant_alone(client, key, rt):
    admin, other = key(tenant="acme"), key(tenant="umbrella")
    own = client.post("/keys", json={"name": "a", "scopes": ["read"]}, headers=admin)
    foreign = client.post("/keys", json={"name": "a", "scopes": ["read"], "tenant": "umbrella"}, headers=admin)

    assert (own.status_code, own.json()["key"]["tenant"]) == (201, "acme")
    assert (foreign.status_code, foreign.json()["field"]) == (422, "tenant")
    assert {one["tenant"] for one in client.get("/keys", headers=admin).json()["data"]} == {"acme"}
    assert client.delete(f"/keys/{id_of(other)}", headers=admin).status_code == 404


NO_KEYS = [
    ({"name": "x", "scopes": []}, "scopes"),
    ({"name": "x", "scopes": ["all"]}, "scopes.0"),
    ({"name": "", "scopes": ["read"]}, "name"),
    ({"name": "a\nb", "scopes": ["read"]}, "name"),
    ({"name": "x", "scopes": ["read"], "tenant": "a:b"}, "tenant"),
    ({"name": "x", "scopes": ["read"], "expires_at": "2001-01-01T00:00:00Z"}, "expires_at"),
    ({"name": "x", "scopes": ["read"], "more": 1}, "more"),
]


def test_what_makes_no_key_says_which_field_is_wrong(client, key):
    headers = key()
    for body, field in NO_KEYS:
        response = client.post("/keys", json=body, headers=headers)

        assert (response.status_code, response.json()["field"]) == (422, field), body


def test_pages_of_keys(client, key):
    admin, *_ = [key() for _ in range(5)]
    first = client.get("/keys?limit=3", headers=admin).json()
    second = client.get("/keys", params={"limit": 3, "after": first["next"]}, headers=admin).json()

    assert len({one["id"] for one in (*first["data"], *second["data"])}) == 5
    assert second["next"] is None
    assert client.get("/keys?after=nowhere", headers=admin).status_code == 404


@pytest.mark.slow
def test_the_endpoints_of_keys_keep_what_their_schema_promises(settings, key, tmp_path):
    """Schemathesis, as test_schema.py has it for callers without a key."""
    with served(web.wired(settings.model_copy(update={"key_rate": 0.0}))) as client:
        program = Path(sysconfig.get_path("scripts"), "schemathesis")
        options = ["--seed", "1", "--max-examples", "15", "--phases", "coverage,fuzzing", "--no-color"]
        options += ["--suppress-health-check", "too_slow"]
        options += ["--exclude-checks", "positive_data_acceptance", "--include-path-regex", "^/keys"]
        options += ["-H", f"X-Api-Key: {key()['X-Api-Key']}"]
        command = [program, "run", f"{client.base_url}/openapi.json", *options]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stdout + done.stderr


# On loopback.


@pytest.fixture
def at_home(settings):
    with served(web.wired(settings.model_copy(update={"host": "127.0.0.1"}))) as one:
        yield one


def test_on_loopback_a_program_needs_no_key_and_makes_none(at_home):
    assert at_home.post("/turns", json={"text": "x"}).status_code == 202
    refused = at_home.post("/keys", json={"name": "x", "scopes": ["admin"]})
    assert (refused.status_code, refused.json()["scope"]) == (403, "admin")


def test_on_loopback_every_request_needs_a_key_where_the_operator_says_so(settings, rt, key):
    from chordage.orchestrator.core.errors import ConfigError
    from chordage.workers.fleet.roles import check_keys

    closed = settings.model_copy(update={"host": "127.0.0.1", "keyless": "none"})
    with pytest.raises(ConfigError, match="CHORDAGE_KEYLESS is none"):
        check_keys(closed)
    with served(web.wired(closed)) as client:
        assert client.get("/inbox").status_code == 401
        assert client.get("/inbox", headers=key()).status_code == 200
    check_keys(closed)


def test_a_request_from_another_machine_is_not_local_whatever_it_says():
    """In an app of others, which listens where it likes, the Host may be a lie."""
    with served(server_with(inbox=lambda **_: []), forwarded_allow_ips="*") as client:
        assert client.get("/inbox").status_code == 200
        assert client.get("/inbox", headers={"X-Forwarded-For": "203.0.113.7"}).status_code == 401


def test_on_loopback_a_request_that_a_proxy_passed_on_needs_a_key(at_home, key):
    passed_on = {"X-Forwarded-For": "203.0.113.7"}
    assert at_home.get("/inbox", headers=passed_on).status_code == 401
    assert at_home.get("/inbox", headers={**passed_on, **key()}).status_code == 200


@pytest.mark.usefixtures("asking")
def test_on_loopback_a_decision_is_recorded_as_local(at_home, rt):
    turn = asking_room.waiting_turn(rt, "send", space="api")
    assert at_home.post("/decisions", json=yes(views.inbox(rt.store)[0])).status_code == 202

    assert [(one.decided_by, one.who) for one in answers_of(rt, turn)] == [("local", "local (http)")]


# Beyond it.


@pytest.mark.parametrize("made", [None, "expired", "revoked"])
def test_without_a_valid_key_a_server_beyond_loopback_does_not_start(rt, settings, made):
    from chordage.orchestrator.core.errors import ConfigError
    from chordage.workers.fleet.roles import check_keys

    now = datetime.now(UTC)
    terms = KeyTerms(name="n", scopes=ALL)
    if made == "expired":
        early = now - timedelta(hours=2)
        stages.create_key(rt.store, replace(terms, expires_at=now - timedelta(hours=1)), CLI, early)
    if made == "revoked":
        stages.revoke_key(rt.store, stages.create_key(rt.store, terms, CLI, now).key.id, CLI, now)

    with pytest.raises(ConfigError, match="chordage keys create NAME"):
        check_keys(settings)
    check_keys(settings.model_copy(update={"host": "127.0.0.1"}))
    stages.create_key(rt.store, terms, CLI, now)
    check_keys(settings)
