"""How many requests a key and its tenant may send: over all processes, and while Redis is away."""

from __future__ import annotations

import socket
from contextlib import ExitStack, closing

import pytest

from chordage.orchestrator import stages
from chordage.orchestrator.core.audit import CLI
from chordage.orchestrator.core.callers import KeyScope
from chordage.orchestrator.core.keys import KeyTerms
from chordage.orchestrator.core.rates import Rate
from chordage.orchestrator.gateways.rate_limits import Limited, RedisBuckets
from chordage.workers import web
from chordage.workers.bootstrap import quick_redis_from
from support.web_server import PROBLEM, finish, served, with_redis

pytestmark = pytest.mark.redis

FEW = {"key_rate": 0.01, "key_burst": 3}


@pytest.fixture
def key(rt):
    def make(**terms):
        new = stages.create_key(rt.store, KeyTerms(name="n", scopes=frozenset(KeyScope), **terms), CLI, rt.now())
        return {"X-Api-Key": new.text}

    return make


def statuses(client, headers, times):
    return [client.get("/inbox", headers=headers).status_code for _ in range(times)]


def test_processes_count_the_requests_of_a_key_together(settings, key):
    limited = settings.model_copy(update=FEW)
    headers = key()
    with ExitStack() as stack:
        first, second = (stack.enter_context(served(web.wired(limited))) for _ in range(2))
        allowed = first.get("/inbox", headers=headers)
        rest = [*statuses(second, headers, 2), *statuses(first, headers, 1)]
        refused = second.get("/inbox", headers=headers)

        assert statuses(second, key(), 1) == [200], "another key has a rate of its own"
        assert statuses(first, {}, 9) == [200] * 9, "this machine has no rate"

    assert (allowed.status_code, rest) == (200, [200, 200, 429])
    assert allowed.headers["RateLimit-Policy"] == '"key";q=3;w=300'
    assert allowed.headers["RateLimit"].startswith('"key";r=2;t=')
    assert refused.headers["Content-Type"] == PROBLEM
    assert refused.json()["type"] == "urn:chordage:problem:too_many_requests"
    assert 1 <= int(refused.headers["Retry-After"]) <= 100
    assert refused.headers["RateLimit"].startswith('"key";r=0;t=')
    assert "RateLimit-Policy" in refused.headers


def test_every_answer_to_a_key_has_its_rate(client, key, rt):
    client.headers.update(key())
    turn_id = client.post("/turns", json={"text": "x"}).json()["turn_id"]
    finish(rt, turn_id)
    reader = stages.create_key(rt.store, KeyTerms(name="r", scopes=frozenset({KeyScope.READ})), CLI, rt.now())
    answers = {
        "stream": client.get(f"/turns/{turn_id}/events"),
        "unchanged": client.get(f"/turns/{turn_id}", headers={"If-None-Match": "*"}),
        "no scope": client.post("/turns", json={"text": "x"}, headers={"X-Api-Key": reader.text}),
        "not there": client.get("/turns/nope"),
        "of a face": client.get("/v1/models/nope"),
        "wrong": client.post("/turns", json={}),
    }

    assert {name: answer.status_code for name, answer in answers.items()} == {
        "stream": 200, "unchanged": 304, "no scope": 403, "not there": 404, "of a face": 404, "wrong": 422,
    }  # fmt: skip
    assert [name for name, answer in answers.items() if "RateLimit" not in answer.headers] == []


def test_keys_of_a_tenant_share_a_rate(settings, key):
    limited = settings.model_copy(update={"tenant_rate": 0.01, "tenant_burst": 2})
    acme = [key(tenant="acme") for _ in range(3)]
    with served(web.wired(limited)) as client:
        codes = [statuses(client, headers, 1)[0] for headers in acme]
        other = statuses(client, key(tenant="umbrella"), 1)

    assert codes == [200, 200, 429]
    assert other == [200]


def test_a_refused_request_is_not_carried_out(settings, key, rt):
    from chordage.orchestrator import views

    headers = key()
    with served(web.wired(settings.model_copy(update=FEW))) as client:
        codes = [client.post("/turns", json={"text": "x"}, headers=headers).status_code for _ in range(5)]

    assert codes == [202] * 3 + [429] * 2
    assert len(views.turns(rt.store)) == 3


def test_without_redis_each_process_counts_for_itself(settings, key):
    with closing(socket.socket()) as free:
        free.bind(("127.0.0.1", 0))
        away = with_redis(settings, f"redis://127.0.0.1:{free.getsockname()[1]}/0").model_copy(update=FEW)
        headers = key()
        with served(web.wired(away)) as client:
            assert statuses(client, headers, 5) == [200, 200, 200, 429, 429]


def test_rate_0_is_no_limit(settings, key):
    with served(web.wired(settings.model_copy(update={"key_rate": 0.0, "key_burst": 1}))) as client:
        response = client.get("/inbox", headers=key())
        assert statuses(client, key(), 5) == [200] * 5

    assert "RateLimit" not in response.headers


def test_a_bucket_in_redis_fills_at_its_rate_and_expires(settings):
    redis = quick_redis_from(settings)
    buckets = RedisBuckets(redis, prefix="t:")
    wanted = [Limited(policy="key", of="k", rate=Rate(per_second=0.002, burst=4))]  # one token in 500 seconds

    taken = [buckets.take(wanted)[0] for _ in range(5)]
    seconds, microseconds = redis.time()
    redis.hset("t:rate:key:k", "at", seconds + microseconds / 1e6 - 1000)
    then = [buckets.take(wanted)[0].taken for _ in range(4)]
    left = redis.pttl("t:rate:key:k")
    redis.close()

    assert [one.taken for one in taken] == [True] * 4 + [False]
    assert 300 < taken[-1].wait <= 500
    assert then == [True, True, False, False]
    assert 0 < left <= 2_001_000


def post(client, headers, size):
    return client.post("/turns", json={"text": "x" * size}, headers=headers)


def test_the_bytes_of_bodies_have_a_rate_for_each_key(settings, key):
    headers = key()
    few = settings.model_copy(update={"key_bytes_rate": 10.0, "key_bytes_burst": 5000})
    with served(web.wired(few)) as client:
        allowed, refused = post(client, headers, 4000), post(client, headers, 4000)
        read, other = client.get("/inbox", headers=headers), post(client, key(), 4000)

    assert (allowed.status_code, refused.status_code, read.status_code, other.status_code) == (202, 429, 200, 202)
    assert '"key-bytes";q=5000;w=500;qu="content-bytes"' in allowed.headers["RateLimit-Policy"]
    assert 200 <= int(refused.headers["Retry-After"]) <= 303, "until as many are there, and not until all are"
    assert "5000 at once" in refused.json()["detail"]
    assert "10 bytes a second" in refused.json()["detail"]


def test_the_bytes_of_a_tenant_are_counted_together(settings, key):
    acme = [key(tenant="acme") for _ in range(2)]
    few = settings.model_copy(update={"tenant_bytes_rate": 10.0, "tenant_bytes_burst": 5000})
    with served(web.wired(few)) as client:
        assert [post(client, headers, 4000).status_code for headers in acme] == [202, 429]
        assert post(client, key(tenant="umbrella"), 4000).status_code == 202


def test_a_body_larger_than_the_bucket_takes_all_of_it(settings, key):
    headers = key()
    few = settings.model_copy(update={"key_bytes_rate": 0.1, "key_bytes_burst": 100})
    with served(web.wired(few)) as client:
        assert [post(client, headers, 4000).status_code for _ in range(2)] == [202, 429]


def test_a_body_that_does_not_announce_its_size_is_counted_as_it_came(settings, key):
    headers = {**key(), "Content-Type": "application/json"}
    few = settings.model_copy(update={"key_bytes_rate": 10.0, "key_bytes_burst": 5000})

    def chunks():
        yield b'{"text": "' + b"x" * 4000
        yield b'"}'

    with served(web.wired(few)) as client:
        codes = [client.post("/turns", content=chunks(), headers=headers).status_code for _ in range(2)]
    assert codes == [202, 429]
