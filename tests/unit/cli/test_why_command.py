"""`chordage why`, and the reason in `show` and `turns`, as people and programs see them."""

from __future__ import annotations

import json

import pytest

from chordage.config.settings import load
from chordage.orchestrator import stages
from chordage.orchestrator.store import schema_version
from chordage.tasks.schema import request_from
from chordage.workers.bootstrap import runtime_from
from support import asking_room
from support.on_terminal import on_a_terminal

DEAD = "redis://127.0.0.1:1/0"


@pytest.fixture
def room(tmp_path):
    return asking_room.write(tmp_path / "room")


@pytest.fixture
def rt(room):
    runtime = runtime_from(load(room=room), with_redis=False)
    schema_version.upgrade(runtime.store)
    yield runtime
    runtime.store.close()


@pytest.fixture
def asking(rt):
    return asking_room.waiting_turn(rt, "deploy", thread_id="t")


@pytest.fixture
def behind(rt, asking) -> str:
    request = request_from({"text": "and then", "thread_id": "t", "while_waiting": "hold"}, source="test", space=None)
    return stages.admit(rt, request)[0].turn_id


def test_reason_is_told_with_owner_times_and_remedy(chordage, asking):
    lines = chordage("why", asking.turn_id).stdout.splitlines()

    assert lines[0] == f"turn      {asking.turn_id}"
    assert lines[1].startswith("A person has to decide about deploy. It expires at ")
    assert [line.split()[0] for line in lines[2:]] == ["cause", "held", "since", "until", "remedy"]
    assert lines[3] == "held by   a person"
    assert lines[6].startswith("remedy    `chordage approve ")


def test_what_it_waits_for_has_its_own_reason_below(chordage, behind, asking):
    lines = chordage("why", behind).stdout.splitlines()

    below = lines[lines.index("") + 1 :]
    assert below[0] == f"run {asking.run_id}:"
    assert below[1].startswith("  A person has to decide about deploy.")


def test_command_and_json_say_the_same_as_show_and_turns(chordage, behind):
    reason = json.loads(chordage("why", behind, "--json").stdout)["reason"]
    shown = json.loads(chordage("show", behind, "--json").stdout)["why"]
    of_thread = json.loads(chordage("show", "t", "--json").stdout)["why"]
    (listed,) = (line["why"] for line in json.loads(chordage("turns", "--json").stdout) if line["turn_id"] == behind)

    assert reason == shown == listed
    assert reason["cause"] == "behind_waiting_run"
    assert of_thread["cause"] == "decision"
    assert f"why       {reason['text']}" in chordage("show", behind).stdout
    assert "queued: behind waiting run" in chordage("turns").stdout


def test_without_an_id_it_lists_what_waits_oldest_first(chordage, behind, asking):
    lines = [line.split("\t") for line in chordage("why").stdout.splitlines()]

    assert [line[0] for line in lines] == [f"turn {asking.turn_id}", f"turn {behind}"]
    assert [line[1] for line in lines] == ["decision", "behind_waiting_run"]
    assert [one["id"] for one in json.loads(chordage("why", "--json", "--limit", "1").stdout)] == [asking.turn_id]


def test_list_fits_a_terminal_of_eighty_columns(room, behind, asking):
    lines = on_a_terminal(room, "why")

    assert f"{asking.turn_id}" in lines[0]
    assert any(line.startswith("  held by a person;") for line in lines)
    assert max(len(line) for line in lines if "`chordage" not in line and "\x1b" not in line) <= 80


def test_nothing_waits_in_an_empty_database(chordage, rt):
    assert chordage("why").stdout == ""
    assert json.loads(chordage("why", "--json").stdout) == []


def test_status_names_what_waits_longest(chordage, behind, asking):
    shown = json.loads(chordage("status", "--json").stdout)["waits_longest"]

    assert (shown["id"], shown["cause"]) == (asking.turn_id, "decision")
    assert f"waits longest: turn {asking.turn_id}. {shown['text']}" in chordage("status").stdout


def test_what_is_done_does_not_wait(chordage, rt):
    asking_turn = json.loads(chordage("invoke", "hello", "--json").stdout)["turn_id"]

    view = json.loads(chordage("why", asking_turn, "--json").stdout)

    assert (view["reason"], chordage("why", asking_turn).stdout.splitlines()[1]) == (None, view["text"])
    assert json.loads(chordage("show", asking_turn, "--json").stdout)["why"] is None


def test_unknown_id_is_an_error_in_one_line(chordage, rt):
    done = chordage("why", "nothing")

    assert (done.exit_code, done.stdout) == (1, "")
    assert "there is no turn, run, thread, call, suspension or delivery 'nothing'" in done.stderr


def test_without_an_answer_of_redis_the_database_has_to_do(chordage, asking):
    assert chordage("why", asking.turn_id, redis_url=DEAD).exit_code == 0


def test_first_letters_of_a_call_are_enough(chordage, rt, asking):
    question = json.loads(chordage("inbox", "--json").stdout)[0]

    for some_id in (question["call_id"], question["id"]):
        assert json.loads(chordage("why", some_id, "--json").stdout)["reason"]["cause"] == "decision"
