"""A key that is revoked while a stream of it is open: nothing more is sent, and the stream says that it ends."""

from __future__ import annotations

import threading
from dataclasses import replace
from itertools import islice

import pytest

from chordage.orchestrator import stages, views
from chordage.orchestrator.api import authentication, session_cookies, streams
from chordage.orchestrator.api.services import keep
from chordage.orchestrator.console import live
from chordage.orchestrator.core.audit import CLI
from chordage.orchestrator.core.callers import KeyScope
from chordage.orchestrator.core.keys import KeyTerms
from chordage.workers import web
from support.following import following
from support.waiting import until
from support.web_server import served

pytestmark = pytest.mark.redis


@pytest.fixture
def revoked():
    return threading.Event()


@pytest.fixture
def client(settings, revoked, monkeypatch):
    monkeypatch.setattr(streams, "ASK_EVERY", 0.05)
    app = web.wired(settings)
    keep(app, replace(app.state.services, is_valid=lambda _caller: not revoked.is_set()))
    with served(app) as one:
        yield one


@pytest.mark.parametrize("path", ["/threads/t/events", "/events", "/turns/{turn}/events"])
def test_stream_of_facts_ends(client, revoked, path):
    turn = client.post("/turns", json={"text": "hello", "thread_id": "t"}).json()["turn_id"]
    with following(client, path.format(turn=turn)) as events:
        first = next(events)
        revoked.set()
        rest = list(events)
    assert first == "retry 1000"
    assert rest[-1] == f": {streams.NOT_VALID_ANY_MORE}"


def test_stream_of_a_face_ends_with_an_error(client, revoked):
    body = {"threadId": "t", "runId": "r", "messages": [{"id": "m", "role": "user", "content": "hello"}]}
    with client.stream("POST", "/agui/ada", json=body) as response:
        lines = response.iter_lines()
        assert "RUN_STARTED" in next(lines)
        revoked.set()
        last = [line for line in lines if line][-1]
    assert '"type":"RUN_ERROR"' in last
    assert '"code":"unauthenticated"' in last


def test_stream_of_a_response_ends_with_an_error(client, revoked):
    body = {"model": "ada", "input": "hello", "stream": True}
    with client.stream("POST", "/v1/responses", json=body) as response:
        lines = response.iter_lines()
        assert "response.created" in next(lines)
        revoked.set()
        last = [line for line in lines if line][-1]
    assert '"type":"error"' in last


def test_page_that_is_open_ends(settings, rt, monkeypatch):
    monkeypatch.setattr(live, "ASK_EVERY", 0.05)
    terms = KeyTerms(name="n", scopes=frozenset({KeyScope.READ}))
    key = stages.create_key(rt.store, terms, CLI, rt.now())
    app = web.wired(settings)
    with served(app) as client:
        assert client.post("/console/login", data={"key": key.text}).status_code == 303
        with client.stream("GET", "/console/runs/live") as response:
            lines = response.iter_lines()
            assert next(lines) == "retry: 1000"
            stages.revoke_key(rt.store, key.key.id, CLI, rt.now())
            assert [line for line in lines if line][-1] == "data: over"


@pytest.mark.parametrize("begins_with", ["key", "link"])
def test_page_that_is_open_ends_with_its_session(settings, rt, make_key, monkeypatch, begins_with):
    """The key stays valid, and so does every other session."""
    monkeypatch.setattr(live, "ASK_EVERY", 0.05)
    monkeypatch.setattr(live, "HEARTBEAT", 0.05)
    monkeypatch.setattr(session_cookies, "BELIEVED", 0.0)
    key = make_key(KeyScope.READ)
    with served(web.wired(settings)) as client:
        if begins_with == "key":
            client.post("/console/login", data={"key": key.text})
        else:
            client.get("/console/login", params={"link": stages.make_link(rt.store, rt.now())})
        with client.stream("GET", "/console/runs/live") as response:
            lines = response.iter_lines()
            assert next(lines) == "retry: 1000"
            (session,) = views.session_page(rt.store, rt.now(), limit=5).data
            stages.end_session(rt.store, session.id, CLI, rt.now())
            assert "data: over" in islice(lines, 1000), "a heartbeat comes every 0.05 s, and no end"
        assert client.get("/turns", headers={"X-Api-Key": key.text}).status_code == 200


ALICE = {"X-Forwarded-User": "alice@example.org"}


@pytest.fixture
def behind_a_proxy(settings):
    named = {"sso_header": "X-Forwarded-User", "sso_networks": ("127.0.0.0/8",), "sso_scopes": ("submit", "read")}
    return settings.model_copy(update=named)


def test_streams_of_people_whom_a_proxy_names_stay_open(behind_a_proxy, rt, monkeypatch):
    """They have no key that could be revoked. The proxy itself ends their connections."""
    monkeypatch.setattr(streams, "ASK_EVERY", 0.05)
    app, looks = web.wired(behind_a_proxy), []
    is_valid = app.state.services.is_valid

    def counted(caller):
        looks.append((caller.id, is_valid(caller)))
        return looks[-1][1]

    keep(app, replace(app.state.services, is_valid=counted))
    with served(app) as client:
        client.headers.update(ALICE)
        with following(client, "/events") as events:
            assert next(events) == "retry 1000"
            until(lambda: len(looks) > 2, "the server asks again whether the stream may stay open")
            sent = client.post("/turns", json={"text": "hello"}).json()
            stages.project(rt)
            assert next(events).data["turn_id"] == sent["turn_id"]
    assert set(looks) == {("sso:alice@example.org", True)}


def test_a_key_behind_the_proxy_is_asked_for_all_the_same(behind_a_proxy, rt, make_key, monkeypatch):
    monkeypatch.setattr(streams, "ASK_EVERY", 0.05)
    monkeypatch.setattr(authentication, "BELIEVED", 0.0)
    key = make_key()
    with served(web.wired(behind_a_proxy)) as client:
        client.headers["X-Api-Key"] = key.text
        with following(client, "/events") as events:
            assert next(events) == "retry 1000"
            stages.revoke_key(rt.store, key.key.id, CLI, rt.now())
            assert list(events)[-1] == f": {streams.NOT_VALID_ANY_MORE}"
