"""People whom a proxy names: in the API and in the console, and what a forged header does."""

from __future__ import annotations

import pytest

from chordage.config.settings import SettingsFault, load
from chordage.orchestrator import stages, views
from chordage.orchestrator.core.audit import CLI
from chordage.orchestrator.core.callers import KeyScope
from chordage.orchestrator.core.keys import KeyTerms
from chordage.workers import web
from support.console_room import token_in
from support.web_server import finish, served, with_database

pytestmark = pytest.mark.redis

ALICE = {"X-Forwarded-User": "alice@example.org"}
HERE, ELSEWHERE = ("127.0.0.0/8",), ("10.0.3.7/32",)


@pytest.fixture
def settings(settings, database_url):
    scopes = ("submit", "read", "payloads", "operate")
    named = {"sso_header": "X-Forwarded-User", "sso_networks": HERE, "sso_scopes": scopes}
    return with_database(settings, database_url).model_copy(update=named)


@pytest.fixture
def elsewhere(settings):
    """A server whose proxy is on another machine: to it, this is somebody else."""
    with served(web.wired(settings.model_copy(update={"sso_networks": ELSEWHERE, "keyless": "none"}))) as one:
        yield one


def send(client, **headers):
    return client.post("/turns", json={"text": "x"}, headers=headers)


def test_the_proxy_names_who_calls(client, rt):
    turn = send(client, **ALICE).json()["turn_id"]

    assert client.get(f"/turns/{turn}", headers=ALICE).json()["sent_by"] == "sso:alice@example.org"
    client.post(f"/turns/{turn}/cancel", json={}, headers=ALICE)
    assert [entry.actor for entry in views.audit_page(rt.store).data] == ["sso:alice@example.org"]


def test_such_a_person_has_the_scopes_of_the_settings(client):
    assert client.get("/keys", headers=ALICE).status_code == 403
    assert client.post("/decisions", json={"decisions": []}, headers=ALICE).json()["scope"] == "decide"


@pytest.mark.parametrize("forged", [{}, {"X-Forwarded-For": "10.0.3.7"}, {"X-Real-IP": "10.0.3.7"},
                                    {"Forwarded": "for=10.0.3.7"}])  # fmt: skip
def test_a_header_from_another_address_does_nothing(elsewhere, forged):
    assert send(elsewhere, **ALICE, **forged).status_code == 401
    assert elsewhere.get("/console/runs", headers={**ALICE, **forged}).headers["location"].startswith("/console/login")


def test_no_header_moves_the_address_of_the_connection(settings):
    """uvicorn takes the client's address from a proxy on loopback: that of the connection stays what it is."""
    app = web.wired(settings.model_copy(update={"sso_networks": ELSEWHERE, "keyless": "none"}))
    with served(app, forwarded_allow_ips="*") as client:
        assert send(client, **ALICE, **{"X-Forwarded-For": "10.0.3.7"}).status_code == 401
    app = web.wired(settings)
    with served(app, forwarded_allow_ips="*") as client:
        assert send(client, **ALICE, **{"X-Forwarded-For": "203.0.113.9"}).status_code == 202


def test_a_request_of_the_proxy_without_a_name_is_refused_on_loopback_too(client):
    assert send(client).status_code == 401
    assert client.get("/console/runs").headers["location"].startswith("/console/login")
    assert client.get("/health").status_code == 200


@pytest.mark.parametrize("name", ["", "alice, mallory", "a:b", "sso:alice", "x" * 101])
def test_what_is_no_name_is_refused(client, name):
    assert send(client, **{"X-Forwarded-User": name}).status_code == 403


def test_a_header_that_came_twice_is_no_name(client):
    twice = [("X-Forwarded-User", "mallory"), ("X-Forwarded-User", "alice")]

    assert client.get("/turns", headers=twice).status_code == 403


def test_a_key_counts_before_the_name(client, rt):
    terms = KeyTerms(name="n", scopes=frozenset({KeyScope.SUBMIT}), tenant="acme")
    new = stages.create_key(rt.store, terms, CLI, rt.now())

    assert send(client, **ALICE, **{"X-Api-Key": new.text}).json()["thread_id"].startswith("api@acme:")
    assert send(client, **ALICE, Authorization="Bearer sk-of-another").status_code == 202


def test_people_may_belong_to_a_tenant(settings, rt):
    app = web.wired(settings.model_copy(update={"sso_tenant": "acme"}))
    with served(app) as client:
        turn = send(client, **ALICE).json()
        assert turn["thread_id"].startswith("api@acme:")
        assert client.get("/groups", headers=ALICE).status_code == 403


def test_the_console_takes_the_name_and_has_forms_of_that_person(client, rt):
    turn = send(client, **ALICE).json()["turn_id"]
    page = client.get(f"/console/runs/{turn}", headers=ALICE)
    assert page.status_code == 200
    form = {"csrf": token_in(page.text)}
    path = f"/console/runs/{turn}/cancel"

    bob = {"X-Forwarded-User": "bob"}
    assert client.post(path, data={"csrf": ""}, headers=ALICE).status_code == 403
    assert client.post(path, data=form, headers=bob).status_code == 403
    assert client.post(path, data=form, headers={**ALICE, "Sec-Fetch-Site": "cross-site"}).status_code == 403
    assert client.post(path, data=form).status_code in {401, 403}
    assert views.turn(rt.store, turn).disposition is None
    assert client.post(path, data=form, headers=ALICE).status_code == 303
    assert views.turn(rt.store, turn).disposition is not None


def test_a_ticket_of_such_a_person_opens_a_stream(client, rt):
    turn = send(client, **ALICE).json()["turn_id"]
    finish(rt, turn)
    path = f"/turns/{turn}/events"
    ticket = client.post("/tickets", json={"path": path}, headers=ALICE).json()["ticket"]

    assert client.get(path, params={"ticket": ticket}).status_code == 200


@pytest.mark.parametrize(
    ("given", "fault"),
    [
        ({"sso_header": "X-User"}, "belong together"),
        ({"sso_networks": "10.0.0.1"}, "belong together"),
        ({"sso_header": "X-User", "sso_networks": "0.0.0.0/0"}, "every address"),
        ({"sso_header": "X-User", "sso_networks": "proxy"}, "sso_networks"),
        ({"sso_header": "X User", "sso_networks": "10.0.0.1"}, "sso_header"),
        ({"sso_header": "X-User", "sso_networks": "10.0.0.1", "sso_scopes": "admin"}, "sso_scopes"),
    ],
)
def test_settings_that_would_trust_too_much_are_refused(given, fault):
    with pytest.raises(SettingsFault, match=f"(?i){fault}"):
        load(**given)
