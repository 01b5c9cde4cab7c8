"""`chordage bus` and `chordage deliveries`, as people and programs see them."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import insert, update

from chordage.config.settings import load
from chordage.orchestrator import stages
from chordage.orchestrator.store import schema, schema_version
from chordage.tasks.schema import request_from
from chordage.workers import local
from chordage.workers.bootstrap import runtime_from

TARGET = {"url": "https://example.com/replies?token=secret"}


@pytest.fixture
def rt(room):
    runtime = runtime_from(load(room=room), with_redis=False)
    schema_version.upgrade(runtime.store)
    yield runtime
    runtime.store.close()


@pytest.fixture
def reply(rt):
    """Of a turn that is done, and has one that is to leave."""
    request = request_from({"text": "hello", "reply_target": TARGET}, source="test", space=None)
    turn_id = stages.admit(rt, request)[0].turn_id
    local.complete(rt, turn_id, on_wait=lambda turn: None)
    return turn_id


def give_up(rt, why="the receiver said 500"):
    values = {"status": "dead", "dead_at": datetime.now(UTC), "attempts": 12, "error": why}
    with rt.store.write() as tx:
        tx.execute(update(schema.outbox).values(**values))


def test_empty_list_of_deliveries_is_printed_for_programs(chordage, rt):
    assert chordage("deliveries").stdout == ""
    assert json.loads(chordage("deliveries", "--json").stdout) == []


def test_reply_is_listed_with_where_it_goes_and_without_what_is_secret_there(chordage, rt, reply):
    (line,) = chordage("deliveries").stdout.splitlines()
    cells = line.split("\t")

    assert cells[1] == "pending"
    assert "example.com" in cells[2]
    assert "secret" not in line
    assert cells[3:5] == [reply, "0"]


def test_dead_letters_and_pending_ones_are_shown_apart(chordage, rt, reply):
    assert (chordage("deliveries", "--dead").stdout, len(chordage("deliveries", "--pending").stdout) > 0) == ("", True)
    give_up(rt)

    (dead,) = json.loads(chordage("deliveries", "--dead", "--json").stdout)
    assert (dead["turn_id"], dead["status"], dead["error"]) == (reply, "dead", "the receiver said 500")
    assert chordage("deliveries", "--pending").stdout == ""


def test_dead_letter_is_due_again_once(chordage, rt, reply):
    give_up(rt)
    number = str(json.loads(chordage("deliveries", "--json").stdout)[0]["id"])

    assert chordage("deliveries", "retry", number).stdout == "1 dead letter is due again\n"
    again = chordage("deliveries", "retry", number)
    assert (again.exit_code, again.stderr) == (
        1, f"chordage: delivery {number} is pending, no dead letter: nothing was done\n",
    )  # fmt: skip
    assert json.loads(chordage("deliveries", "retry", "--all-dead", "--json").stdout) == {"deliveries": []}
    assert chordage("deliveries", "retry", "--all-dead").stdout == "0 dead letters are due again\n"


@pytest.mark.parametrize(
    ("options", "code", "told"),
    [
        ((), 2, "give the ID of a dead letter, or --all-dead"),
        (("3", "--all-dead"), 2, "give the ID of a dead letter, or --all-dead"),
        (("x",), 2, "'x' is not a valid integer"),
        (("99",), 1, "there is no delivery 99; `chordage deliveries --dead` lists the dead letters"),
    ],
)
def test_retry_of_no_dead_letter_lists_valid_arguments(chordage, rt, options, code, told):
    done = chordage("deliveries", "retry", *options)

    assert (done.exit_code, done.stdout) == (code, "")
    assert told in done.stderr


def test_bus_without_a_writer_is_behind_and_needs_a_worker(chordage, rt, reply):
    with rt.store.write() as tx:
        tx.execute(update(schema.journal).values(at=datetime.now(UTC) - timedelta(hours=1)))

    done = chordage("bus", "status")
    told = json.loads(chordage("bus", "status", "--json").stdout)

    assert done.exit_code == 0
    assert f"{told['rows_behind']} rows and 60 min behind, at row 0" in done.stdout
    assert "error       none: is a worker running?" in done.stdout
    assert "deliveries  1 pending\n" in done.stdout
    assert (told["position"], told["deliveries_pending"], told["dead_letters"]) == (0, 1, 0)


def test_stalled_bus_gives_the_reason_and_exits_with_one(chordage, rt, reply):
    give_up(rt)
    at = datetime.now(UTC) - timedelta(minutes=5)
    values = {
        "name": "bus",
        "bus": "b",
        "generation": 2,
        "position": 1,
        "failures": 3,
        "error": "no Redis",
        "moved_at": at,
    }
    with rt.store.write() as tx:
        tx.execute(schema.projection.delete())
        tx.execute(insert(schema.projection).values(**values, error_at=at))

    done = chordage("bus", "status")

    assert done.exit_code == 1
    assert "moved       5 min ago\nbuilt       2 times\n" in done.stdout
    assert "error       no Redis (5 min ago; 3 times in a row)\n" in done.stdout
    assert "deliveries  0 pending, 1 dead letters (`chordage deliveries --dead`)\n" in done.stdout
    assert json.loads(chordage("bus", "status", "--json").stdout)["error"] == "no Redis"


@pytest.mark.redis
def test_bus_is_rebuilt_from_the_database_alone(chordage, rt, reply, redis_url):
    first = chordage("bus", "rebuild", redis_url=redis_url)
    told = json.loads(chordage("bus", "rebuild", "--json", redis_url=redis_url).stdout)

    assert first.exit_code == 0
    assert first.stdout == f"the bus is rebuilt: rows {told['from'] + 1} to {told['to']}\n"
    assert told["generation"] >= 2
    status = chordage("bus", "status", redis_url=redis_url).stdout
    assert f"up to date, at row {told['to']} of {told['to']}" in status


def test_secret_of_a_receiver_is_shown_by_its_url(chordage, room, monkeypatch):
    monkeypatch.setenv("CHORDAGE_WEBHOOK_SECRET", "new,old")
    told = chordage("deliveries", "secret", "https://crm.example.org/in").stdout.split()
    assert told == chordage("deliveries", "secret", "https://CRM.example.org:443/").stdout.split()
    assert told != chordage("deliveries", "secret", "https://other.example.org/in").stdout.split()

    monkeypatch.setenv("CHORDAGE_WEBHOOK_SECRET", "new")
    assert chordage("deliveries", "secret", "https://crm.example.org/in").stdout.split() == told[:1]
    assert all(one.startswith("whsec_") for one in told)


def test_without_a_secret_of_ours_a_receiver_has_none(chordage, room):
    unset = chordage("deliveries", "secret", "https://a.example")
    wrong = chordage("deliveries", "secret", "a.example")

    assert (unset.exit_code, "CHORDAGE_WEBHOOK_SECRET is not set" in unset.stderr) == (1, True)
    assert (wrong.exit_code, "give an address" in wrong.stderr) == (2, True)
