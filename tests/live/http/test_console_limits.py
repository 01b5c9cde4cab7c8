"""A session of the console takes from the rates and the streams of its key."""

from __future__ import annotations

from contextlib import ExitStack

import pytest

from chordage.orchestrator import stages
from chordage.orchestrator.core.audit import CLI
from chordage.orchestrator.core.callers import KeyScope
from chordage.orchestrator.core.keys import KeyTerms
from chordage.workers import web
from support.console_room import stream, token_in
from support.waiting import until
from support.web_server import served

pytestmark = pytest.mark.redis


@pytest.fixture
def key(rt):
    return stages.create_key(rt.store, KeyTerms(name="n", scopes=frozenset(KeyScope)), CLI, rt.now()).text


def logged_in(client, key):
    assert client.post("/console/login", data={"key": key}).status_code == 303
    return client


def test_pages_count_for_the_rate_of_the_key_and_a_refused_one_is_a_page(settings, key):
    limited = settings.model_copy(update={"key_rate": 0.01, "key_burst": 4})
    with served(web.wired(limited)) as client:
        logged_in(client, key)
        token = token_in(client.get("/console/runs").text)
        of_api = client.get("/inbox", headers={"X-Api-Key": key}).status_code
        codes = [client.get(path).status_code for path in ("/console/agents", "/console/groups", "/console/runs")]
        refused = client.get("/console/inbox")
        posted = client.post("/console/runs", data={"csrf": token, "text": "x"})
        lived = client.get("/console/runs/live")
        by_key = client.get("/inbox", headers={"X-Api-Key": key})
        left = client.post("/console/logout", data={"csrf": token})

    assert (of_api, codes) == (200, [200, 200, 429])
    assert [answer.status_code for answer in (refused, posted, lived, by_key)] == [429] * 4
    for page in (refused, posted, lived):
        assert page.headers["Content-Type"].startswith("text/html")
        assert 1 <= int(page.headers["Retry-After"]) <= 100
        assert "requests a second" in page.text
    assert left.status_code == 303, "a person can always log out"


def test_live_pages_are_streams_of_the_key(settings, key):
    with served(web.wired(settings.model_copy(update={"key_streams": 2}))) as client:
        logged_in(client, key)
        with ExitStack() as pages:
            streams = [pages.enter_context(stream(client, "/console/runs/live")) for _ in range(2)]
            for messages in streams:
                next(messages)
            with client.stream("GET", "/console/runs/live") as refused:
                assert refused.status_code == 429
                refused.read()
        assert refused.headers["Retry-After"] == "5"
        assert refused.headers["Content-Type"].startswith("text/html")
        until(lambda: can_open(client), "the places of the closed pages are free")


def can_open(client):
    with client.stream("GET", "/console/runs/live") as response:
        return response.status_code == 200
