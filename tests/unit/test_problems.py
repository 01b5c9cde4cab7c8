"""A group that takes no more says so over HTTP, and when to come again."""

from __future__ import annotations

import pytest
from fastapi import FastAPI, Request
from fastapi.testclient import TestClient

from chordage.orchestrator.api import problems
from chordage.orchestrator.core.callers import LOCAL, Caller, KeyScope
from chordage.orchestrator.core.errors import BrokenAgent, ConfigError, QueueFull, RoomError, Unavailable


def test_missing_service_is_503_that_says_where_to_look():
    app = FastAPI()
    problems.install(app)

    @app.get("/turns")
    def refuse() -> None:
        raise Unavailable

    answer = TestClient(app, raise_server_exceptions=False).get("/turns")

    assert answer.status_code == 503
    assert answer.json()["detail"].startswith("A required service does not answer; /health says which.")


BROKEN = BrokenAgent("/srv/room/agent.toml:3: tools: gone", "ada")
OF_TENANT = Caller(id="k", tenant="acme")
READER = Caller(id="k", scopes=frozenset({KeyScope.READ, KeyScope.SUBMIT}))


@pytest.mark.parametrize(
    ("caller", "error", "said"),
    [
        (LOCAL, BROKEN, str(BROKEN)),
        (LOCAL, ConfigError("set SHOP_KEY"), "set SHOP_KEY"),
        (READER, BROKEN, "agent 'ada' is broken"),
        (OF_TENANT, BROKEN, "agent 'ada' is broken"),
        (READER, ConfigError("/srv/keys: set SHOP_KEY"), "a file of the room is broken"),
        (None, RoomError("/srv/room/hooks.toml:1"), "a file of the room is broken"),
    ],
)
def test_a_broken_room_is_503_that_says_where_to_those_who_operate_it(caller, error, said):
    app = FastAPI()
    problems.install(app)

    @app.post("/turns")
    def refuse(request: Request) -> None:
        request.scope[problems.CALLER] = caller
        raise error

    answer = TestClient(app, raise_server_exceptions=False).post("/turns")

    assert (answer.status_code, answer.headers["Retry-After"]) == (503, "5")
    assert answer.json()["type"] == "urn:chordage:problem:broken_room"
    assert answer.json()["detail"].startswith(said)
    assert caller is LOCAL or "/srv" not in answer.text


def test_a_full_queue_is_429_with_the_seconds_to_wait():
    app = FastAPI()
    problems.install(app)

    @app.post("/turns")
    def refuse() -> None:
        raise QueueFull("the will of agent 'ada' is put off", retry_after=4.2)

    answer = TestClient(app, raise_server_exceptions=False).post("/turns")

    assert (answer.status_code, answer.headers["Retry-After"]) == (429, "5")
    assert answer.json()["type"] == "urn:chordage:problem:queue_full"
    assert answer.json()["detail"] == "the will of agent 'ada' is put off"
