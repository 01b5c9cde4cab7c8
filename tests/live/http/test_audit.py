"""The record over HTTP, from the command line and in the console: who decided, changed keys and intervened."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from click.testing import CliRunner

from chordage.orchestrator import stages, views
from chordage.orchestrator.core.audit import CLI, Actor, Audited
from chordage.orchestrator.core.callers import KeyScope
from chordage.orchestrator.core.keys import KeyTerms
from chordage.workers.cli import main
from support import asking_room
from support.console_room import log_in
from support.web_server import PROBLEM, finish, with_database

pytestmark = pytest.mark.redis


@pytest.fixture
def settings(settings, database_url):
    return with_database(settings, database_url).model_copy(update={"keyless": "none"})


def id_of(headers):
    return headers["X-Api-Key"].split("_")[1]


def entries(client, headers, **query):
    response = client.get("/audit", headers=headers, params=query)
    assert response.status_code == 200, response.text
    return response.json()["data"]


def kinds(client, headers, **query):
    return [entry["action"] for entry in entries(client, headers, **query)]


def test_every_intervention_is_on_record_with_who_and_from_where(client, key, rt):
    headers = key()
    send = lambda **fields: client.post("/turns", json={"text": "x", **fields}, headers=headers).json()  # noqa: E731
    queued, done = send(), send(thread_id="forked")
    finish(rt, done["turn_id"])
    cancelled = client.post(f"/turns/{queued['turn_id']}/cancel", json={}, headers=headers)
    retried = client.post(f"/turns/{queued['turn_id']}/retry", json={}, headers=headers).json()
    assert client.post(f"/turns/{queued['turn_id']}/retry", json={}, headers=headers).json()["duplicate"]
    fork = client.post("/threads/api:forked/fork", json={}, headers=headers)
    assert cancelled.status_code == 200
    assert client.patch("/groups/chat", json={"budget": 3}, headers=headers).status_code == 200

    mine = entries(client, headers, key=id_of(headers))

    assert [(one["action"], one["about"], one["address"]) for one in mine] == [
        ("budget_set", "chat", "127.0.0.1"),
        ("forked", fork.json()["thread_id"], "127.0.0.1"),
        ("retried", retried["turn_id"], "127.0.0.1"),
        ("cancelled", queued["turn_id"], "127.0.0.1"),
    ]
    assert mine[0]["detail"] == {"before": None, "budget": 3}


def test_what_changed_nothing_is_not_on_record(client, key, rt):
    headers = key()
    turn = client.post("/turns", json={"text": "x"}, headers=headers).json()["turn_id"]
    finish(rt, turn)

    assert client.post(f"/turns/{turn}/cancel", json={}, headers=headers).status_code == 200
    client.patch("/groups/chat", json={"budget": 3}, headers={**headers, "If-Match": '"other"'})

    assert entries(client, headers, key=id_of(headers)) == []


@pytest.fixture
def asking(settings):
    asking_room.write(settings.room_path)


@pytest.mark.usefixtures("asking")
def test_a_message_steered_into_a_run_is_on_record(client, key, rt):
    turn = asking_room.waiting_turn(rt, "send", space="api")
    headers = key()

    steered = client.post(f"/runs/{turn.run_id}/steer", json={"text": "and quickly"}, headers=headers)

    assert steered.status_code == 202
    (entry,) = entries(client, headers, kind="steered")
    assert (entry["about"], entry["actor"]) == (steered.json()["turn_id"], id_of(headers))


def test_a_tenant_reads_what_its_own_keys_did(client, key, rt):
    theirs, mine, all_of_it = key(tenant="acme"), key(tenant="umbrella"), key()
    for headers in (theirs, mine):
        made = client.post("/keys", json={"name": "n", "scopes": ["read"]}, headers=headers).json()["key"]["id"]
        client.delete(f"/keys/{made}", headers=headers)

    assert kinds(client, mine) == ["key_revoked", "key_created"]
    assert {entry["tenant"] for entry in entries(client, mine)} == {"umbrella"}
    assert entries(client, mine, key=id_of(theirs)) == []
    assert {entry["tenant"] for entry in entries(client, all_of_it)} == {None, "acme", "umbrella"}


def test_pages_leave_nothing_out_and_filters_hold_on_each(client, key, rt):
    headers = key()
    ids = [client.post("/keys", json={"name": "n", "scopes": ["read"]}, headers=headers).json()["key"]["id"]
           for _ in range(5)]  # fmt: skip
    client.delete(f"/keys/{ids[0]}", headers=headers)

    read, after = [], None
    while True:
        query = {"kind": "key_created", "key": id_of(headers), "limit": 2, **({"after": after} if after else {})}
        page = client.get("/audit", headers=headers, params=query).json()
        read += [entry["about"] for entry in page["data"]]
        if (after := page["next"]) is None:
            break

    assert read == ids[::-1]
    later = (datetime.now(UTC) + timedelta(minutes=1)).isoformat()
    assert entries(client, headers, since=later) == []


def test_the_record_needs_the_scope_admin_and_a_cursor_of_its_own(client, key):
    refused = client.get("/audit", headers=key(*(frozenset(KeyScope) - {KeyScope.ADMIN})))
    assert (refused.status_code, refused.json()["scope"]) == (403, "admin")

    for query in ({"after": "nonsense"}, {"kind": "nonsense"}, {"since": "yesterday"}):
        wrong = client.get("/audit", headers=key(), params=query)
        assert (wrong.status_code, wrong.headers["Content-Type"]) == (422, PROBLEM), query


def test_the_command_lists_the_record(settings, key, monkeypatch):
    made = id_of(key(tenant="acme"))
    monkeypatch.setenv("CHORDAGE_ROOM", str(settings.room))
    monkeypatch.setenv("CHORDAGE_DATABASE_URL", settings.database_url.get_secret_value())

    shown = CliRunner().invoke(main, ["keys", "audit", "--kind", "key_created", "--since", "1h"])
    none = CliRunner().invoke(main, ["keys", "audit", "--key", "nobody"])

    assert shown.exit_code == 0, shown.output
    assert made in shown.output
    assert "tenant acme; scopes admin, decide, operate" in shown.output
    assert "act as" not in shown.output
    assert (none.exit_code, none.output) == (0, "")


def test_the_console_shows_the_record_to_operators(client, rt):
    hostile = Actor(id="<script>alert(1)</script>", address="::1")
    for number in range(60):
        terms = KeyTerms(name=f"n{number}", scopes=frozenset({KeyScope.READ}))
        stages.create_key(rt.store, terms, hostile, rt.now())
    console = log_in(client, rt.store)

    page = console.get("/console/audit")

    assert page.status_code == 200
    assert "<script>alert" not in page.text
    assert page.text.count("<tr data-row>") == 50
    older = page.text.split('rel="next" href="')[1].split('"')[0].replace("&amp;", "&")
    assert console.get(older).text.count("<tr data-row>") == 10 + 1  # the link of this login too
    assert "Nothing of this kind" in console.get("/console/audit", params={"kind": Audited.FORKED}).text


def test_the_console_shows_a_tenant_its_own_record(client, rt):
    reads = frozenset({KeyScope.READ, KeyScope.OPERATE})
    new = stages.create_key(rt.store, KeyTerms(name="n", scopes=reads, tenant="acme"), CLI, rt.now())
    stages.create_key(rt.store, KeyTerms(name="m", scopes=reads), Actor(id="boss", tenant="acme"), rt.now())
    client.post("/console/login", data={"key": new.text})

    shown = client.get("/console/audit").text

    assert shown.count("<tr data-row>") == 1
    assert "boss" in shown


def test_commands_are_on_record_too(rt):
    group = stages.set_budget
    group(rt, next(iter(rt.budgets)), 7, by=CLI)

    assert [(one.actor, one.action) for one in views.audit_page(rt.store).data] == [("cli", Audited.BUDGET_SET)]
