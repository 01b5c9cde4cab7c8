"""Two servers on one database and one Redis: what one of them begins, the other goes on with."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from datetime import UTC, datetime

import httpx
import pytest

from chordage.config.settings import load
from chordage.orchestrator import stages, views
from chordage.orchestrator.api.authentication import BELIEVED
from chordage.orchestrator.core.audit import CLI
from chordage.orchestrator.core.callers import KeyScope
from chordage.orchestrator.core.keys import KeyTerms
from chordage.workers import web
from support import console_room
from support.console_room import log_in, stream, token_in, waiting_turn
from support.following import everything
from support.waiting import PATIENCE, until
from support.web_server import finish, served

pytestmark = pytest.mark.redis

AT_ONCE = 8


@pytest.fixture
def settings(tmp_path, migrated_database_url, redis_url):
    room = console_room.write(tmp_path / "room")
    return load(room=room, database_url=migrated_database_url("sqlite"), redis_url=redis_url)


@pytest.fixture
def servers(settings):
    with ExitStack() as stack:
        yield [stack.enter_context(served(web.wired(settings))) for _ in range(2)]


def test_a_link_is_taken_once_by_one_of_both(servers, rt):
    token = stages.make_link(rt.store, datetime.now(UTC))
    together = threading.Barrier(AT_ONCE)

    def opened(number):
        together.wait()
        with httpx.Client(base_url=servers[number % 2].base_url, timeout=PATIENCE) as browser:
            return browser.get("/console/login", params={"link": token}).status_code

    with ThreadPoolExecutor(AT_ONCE) as pool:
        codes = sorted(pool.map(opened, range(AT_ONCE)))

    assert codes == [303, *[401] * (AT_ONCE - 1)]


def test_a_person_goes_on_at_the_other_server(servers, rt):
    first, second = servers
    log_in(first, rt.store)
    for name, value in first.cookies.items():
        second.cookies.set(name, value)
    turn = waiting_turn(rt, "pay")
    (question,) = views.turn(rt.store, turn.turn_id).questions
    page = first.get("/console/inbox").text

    with stream(first, f"/console/runs/{turn.run_id}/live") as messages:
        next(messages)
        assert "run-questions" in next(messages)
        decided = second.post("/console/inbox", data={"csrf": token_in(page), "target": question.id, "verdict": "deny"})
        assert decided.status_code == 303, decided.text
        seen = next(message for message in messages if "run-questions" in message)

    assert f"question-{question.id}" not in seen


def test_a_stream_goes_on_at_the_other_server(servers, rt):
    first, second = servers
    turn_id = first.post("/turns", json={"text": "echo"}).json()["turn_id"]
    finish(rt, turn_id)
    events = everything(first, f"/turns/{turn_id}/events")

    assert len(events) > 3
    for place, event in enumerate(events[:-1], 1):
        assert everything(second, f"/turns/{turn_id}/events", event.id) == events[place:]


def test_a_key_that_is_revoked_is_refused_by_both_within_five_seconds(servers, rt):
    new = stages.create_key(rt.store, KeyTerms(name="n", scopes=frozenset(KeyScope)), CLI, rt.now())
    headers = {"X-Api-Key": new.text}
    assert [server.get("/inbox", headers=headers).status_code for server in servers] == [200, 200]
    stages.revoke_key(rt.store, new.key.id, CLI, rt.now())
    revoked_at, allowed_at = time.monotonic(), [0.0]

    def are_refusing():
        asked_at = time.monotonic()
        codes = {server.get("/inbox", headers=headers).status_code for server in servers}
        allowed_at.extend([asked_at] if 200 in codes else [])
        return codes == {401}

    until(are_refusing, "both refuse it")

    assert max(allowed_at) < revoked_at + BELIEVED, "no request that came later was allowed"
