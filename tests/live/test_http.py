"""The HTTP interface as its clients see it: a real server on a real port, SQLite and Valkey behind it."""

from __future__ import annotations

import json
import socket
import subprocess
import sysconfig
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from statistics import median
from types import SimpleNamespace

import httpx
import pytest
import uvicorn
from fastapi import FastAPI

from chordage.config.settings import Settings, load
from chordage.orchestrator import stages, views
from chordage.orchestrator.core.errors import Unavailable
from chordage.orchestrator.core.message import Bounds
from chordage.orchestrator.core.status import TurnStatus
from chordage.orchestrator.gateways.redis_events import done_channel
from chordage.orchestrator.loops.server import largest_body, make_server
from chordage.orchestrator.runtime import Runtime
from chordage.orchestrator.store.tx import Store
from chordage.tasks.intake import accept
from chordage.workers import local, web
from chordage.workers.bootstrap import redis_from, runtime_from
from chordage.workers.waiting import redis_for_waiting, wait_for_turn
from support import client_room
from support.waiting import until

pytestmark = pytest.mark.redis

PROBLEM = "application/problem+json"


@contextmanager
def served(app: FastAPI, **options: object) -> Iterator[httpx.Client]:
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_config=None, ws="none", **options))
    thread = threading.Thread(target=server.run)
    thread.start()
    until(lambda: server.started or not thread.is_alive(), "the server listens", pause=0.01)
    port = server.servers[0].sockets[0].getsockname()[1]
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=20) as client:
            yield client
    finally:
        server.should_exit = True
        thread.join()


@pytest.fixture
def settings(tmp_path: Path, migrated_database_url: Callable[[str], str], redis_url: str) -> Settings:
    room = client_room.write(tmp_path / "room")
    return load(room=room, database_url=migrated_database_url("sqlite"), redis_url=redis_url, max_text_bytes=4000)


@pytest.fixture
def client(settings: Settings) -> Iterator[httpx.Client]:
    with served(web.wired(settings)) as one:
        yield one


@pytest.fixture
def rt(settings: Settings) -> Iterator[Runtime]:
    """Another process of the fleet, as it were."""
    runtime = runtime_from(settings)
    yield runtime
    runtime.store.close()


def finish(rt: Runtime, turn_id: str) -> None:
    local.complete(rt, turn_id, on_wait=lambda turn: None)


def test_a_message_is_accepted_with_the_place_where_its_turn_can_be_read(client):
    response = client.post("/turns", json={"text": "hello", "thread_id": "t1", "agent": "bob"})

    receipt = response.json()
    assert response.status_code == 202
    assert receipt["thread_id"] == "t1"
    assert receipt["duplicate"] is False
    assert response.headers["Location"] == f"/turns/{receipt['turn_id']}"
    turn = client.get(response.headers["Location"]).json()
    assert (turn["status"], turn["position"], turn["agent"]) == ("queued", 1, "bob")
    assert turn["sender"] == "service"


def test_a_finished_turn_can_be_read_with_its_answer(client, rt):
    turn_id = client.post("/turns", json={"text": "please add"}).json()["turn_id"]
    finish(rt, turn_id)

    turn = client.get(f"/turns/{turn_id}").json()

    assert (turn["status"], turn["disposition"], turn["answer"]) == ("done", "answered", "Sums: 3\n34")
    assert turn["usage"]["input_tokens"] > 0


def test_an_accepted_message_wakes_the_fleet(client, settings):
    client.post("/turns", json={"text": "hello"})

    with redis_from(settings) as redis:
        (message,) = redis.lrange("chat", 0, -1)
    assert json.loads(message)["headers"]["task"] == "turns.dispatch"


def test_the_same_dedupe_key_gives_the_first_turn_again(client):
    first = client.post("/turns", json={"text": "hello", "dedupe_key": "k"}).json()
    again = client.post("/turns", json={"text": "hello again", "dedupe_key": "k"})

    assert again.status_code == 202
    assert again.json() == {**first, "duplicate": True}


def test_waiting_gives_the_finished_turn_as_soon_as_it_is_done(client, rt):
    with ThreadPoolExecutor() as threads:
        response = threads.submit(client.post, "/turns?wait=20", json={"text": "hello", "thread_id": "t1"})
        turn_id = until(lambda: [line.id for line in views.turns(rt.store)], "the turn is there", pause=0.005)[0]
        finish(rt, turn_id)
        done = response.result()

    assert done.status_code == 200
    assert (done.json()["id"], done.json()["answer"]) == (turn_id, "You said: hello")
    assert done.headers["Location"] == f"/turns/{turn_id}"


def test_waiting_in_vain_gives_the_receipt(client):
    response = client.post("/turns?wait=0.2", json={"text": "hello"})

    assert response.status_code == 202
    assert response.json()["duplicate"] is False


def test_who_waits_for_a_turn_that_failed_gets_it_all_the_same(client, rt):
    turn_id = client.post("/turns", json={"text": "fail", "dedupe_key": "k"}).json()["turn_id"]
    finish(rt, turn_id)

    response = client.post("/turns?wait=5", json={"text": "fail", "dedupe_key": "k"})

    assert response.status_code == 200
    assert (response.json()["disposition"], response.json()["code"]) == ("failed", "model_auth")


BROKEN = {
    "blank text": ({"text": " \n"}, 422, "text", "text is blank"),
    "no text": ({}, 422, "text", "Field required"),
    "chat without channel": ({"text": "x", "origin": "chat"}, 422, "channel", "needs a channel"),
    "chat with blank channel": ({"text": "x", "origin": "chat", "channel": " "}, 422, "channel", "needs a channel"),
    "invoke with channel": ({"text": "x", "channel": "api"}, 422, "channel", "takes no channel"),
    "task over HTTP": ({"text": "x", "origin": "task"}, 422, "origin", "'invoke' or 'chat'"),
    "chore over HTTP": ({"text": "x", "origin": "chore"}, 422, "origin", "'invoke' or 'chat'"),
    "will over HTTP": ({"text": "x", "origin": "will"}, 422, "origin", "'invoke' or 'chat'"),
    "sender": ({"text": "x", "sender": "owner"}, 422, "sender", "known from the credential"),
    "unknown field": ({"text": "x", "thread": "t"}, 422, "thread", "Extra inputs"),
    "empty thread id": ({"text": "x", "thread_id": ""}, 422, "thread_id", "1 to 200 characters"),
    "long thread id": ({"text": "x", "thread_id": "t" * 201}, 422, "thread_id", "1 to 200 characters, not 201"),
    "control character": ({"text": "x", "thread_id": "a\nb"}, 422, "thread_id", "visible characters"),
    "NUL in text": ({"text": "a\0b"}, 422, "text", "NUL"),
    "half a surrogate": ({"text": "\ud800"}, 422, "text", "Unicode"),
    "NUL in meta": ({"text": "x", "meta": {"a": ["\0"]}}, 422, "meta", "NUL"),
    "half a surrogate in meta": ({"text": "x", "meta": {"a": "\ud800"}}, 422, "meta", "surrogate"),
    "NUL in channel": ({"text": "x", "origin": "chat", "channel": "a\0"}, 422, "channel", "pattern"),
    "long channel": ({"text": "x", "origin": "chat", "channel": "c" * 201}, 422, "channel", "at most 200"),
    "meta is a list": ({"text": "x", "meta": []}, 422, "meta", "dictionary"),
    "no such way when busy": ({"text": "x", "when_busy": "drop"}, 422, "when_busy", "'enqueue' or 'reject'"),
    "no such group": ({"text": "x", "group": "vip"}, 422, "group", "'chat', 'task'"),
    "no such strategy": ({"text": "x", "strategy": "think"}, 422, "strategy", "direct, react"),
    "control": ({"text": "x", "control": "step"}, 422, "control", "'auto'"),
    "empty dedupe key": ({"text": "x", "dedupe_key": ""}, 422, "dedupe_key", "1 to 200"),
    "deadline without zone": ({"text": "x", "deadline": "2030-01-01T00:00:00"}, 422, "deadline", "timezone"),
    "deadline is over": ({"text": "x", "deadline": "2001-01-01T00:00:00Z"}, 422, "deadline", "past"),
    "outside of time": ({"text": "x", "deadline": "9999-12-31T23:59:59-01:00"}, 422, "deadline", "years 1 to 9999"),
    "starts too late": (
        {"text": "x", "not_before": "2090-01-01T00:00:00Z", "deadline": "2089-01-01T00:00:00Z"},
        422, "not_before", "could never start",
    ),
    "long text": ({"text": "é" * 2001}, 413, "text", "4002 bytes, the limit is 4000"),
    "large meta": ({"text": "x", "meta": {"a": "b" * 65536}}, 413, "meta", "the limit is 65536"),
    "unknown agent": ({"text": "x", "agent": "eve"}, 404, "agent", "there are: ada, bob"),
}  # fmt: skip


@pytest.mark.parametrize(("fields", "status", "field", "detail"), BROKEN.values(), ids=BROKEN)
def test_a_broken_rule_is_a_problem_document_that_names_the_field(client, rt, fields, status, field, detail):
    response = client.post("/turns", content=json.dumps(fields), headers={"Content-Type": "application/json"})

    problem = response.json()
    assert (response.status_code, response.headers["Content-Type"]) == (status, PROBLEM)
    assert (problem["status"], problem["field"]) == (status, field)
    assert detail in problem["detail"]
    assert problem["type"].startswith("urn:chordage:problem:")
    assert views.turns(rt.store) == [], "nothing is stored"


def test_what_json_does_not_have_is_refused(client):
    response = client.post(
        "/turns", content='{"text": "x", "meta": {"a": NaN}}', headers={"Content-Type": "application/json"}
    )

    assert (response.status_code, response.json()["field"]) == (422, "meta")


def test_a_backslash_before_digits_is_no_nul(client):
    assert client.post("/turns", json={"text": "x", "reply_target": {"path": "\\u0000"}}).status_code == 202


@pytest.mark.parametrize("content", ["{", "", "[1, 2", '{"text": "x"', "\xff", "[" * 5000])
def test_a_body_that_is_no_json_is_a_problem_document(client, content):
    response = client.post("/turns", content=content, headers={"Content-Type": "application/json"})

    assert response.status_code == (422 if content == "" else 400)
    assert response.headers["Content-Type"] == PROBLEM


@pytest.mark.parametrize("wait", ["-1", "61", "nan", "soon"])
def test_a_wait_out_of_bounds_is_refused_before_anything_is_stored(client, rt, wait):
    response = client.post(f"/turns?wait={wait}", json={"text": "x"})

    assert (response.status_code, response.json()["field"]) == (422, "wait")
    assert views.turns(rt.store) == []


def test_a_busy_thread_can_be_a_conflict(client, rt):
    turn_id = client.post("/turns", json={"text": "x", "thread_id": "t"}).json()["turn_id"]
    local.begin(rt, views.turn(rt.store, turn_id))

    response = client.post("/turns", json={"text": "y", "thread_id": "t", "when_busy": "reject"})

    assert response.status_code == 409
    assert "thread 't' is busy with run" in response.json()["detail"]


@pytest.mark.parametrize("path", ["/turns/nope", "/turns/%00", "/turns/a%2Fb", "/turns/" + "x" * 300, "/nowhere"])
def test_what_is_not_there_is_a_404_document(client, path):
    response = client.get(path)

    assert (response.status_code, response.headers["Content-Type"]) == (404, PROBLEM)


def test_a_wrong_method_is_a_405_document_that_names_the_right_one(client):
    response = client.put("/turns", json={})

    assert (response.status_code, response.headers["Content-Type"]) == (405, PROBLEM)
    assert response.headers["Allow"] == "POST"


def test_too_large_a_body_is_refused_by_its_announced_length(client, settings):
    """The body is never sent: whoever announces it is answered at once."""
    limit = largest_body(Bounds(text_bytes=4000, meta_bytes=settings.max_meta_bytes))
    with socket.create_connection((client.base_url.host, client.base_url.port), timeout=10) as connection:
        head = (
            f"POST /turns HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {limit + 1}\r\n\r\n"
        )
        connection.sendall(head.encode())
        answer = connection.recv(65536).decode()

    assert answer.startswith("HTTP/1.1 413 ")
    assert PROBLEM in answer


def test_too_large_a_body_of_unknown_length_is_refused_while_it_comes(client):
    def endless() -> Iterator[bytes]:
        yield b'{"text": "'
        for _ in range(200):
            yield b"x" * 65536

    response = client.post("/turns", content=endless(), headers={"Content-Type": "application/json"})

    assert (response.status_code, response.headers["Content-Type"]) == (413, PROBLEM)


def test_a_text_at_its_limit_is_accepted_however_it_is_escaped(client):
    body = '{"text": "' + "\\u0041" * 4000 + '"}'

    response = client.post("/turns", content=body, headers={"Content-Type": "application/json"})

    assert response.status_code == 202


def test_health_is_good_while_both_services_answer(client):
    response = client.get("/health")

    assert (response.status_code, response.json()) == (
        200,
        {"status": "ok", "services": {"database": "ok", "redis": "ok"}},
    )


@pytest.fixture
def broken_redis(settings: Settings, start_valkey: Callable[..., object]) -> Iterator[tuple[httpx.Client, object]]:
    server = start_valkey()
    with served(web.wired(settings.model_copy(update={"redis_url": _secret(server.url)}))) as client:
        yield client, server


def _secret(url: str) -> object:
    from pydantic import SecretStr

    return SecretStr(url)


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
    assert took < 4


def test_a_message_is_accepted_while_redis_is_gone(broken_redis, rt):
    client, server = broken_redis
    server.kill()

    response = client.post("/turns?wait=0.3", json={"text": "hello"})

    assert response.status_code == 202
    assert [line.text for line in views.turns(rt.store)] == ["hello"], "rescue will wake the fleet"


def server_with(**doors: object) -> FastAPI:
    def unexpected(*args: object) -> object:
        raise AssertionError(args)

    given = {"accept": unexpected, "turn": unexpected, "wait": unexpected, "checks": {"database": lambda: None}}
    return make_server(**{**given, "bounds": Bounds(), "version": "0", **doors})


def raising(error: Exception) -> Callable[..., object]:
    def door(*args: object) -> object:
        raise error

    return door


def test_a_database_that_is_away_is_a_503_that_does_not_say_where_it_is():
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


def test_those_who_wait_never_keep_a_message_from_coming_in():
    """Four may wait; the others are sent home at once, although the four are still there."""
    admitted, enough = stages.Admitted(turn_id="1", thread_id="t"), threading.Event()
    app = server_with(
        accept=lambda request: admitted, wait=lambda turn_id, seconds: enough.wait(20) and done, waiters=4
    )
    done = SimpleNamespace(status=TurnStatus.QUEUED)
    with served(app) as client, ThreadPoolExecutor(10) as threads:
        post = partial(httpx.post, f"{client.base_url}/turns?wait=1", timeout=20)
        waiting = [threads.submit(post, json={"text": "x"}) for _ in range(10)]
        until(lambda: sum(waiter.done() for waiter in waiting) == 6, "those beyond the four are sent home")
        assert client.post("/turns", json={"text": "y"}).status_code == 202
        enough.set()
        assert {waiter.result().status_code for waiter in waiting} == {202}


def test_a_server_that_stops_lets_those_go_who_wait(settings, rt):
    with ThreadPoolExecutor() as threads:
        with served(web.wired(settings), timeout_graceful_shutdown=1) as client:
            waiter = threads.submit(httpx.post, f"{client.base_url}/turns?wait=60", json={"text": "x"}, timeout=90)
            until(lambda: views.turns(rt.store), "the message is in")
            began = time.monotonic()
        stopped = time.monotonic() - began
        waiter.exception()

    assert stopped < 10
    until(lambda: not _waits_go_on(), "no thread is left behind", patience=10)


def _waits_go_on() -> list[str]:
    return [one.name for one in threading.enumerate() if "AnyIO worker" in one.name]


def test_word_that_a_turn_is_done_arrives_within_milliseconds(settings, rt):
    """From the publish to the return of the wait, measured ten times: far below the second of the backstop."""
    redis, waiting = redis_from(settings), redis_for_waiting(settings)
    times = []
    for number in range(10):
        turn_id = _submitted(rt, f"hello {number}")
        with ThreadPoolExecutor() as threads:
            waiter = threads.submit(_timed_wait, waiting, rt, turn_id)
            channel = done_channel(settings.prefix, turn_id)
            until(lambda channel=channel: redis.pubsub_numsub(channel)[0][1], "it listens", pause=0.001)
            quiet = runtime_from(settings, with_redis=False)
            finish(quiet, turn_id)
            quiet.store.close()
            published = time.perf_counter()
            redis.publish(channel, "1")
            times.append(waiter.result() - published)
    redis.close()
    waiting.close()

    assert median(times) < 0.1


def _submitted(rt: Runtime, text: str) -> str:
    from chordage.tasks.request import request_from

    return stages.admit(rt, request_from({"text": text}, source="test"))[0].turn_id


def _timed_wait(redis: object, rt: Runtime, turn_id: str) -> float:
    turn = wait_for_turn(redis, rt, turn_id, 20)
    assert turn.answer
    return time.perf_counter()


def test_a_wait_survives_the_loss_of_redis(settings, rt, start_valkey):
    server = start_valkey()
    redis = redis_for_waiting(settings.model_copy(update={"redis_url": _secret(server.url)}))
    turn_id = _submitted(rt, "hello")
    with ThreadPoolExecutor() as threads:
        waiter = threads.submit(wait_for_turn, redis, rt, turn_id, 20)
        until(lambda: server_has_listeners(server, settings, turn_id), "it listens")
        server.kill()
        finish(rt, turn_id)
        began = time.monotonic()
        turn = waiter.result()
    redis.close()

    assert turn.answer == "You said: hello"
    assert time.monotonic() - began < 3


def server_has_listeners(server: object, settings: Settings, turn_id: str) -> int:
    import redis

    with redis.Redis.from_url(server.url) as client:
        return client.pubsub_numsub(done_channel(settings.prefix, turn_id))[0][1]


@pytest.mark.parametrize("redis", ["none", "dead"])
def test_without_redis_a_wait_asks_the_database(settings, rt, redis):
    dead = settings.model_copy(update={"redis_url": _secret("redis://127.0.0.1:1/0")})
    client = None if redis == "none" else redis_for_waiting(dead)
    turn_id = _submitted(rt, "hello")
    with ThreadPoolExecutor() as threads:
        waiter = threads.submit(wait_for_turn, client, rt, turn_id, 20)
        finish(rt, turn_id)

        assert waiter.result().answer == "You said: hello"


def test_a_wait_is_over_when_its_time_is_over(settings, rt):
    turn_id = _submitted(rt, "hello")

    assert wait_for_turn(None, rt, turn_id, 0.05).status == "queued"


def test_a_turn_that_is_done_is_not_waited_for(settings, rt):
    turn_id = _submitted(rt, "hello")
    finish(rt, turn_id)
    redis = redis_for_waiting(settings)

    assert wait_for_turn(redis, rt, turn_id, 0).answer == "You said: hello"
    redis.close()


def test_a_server_that_lacks_a_service_says_so_and_ends(monkeypatch, tmp_path):
    client_room.write(tmp_path / "room")
    monkeypatch.setenv("CHORDAGE_ROOM", str(tmp_path / "room"))
    monkeypatch.setenv("CHORDAGE_REDIS_URL", "redis://127.0.0.1:1/0")

    with pytest.raises(SystemExit, match="chordage: the database is empty: run `chordage migrate`"):
        web.make_app()


def test_health_says_when_the_database_has_another_schema(settings, tmp_path):
    other = settings.model_copy(update={"database_url": _secret(f"sqlite:///{tmp_path}/new.db")})
    with served(web.wired(other)) as client:
        response = client.get("/health")

    assert response.status_code == 503
    assert "run `chordage migrate`" in response.json()["services"]["database"]


def test_the_api_says_of_itself_where_the_sender_comes_from(client):
    schema = client.get("/openapi.json").json()

    assert "the sender of every message that comes in here is `service`" in schema["info"]["description"]
    assert "sender" not in schema["components"]["schemas"]["TurnFields"]["properties"]
    answers = schema["paths"]["/turns"]["post"]["responses"]
    assert set(answers) == {"200", "202", "400", "404", "409", "413", "422", "500", "503"}
    assert PROBLEM in answers["422"]["content"]


class Nobody:
    """A courier that wakes nobody."""

    def send(self, intents: object) -> None: ...


@pytest.mark.slow
def test_the_api_keeps_what_its_schema_promises(settings, database_url, tmp_path):
    """Schemathesis with a fixed seed. A turn that is waited for is carried out on the spot, so that 200 is seen too.

    Left out: that everything the schema allows is accepted. Rules between fields are no part of the schema.
    """
    settings = settings.model_copy(update={"database_url": _secret(database_url)})
    rt = runtime_from(settings, with_redis=False)

    def wait(turn_id: str, seconds: float) -> views.TurnView:
        local.carry_out(rt, local.begin(rt, views.turn(rt.store, turn_id)))
        turn = views.turn(rt.store, turn_id)
        if turn.status is not TurnStatus.DONE:
            raise Unavailable("it is not due yet")
        return turn

    take = partial(accept, rt, Nobody())
    app = server_with(accept=take, turn=partial(views.turn, rt.store), wait=wait, bounds=rt.bounds)
    with served(app) as client:
        program = Path(sysconfig.get_path("scripts"), "schemathesis")
        options = ["--seed", "1", "--max-examples", "25", "--exclude-checks", "positive_data_acceptance", "--no-color"]
        command = [program, "run", f"{client.base_url}/openapi.json", *options]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    rt.store.close()

    assert done.returncode == 0, done.stdout + done.stderr
    assert views_seen(settings) > 10, "it has come past the door"


def views_seen(settings: Settings) -> int:
    store = Store(settings.database)
    seen = len(views.turns(store, limit=1000))
    store.close()
    return seen
