"""What clients see while a service is away, while too many wait, and while the server stops."""

from __future__ import annotations

import contextlib
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from types import SimpleNamespace

import httpx
import pytest
from sqlalchemy.engine import make_url

from chordage.config.settings import QueueBounds, QueueBoundSetting, Settings
from chordage.orchestrator import stages, views
from chordage.orchestrator.core.audit import CLI
from chordage.orchestrator.core.callers import KeyScope
from chordage.orchestrator.core.errors import Unavailable
from chordage.orchestrator.core.keys import KeyTerms
from chordage.orchestrator.core.status import TurnStatus
from chordage.orchestrator.store import database
from chordage.workers import web
from support import client_room
from support.waiting import PATIENCE, until
from support.web_server import PROBLEM, raising, served, server_with, with_database, with_redis

pytestmark = pytest.mark.redis


def test_health_is_good_while_both_services_answer(client):
    response = client.get("/health")

    assert (response.status_code, response.json()) == (
        200,
        {"status": "ok", "services": {"database": "ok", "redis": "ok"}, "faults": []},
    )


def test_broken_agent_is_reported_by_health_and_to_its_callers_while_others_are_served(settings):
    (settings.room_path / "agents").mkdir(exist_ok=True)
    (settings.room_path / "agents" / "beta.toml").write_text('name = "beta"\nmodel = 3\n')
    told = "agents/beta.toml:2: model: must be a text that is not blank; got 3"
    with served(web.wired(settings)) as client:
        refused = client.post("/turns", json={"text": "hi", "agent": "beta"})
        assert (refused.status_code, refused.headers["Retry-After"]) == (503, "5")
        assert refused.json()["detail"].startswith(told)
        assert client.post("/turns", json={"text": "hi"}).status_code == 202
        assert client.get("/health").json()["faults"] == [told]


def test_where_a_broken_file_is_can_be_read_by_those_who_operate_the_fleet(settings, rt):
    """Others read which agent it is: without a key, with one that may only read or is a tenant's, or a wrong one."""
    (settings.room_path / "agents").mkdir(exist_ok=True)
    (settings.room_path / "agents" / "beta.toml").write_text('name = "beta"\nmodel = 3\n')
    keys = {}
    for name in ("reader", "tenant", "operator"):
        scopes = frozenset(KeyScope) if name != "reader" else frozenset({KeyScope.READ, KeyScope.SUBMIT})
        terms = KeyTerms(name=name, scopes=scopes, tenant="acme" if name == "tenant" else None)
        keys[name] = stages.create_key(rt.store, terms, CLI, rt.now()).text
    (settings.room_path / "hooks.toml").write_text('[hooks.h]\npath = "/h"\nsecret_env = "GITHUB_SECRET"\n')
    (settings.room_path / "channels.toml").write_text('[channels.c]\nplugin = "telegram"\ntoken_env = "GITHUB_TOKEN"\n')
    (settings.room_path / "chores").mkdir()
    (settings.room_path / "chores" / "water.md").write_text("---\nevery: never\n---\nWater.\n")

    def of_room(client, path, key):
        return client.get(path, headers=key).json()

    few = "agent 'beta' is broken: it cannot be used until its files are repaired"
    with served(web.wired(settings)) as client:
        for name in ("reader", "tenant", "operator", None, "nobody"):
            key = {"X-Api-Key": keys.get(name, "ck_wrong")} if name else {"X-Forwarded-For": "192.0.2.1"}
            health = client.get("/health", headers=key).json()["faults"]
            told = [health[0]]
            if name in {"reader", "operator"}:
                told += [
                    line["fault"] for path in ("/hooks", "/channels") for line in of_room(client, path, key)["data"]
                ]
                told += of_room(client, "/pulse", key)["faults"]
                assert len(told) == 4
            if name in keys:
                told.append(client.post("/turns", json={"text": "x", "agent": "beta"}, headers=key).json()["detail"])
                told.append(client.post("/turns", json={"text": "x", "agent": "no"}, headers=key).json()["detail"])
                told.append(client.get("/agents/beta", headers=key).json()["fault"])
                told += [line["fault"] for line in client.get("/agents", headers=key).json()["data"] if line["fault"]]
            places = [one for one in told if any(word in one for word in ("beta.toml", "GITHUB", "water.md"))]
            assert bool(places) == (name == "operator"), (name, told)
            assert name == "operator" or health == [few]


def test_an_agent_is_served_with_its_last_good_version_also_by_a_server_that_starts_later(settings):
    file = settings.room_path / "agent.toml"
    with served(web.wired(settings)):
        pass
    file.write_text("half a fi")
    with served(web.wired(settings)) as client:
        assert client.post("/turns", json={"text": "hi"}).status_code == 202
        assert len(client.get("/health").json()["faults"]) == 1


@pytest.fixture
def broken_redis(settings: Settings, start_valkey: Callable[..., object]) -> Iterator[tuple[httpx.Client, object]]:
    server = start_valkey()
    with served(web.wired(with_redis(settings, server.url))) as client:
        yield client, server


def test_health_names_redis_when_it_is_gone_and_recovers_with_it(broken_redis):
    client, server = broken_redis
    server.kill()

    response = client.get("/health")

    assert (response.status_code, response.headers["Retry-After"]) == (503, "5")
    assert response.json()["detail"].startswith("redis does not answer")
    assert response.json()["services"]["database"] == "ok"
    server.start()
    until(lambda: client.get("/health").status_code == 200, "healthy again")


def test_health_answers_in_bounded_time_while_redis_is_frozen(broken_redis):
    client, server = broken_redis
    with server.frozen():
        began = time.monotonic()
        response = client.get("/health")
        took = time.monotonic() - began

    assert response.status_code == 503
    assert took < 30, "it does not wait until Redis answers, or the client gives up"


def test_a_message_is_accepted_while_redis_is_gone(broken_redis, rt):
    client, server = broken_redis
    server.kill()

    response = client.post("/turns?wait=0.3", json={"text": "hello"})

    assert response.status_code == 202
    assert [line.text for line in views.turns(rt.store)] == ["hello"], "rescue will wake the fleet"


def test_unreachable_database_is_a_503_without_its_address():
    away = raising(Unavailable("the database at postgresql://user@secret.host/db does not answer"))
    with served(server_with(accept=away, turn=away)) as client:
        responses = [client.post("/turns", json={"text": "x"}), client.get("/turns/x")]

    for response in responses:
        assert (response.status_code, response.headers["Retry-After"]) == (503, "5")
        assert response.headers["Content-Type"] == PROBLEM
        assert "secret" not in response.text


def test_a_bug_of_ours_is_a_500_without_internals():
    with served(server_with(turn=raising(RuntimeError("SELECT secret")))) as client:
        response = client.get("/turns/x")

    assert (response.status_code, response.headers["Content-Type"]) == (500, PROBLEM)
    assert "secret" not in response.text


def test_an_accepted_message_stays_accepted_when_waiting_for_it_fails(settings, rt):
    admitted = stages.Admitted(turn_id="1", thread_id="t")
    app = server_with(accept=lambda request: admitted, wait=raising(Unavailable("gone")))
    with served(app) as client:
        response = client.post("/turns?wait=5", json={"text": "x"})

    assert (response.status_code, response.json()["turn_id"]) == (202, "1")


def test_waiting_clients_never_keep_a_message_from_coming_in():
    """Four may wait; the others are sent home at once, although the four are still there."""
    admitted, enough = stages.Admitted(turn_id="1", thread_id="t"), threading.Event()
    app = server_with(
        accept=lambda request: admitted,
        wait=lambda turn_id, seconds, gave_up: enough.wait(PATIENCE) and done,
        waiters=4,
    )
    done = SimpleNamespace(status=TurnStatus.QUEUED)
    with served(app) as client, ThreadPoolExecutor(10) as threads:
        post = partial(httpx.post, f"{client.base_url}/turns?wait=1", timeout=PATIENCE)
        waiting = [threads.submit(post, json={"text": "x"}) for _ in range(10)]
        until(lambda: sum(waiter.done() for waiter in waiting) == 6, "those beyond the four are sent home")
        assert client.post("/turns", json={"text": "y"}).status_code == 202
        enough.set()
        assert {waiter.result().status_code for waiter in waiting} == {202}


def test_stopping_server_releases_waiting_clients(settings, rt):
    with ThreadPoolExecutor() as threads:
        with served(web.wired(settings), timeout_graceful_shutdown=1) as client:
            waiter = threads.submit(
                httpx.post, f"{client.base_url}/turns?wait=60", json={"text": "x"}, timeout=PATIENCE
            )
            until(lambda: views.turns(rt.store), "the message is in")
            began = time.monotonic()
        stopped = time.monotonic() - began
        waiter.exception()

    assert stopped < 40, "it does not wait for the minute of its client"
    until(lambda: not _waits_go_on(), "no thread is left behind")


def _waits_go_on() -> list[str]:
    return [one.name for one in threading.enumerate() if "AnyIO worker" in one.name]


def test_server_that_lacks_a_service_reports_it_and_ends(monkeypatch, tmp_path):
    client_room.write(tmp_path / "room")
    monkeypatch.setenv("CHORDAGE_ROOM", str(tmp_path / "room"))
    monkeypatch.setenv("CHORDAGE_REDIS_URL", "redis://127.0.0.1:1/0")

    with pytest.raises(SystemExit, match="chordage: the database is empty: run `chordage migrate`"):
        web.make_app()


def test_health_reports_another_schema_of_the_database(settings, tmp_path):
    other = with_database(settings, f"sqlite:///{tmp_path}/new.db")
    with served(web.wired(other)) as client:
        response = client.get("/health")

    assert response.status_code == 503
    assert "run `chordage migrate`" in response.json()["services"]["database"]


def test_full_queue_is_a_429_with_the_time_to_try_again(settings):
    bounds = QueueBounds(chat=QueueBoundSetting(max_queued=1))
    with served(web.wired(settings.model_copy(update={"bounds": bounds}))) as client:
        first, second = (client.post("/turns", json={"text": text}) for text in "ab")

    assert (first.status_code, second.status_code) == (202, 429)
    assert second.headers["Retry-After"] == "5"
    assert second.json()["type"] == "urn:chordage:problem:queue_full"
    assert "queue of group chat is full" in second.json()["detail"]


def test_a_locked_database_is_503_with_retry_after_and_nothing_is_stored(settings, rt, monkeypatch):
    monkeypatch.setattr(database, "BUSY_MS", 50)
    with (
        served(web.wired(settings)) as client,
        contextlib.closing(sqlite3.connect(make_url(settings.database).database, isolation_level=None)) as holder,
    ):
        holder.execute("BEGIN EXCLUSIVE")
        refused = client.post("/turns", json={"text": "hi", "dedupe_key": "k"})
        holder.execute("ROLLBACK")
        taken = client.post("/turns", json={"text": "hi", "dedupe_key": "k"})

    assert (refused.status_code, refused.headers["Retry-After"]) == (503, "5")
    assert refused.headers["Content-Type"] == PROBLEM
    assert (taken.status_code, len(views.turns(rt.store))) == (202, 1)
