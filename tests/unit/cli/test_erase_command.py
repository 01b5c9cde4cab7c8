"""`chordage erase`, as people and programs see it."""

from __future__ import annotations

import json

import pytest
from redis import Redis
from sqlalchemy import select

from chordage.config.settings import load
from chordage.orchestrator import stages
from chordage.orchestrator.store import schema, schema_version
from chordage.tasks.schema import request_from
from chordage.workers import local
from chordage.workers.bootstrap import runtime_from

THREAD = "mail:ann@example.org"


@pytest.fixture
def rt(room):
    runtime = runtime_from(load(room=room), with_redis=False)
    schema_version.upgrade(runtime.store)
    yield runtime
    runtime.store.close()


@pytest.fixture
def turn(rt):
    request = request_from({"text": "hello", "thread_id": THREAD}, source="test", space=None)
    turn_id = stages.admit(rt, request)[0].turn_id
    local.complete(rt, turn_id, on_wait=lambda turn: None)
    return turn_id


def turns(rt):
    with rt.store.read() as tx:
        return tx.execute(select(schema.turns.c.id)).scalars().all()


def test_nothing_goes_before_a_person_has_agreed(chordage, rt, turn):
    counted = json.loads(chordage("erase", "thread", THREAD, "--dry-run", "--json").stdout)
    refused = chordage("erase", "thread", THREAD, stdin="n\n")

    assert (counted["deleted"], counted["database"]["turns"], counted["threads"]) == (False, 1, [THREAD])
    assert refused.exit_code == 1
    assert "Delete 1 threads with 1 turns for ever?" in refused.stderr
    assert turns(rt) == [turn]


def test_report_says_what_went_from_where_and_what_was_not_reached(chordage, rt, turn, room):
    logs = room / ".chordage/logs"
    logs.mkdir(parents=True)
    kept, blanked = b"another line\n", f"turn ended thread={THREAD}\n".encode()
    (logs / "worker.log").write_bytes(kept + blanked + kept)

    result = chordage("erase", "thread", THREAD, "--yes")

    assert result.exit_code == 0, result.stderr
    assert "1 threads with 1 turns were erased" in result.stdout
    assert "logs\tworker.log\t1" in result.stdout
    assert "Not reached: backups" in result.stderr
    assert turns(rt) == []
    assert (logs / "worker.log").read_bytes() == kept + b"#" * (len(blanked) - 1) + b"\n" + kept


def test_lines_of_logs_with_longer_names_stay(chordage, rt, turn, room):
    logs = room / ".chordage/logs"
    logs.mkdir(parents=True)
    kept, blanked = f"thread=x{THREAD}\n".encode(), json.dumps({"event": f"\n{THREAD}"}).encode()
    (logs / "worker.log").write_bytes(kept + blanked)

    assert chordage("erase", "thread", THREAD, "--yes").exit_code == 0
    assert (logs / "worker.log").read_bytes() == kept + b"#" * len(blanked)


@pytest.mark.redis
def test_redis_is_cleared_as_well(chordage, rt, turn, redis_url, monkeypatch):
    monkeypatch.setattr("chordage.workers.cli.erase.BUS_SECONDS", 0.0)  # no fleet moves the bus
    client = Redis.from_url(redis_url)
    client.xadd("chordage:bus", {"kind": "turn.queued", "thread": THREAD, "turn": turn})
    client.xadd("chordage:bus", {"kind": "turn.queued", "thread": "other", "turn": "other"})

    report = json.loads(chordage("erase", "thread", THREAD, "--yes", "--json", redis_url=redis_url).stdout)

    assert report["redis"] == {"entries": 1}
    assert [fields[b"thread"] for _, fields in client.xrange("chordage:bus")] == [b"other"]


@pytest.mark.parametrize(
    ("words", "code", "error"),
    [
        (("thread", "nothing"), 1, "there is no thread 'nothing'; `chordage threads` lists them"),
        (("sender", "nobody"), 1, "no turn was sent by 'nobody'"),
        (("sender", " "), 2, "a sender has a name"),
    ],
)
def test_what_is_not_there_is_an_error(chordage, rt, turn, words, code, error):
    result = chordage("erase", *words, "--yes")

    assert result.exit_code == code
    assert error in result.stderr
    assert turns(rt) == [turn]
