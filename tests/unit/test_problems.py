"""A group that takes no more says so over HTTP, and when to come again."""

from __future__ import annotations

from fastapi import FastAPI
from fastapi.testclient import TestClient

from chordage.orchestrator.core.errors import QueueFull
from chordage.orchestrator.loops import problems


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
