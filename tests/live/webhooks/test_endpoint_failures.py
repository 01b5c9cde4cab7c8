"""The engine behind the endpoint fails, is full, or is broken: what the sender gets, and what the operator sees."""

from __future__ import annotations

import json

import pytest

from chordage.orchestrator.core.errors import Conflict, QueueFull, RoomError, Unavailable, UnknownAgent
from chordage.orchestrator.gateways.webhooks.bindings import WebhookBindings
from chordage.orchestrator.loops.hook import WebhookReceiver
from chordage.workers import web
from support import client_room, signed_deliveries
from support.signed_deliveries import refused
from support.waiting import until
from support.web_server import raising, served, server_with, with_redis

MORE = """
[hooks.own]
path = "/hooks/own"
signature = "none"
plugin = "own_hooks_of_the_door:decode"

[hooks.broken]
path = "/hooks/broken"
signature = "github"
secret_env = "NOT_SET"
"""
DECODER = """
def decode(delivery):
    said = delivery.body.decode()
    if said == "nothing":
        return None
    return {"text": said, "meta": {"sum": 1 // len(said)}}
"""


class Noted:
    def __init__(self):
        self.outcomes = []

    def count(self, name, outcome, last=None):
        self.outcomes.append((name, outcome.value))

    def close(self):
        self.outcomes.append(("", "closed"))


@pytest.fixture
def noted():
    return Noted()


@pytest.fixture
def post(tmp_path, monkeypatch, noted):
    """Post to a server that accepts in this way."""
    room = client_room.write(tmp_path / "room")
    (room / "own_hooks_of_the_door.py").write_text(DECODER)
    signed_deliveries.write(room, signed_deliveries.FILE + MORE)
    book = WebhookBindings(room, signed_deliveries.ENV)

    def post(path, body, headers, accept, root_path=""):
        app = server_with(webhooks=WebhookReceiver(bindings=book, accept=accept, stats=noted))
        with served(app, root_path=root_path) as client:
            return client.post(path, content=body, headers=headers)

    return post


FAILURES = {
    "full": (QueueFull("group chat is full: try again later", retry_after=6.2), 429, "full"),
    "busy": (Conflict("thread is busy"), 409, "busy"),
    "unavailable": (Unavailable("the database at db.internal does not answer"), 503, "unavailable"),
    "no agent": (UnknownAgent("/srv/room: there is no agent 'eve'"), 503, "failed"),
    "broken agent": (RoomError("/srv/room/agent.toml:3: no"), 503, "failed"),
    "a bug": (RuntimeError("/srv: oh"), 503, "failed"),
}


@pytest.mark.parametrize(("error", "status", "outcome"), FAILURES.values(), ids=FAILURES)
def test_internal_error_of_the_endpoint_is_reported_without_internal_details(post, noted, error, status, outcome):
    body = signed_deliveries.bodies("bare")

    response = post("/hooks/bare", body, signed_deliveries.bare(body), raising(error))

    problem = refused(response, status)
    assert not [ours for ours in ("/srv", "db.internal", "eve") if ours in json.dumps(problem)]
    assert noted.outcomes == [("bare", outcome), ("", "closed")]
    assert response.headers.get("Retry-After") == {429: "7", 503: "5"}.get(status)


def test_broken_binding_is_answered_like_an_unreachable_database(post):
    broken = post("/hooks/broken", b"{}", {}, raising(AssertionError()))
    body = signed_deliveries.bodies("bare")
    away = post("/hooks/bare", body, signed_deliveries.bare(body), raising(Unavailable("x")))

    assert refused(broken, 503) == refused(away, 503)
    assert broken.headers["Retry-After"] == away.headers["Retry-After"]


def test_decoder_may_report_that_it_is_no_message(post, noted):
    response = post("/hooks/own", b"nothing", {}, raising(AssertionError()))

    assert (response.status_code, response.content) == (204, b"")
    assert noted.outcomes[0] == ("own", "ignored")


def test_failing_decoder_is_503_and_reported_to_the_operator_alone(post, noted):
    response = post("/hooks/own", b"", {}, raising(AssertionError()))

    assert "ZeroDivision" not in json.dumps(refused(response, 503))
    assert noted.outcomes[0] == ("own", "failed")


class Admitted:
    turn_id, thread_id, duplicate = "t1", "th1", False


def test_behind_a_proxy_a_binding_is_found_below_its_path(post):
    body = signed_deliveries.bodies("bare")

    response = post("/hooks/bare", body, signed_deliveries.bare(body), lambda request: Admitted, root_path="/agents")

    assert (response.status_code, response.json()["turn_id"]) == (202, "t1")


@pytest.mark.redis
def test_without_redis_a_delivery_is_stored_all_the_same(settings, rt, start_valkey):
    server = start_valkey()
    with served(web.wired(with_redis(settings, server.url))) as client:
        server.kill()
        body = signed_deliveries.bodies("bare")
        response = client.post("/hooks/bare", content=body, headers=signed_deliveries.bare(body))

    assert response.status_code == 202


@pytest.mark.redis
def test_the_mirror_of_a_hook_shows_what_came(shared):
    shared.client.post("/hooks/github", content=b"{}")
    body = signed_deliveries.bodies("github")
    turn_id = shared.client.post("/hooks/github", content=body, headers=signed_deliveries.github(body)).json()[
        "turn_id"
    ]

    mirror = shared.settings.room_path / "hooks" / "github.json"
    until(lambda: mirror.exists() and turn_id in mirror.read_text(), "it is written")
    assert json.loads(mirror.read_text())["refused"]["unsigned"] >= 1
    until(lambda: not list(mirror.parent.glob(".*")), "no file is left that was on its way to become one")


@pytest.mark.redis
def test_a_binding_that_is_changed_counts_at_once_and_its_old_secret_no_longer(settings, client, monkeypatch):
    body = signed_deliveries.bodies("bare")
    old, new = signed_deliveries.bare(body), signed_deliveries.bare(body, secret="the new one")
    monkeypatch.setenv("HOOK_NEW", "the new one")
    assert refused(client.post("/hooks/bare", content=body, headers=new), 403)

    signed_deliveries.write(settings.room_path, signed_deliveries.FILE.replace('"HOOK_SECRET"', '"HOOK_NEW"'))

    until(lambda: client.post("/hooks/bare", content=body, headers=new).status_code == 202, "it is read", pause=0.1)
    assert refused(client.post("/hooks/bare", content=body, headers=old), 403)
