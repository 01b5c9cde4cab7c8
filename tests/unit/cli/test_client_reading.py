"""`turns`, `threads`, `show`, `cancel` and `migrate`: what people and programs get to see."""

from __future__ import annotations

import json

import pytest

from chordage.config.settings import load
from chordage.orchestrator import stages, views
from chordage.orchestrator.store import schema_version
from chordage.tasks.schema import request_from
from chordage.workers import local
from chordage.workers.bootstrap import runtime_from
from chordage.workers.cli import tail


@pytest.fixture
def rt(room):
    runtime = runtime_from(load(room=room), with_redis=False)
    schema_version.upgrade(runtime.store)
    yield runtime
    runtime.store.close()


def admit(rt, text, **fields):
    return stages.admit(rt, request_from({"text": text, **fields}, source="test", space=None))[0].turn_id


def test_turns_are_listed_one_a_line_newest_first(chordage):
    chordage("invoke", "one", "--thread", "t")
    chordage("invoke", "fail")

    lines = [line.split("\t") for line in chordage("turns").stdout.splitlines()]

    assert [(line[1], line[2], line[-1]) for line in lines] == [("failed", "ada", "fail"), ("answered", "ada", "one")]
    assert lines[1][6] == "t"


def test_turns_can_be_chosen(chordage, rt):
    chordage("invoke", "one", "--thread", "t")
    chordage("invoke", "two", "--agent", "bob")
    queued = admit(rt, "three", thread_id="q")

    def texts(*options):
        return [turn["text"] for turn in json.loads(chordage("turns", "--json", *options).stdout)]

    assert texts("--status", "queued") == ["three"]
    assert texts("--thread", "t") == ["one"]
    assert texts("--agent", "bob") == ["two"]
    assert texts("--limit", "1") == ["three"]
    assert texts("--before", queued) == ["two", "one"]


def test_threads_are_listed_with_what_happens_on_them(chordage, rt):
    first = admit(rt, "one", thread_id="t")
    admit(rt, "two", thread_id="t")
    local.begin(rt, views.turn(rt.store, first))
    run_id = views.turn(rt.store, first).run_id

    (line,) = chordage("threads").stdout.splitlines()
    (thread,) = json.loads(chordage("threads", "--json").stdout)

    assert line.split("\t")[:6] == ["t", "ada", "2", "1", "running", run_id]
    assert (thread["thread_id"], thread["queued"], thread["open_run"]) == ("t", 1, run_id)


@pytest.mark.parametrize("command", ["turns", "threads"])
def test_an_empty_list_is_empty(chordage, rt, command):
    assert chordage(command).stdout == ""
    assert json.loads(chordage(command, "--json").stdout) == []


def test_a_turn_is_shown_with_its_steps(chordage, rt):
    chordage("invoke", "please add")
    turn_id = views.turns(rt.store)[0].turn_id

    done = chordage("show", turn_id)

    shown = [line.strip() for line in done.stdout.splitlines()]
    assert done.exit_code == 0
    assert f"turn      {turn_id}" in shown
    assert "status    answered" in shown
    assert any(line.startswith("1  model  scripted:script.yaml, ") and "asks for 2 calls" in line for line in shown)
    assert sum(line.startswith("add  succeeded, ") for line in shown) == 2
    assert 'asked  {"a": 30, "b": 4}' in shown
    assert "said   34" in shown
    assert shown[-3:] == ["ada:", "Sums: 3", "34"]


def test_a_run_is_shown_as_its_turn_is(chordage, rt):
    chordage("invoke", "please add")
    turn = views.turns(rt.store)[0]

    assert chordage("show", turn.run_id).stdout == chordage("show", turn.turn_id).stdout


def test_a_thread_is_shown_with_its_history(chordage, rt):
    chordage("invoke", "please add", "--thread", "my thread")

    lines = chordage("show", "my thread").stdout.splitlines()

    assert "turns     1 came, 0 queued" in lines
    assert [line for line in lines if line.startswith(("owner (", "ada ("))] != []
    assert "  please add" in lines
    assert "    said   34" in lines


@pytest.mark.parametrize(
    ("kind", "keys"),
    [
        ("turn", {"turn", "run", "driven", "delivery", "why"}),
        ("run", {"turn", "run", "driven", "delivery", "why"}),
        ("thread", {"thread", "history", "why"}),
    ],
)
def test_what_is_shown_can_be_had_as_json(chordage, rt, kind, keys):
    chordage("invoke", "please add", "--thread", "t")
    turn = views.turns(rt.store)[0]

    shown = json.loads(
        chordage("show", {"turn": turn.turn_id, "run": turn.run_id, "thread": "t"}[kind], "--json").stdout
    )

    assert shown["kind"] == kind
    assert shown.keys() == {"kind", *keys}


def test_a_queued_turn_is_shown_with_its_place_and_what_it_waits_for(chordage, rt):
    turn_id = admit(rt, "later", not_before="2090-01-01T00:00:00Z", meta={"ticket": 7}, deadline="2091-01-01T00:00:00Z")

    shown = chordage("show", turn_id).stdout

    assert "queued, number 1 in the line of its thread" in shown
    assert "not till  2090-01-01" in shown
    assert "deadline  2091-01-01" in shown
    assert 'meta      {"ticket": 7}' in shown


def test_a_failed_turn_is_shown_with_the_attempts_at_its_model(chordage, rt):
    chordage("invoke", "fail")

    shown = chordage("show", views.turns(rt.store)[0].turn_id).stdout

    assert "status    failed (model_auth: " in shown
    assert "1  model  broken off" in shown
    assert "tried scripted:" in shown


def test_a_queued_turn_can_be_cancelled(chordage, rt):
    turn_id = admit(rt, "x")

    done = chordage("cancel", turn_id, "--reason", "no need")

    assert (done.exit_code, done.stdout) == (0, f"turn {turn_id} is cancelled\n")
    assert views.turn(rt.store, turn_id).disposition == "cancelled"


def test_an_active_turn_can_be_cancelled_with_a_reason(chordage, rt):
    turn_id = admit(rt, "x")
    local.begin(rt, views.turn(rt.store, turn_id))

    done = chordage("cancel", turn_id, "--reason", "no need", "--json")

    assert json.loads(done.stdout) == {"turn_id": turn_id, "cancelled": True}
    assert views.turn(rt.store, turn_id).fate == "cancelled (no need)"


def test_a_turn_that_is_done_cannot_be_cancelled(chordage, rt):
    chordage("invoke", "hi")
    turn_id = views.turns(rt.store)[0].turn_id

    done = chordage("cancel", turn_id)

    assert (done.exit_code, done.stdout) == (1, "")
    assert f"turn {turn_id} is done already; `chordage show {turn_id}` shows how it ended" in done.stderr


def test_migrate_makes_the_database_and_reports_it(chordage):
    first, second, check = chordage("migrate"), chordage("migrate"), chordage("migrate", "--check")

    newest = schema_version.newest()
    assert first.stdout == f"the database went from schema none to {newest}\n"
    assert second.stdout == check.stdout == f"the database is at schema {newest}, as it should be\n"
    assert {done.exit_code for done in (first, second, check)} == {0}


def test_migrate_reports_its_changes_to_programs(chordage):
    assert json.loads(chordage("migrate", "--json").stdout) == {"before": None, "after": schema_version.newest()}


def test_the_first_letters_of_an_id_are_enough_to_show_choose_and_cancel(chordage, rt):
    turn_id = admit(rt, "one", thread_id="letters")

    assert json.loads(chordage("show", turn_id[:18], "--json").stdout)["turn"]["text"] == "one"
    assert chordage("turns", "--thread", "lett").stdout.split("\t")[0] == turn_id
    assert chordage("turns", "--thread", "lett", "--before", turn_id[:18]).stdout == ""
    assert chordage("cancel", turn_id[:18]).stdout == f"turn {turn_id} is cancelled\n"


def test_the_letters_of_several_ids_cancel_none_of_them(chordage, rt):
    first, second = (admit(rt, text, thread_id="t") for text in ("one", "two"))

    done = chordage("cancel", first[:4])

    assert (done.exit_code, done.stdout) == (1, "")
    assert f"several ids begin with '{first[:4]}', such as turn {first}, turn {second}; give more of it" in done.stderr
    assert not views.is_done(rt.store, first)


def test_a_turn_a_run_and_a_thread_are_called_the_same_wherever_programs_read_of_them(chordage, rt):
    told = json.loads(chordage("invoke", "hello", "--thread", "t", "--json").stdout)
    ids = {name: told[name] for name in ("turn_id", "run_id", "thread_id")}

    shown, path = (json.loads(chordage(command, told["turn_id"], "--json").stdout) for command in ("show", "trace"))
    (line,) = json.loads(chordage("turns", "--json").stdout)
    (thread,) = json.loads(chordage("threads", "--json").stdout)

    for one in (shown["turn"], shown["run"], path["turn"], line):
        assert {name: one[name] for name in ids} == ids
        assert "id" not in one
    assert (thread["thread_id"], "id" in thread) == ("t", False)
    assert json.loads(chordage("cancel", told["turn_id"], "--json").stdout)["turn_id"] == told["turn_id"]


def test_a_failed_turn_is_sent_again_once(chordage, rt):
    chordage("invoke", "fail", "--thread", "t")
    (failed,) = views.turns(rt.store)

    first, second = chordage("retry", failed.turn_id[:23]), chordage("retry", failed.turn_id, "--json")

    again, _ = views.turns(rt.store)
    assert (first.exit_code, first.stdout) == (0, f"{again.turn_id}\n")
    assert (again.text, again.thread_id) == ("fail", "t")
    assert json.loads(second.stdout)["duplicate"]
    assert "was retried before; here is its new turn" in second.stderr


def test_an_answered_turn_is_not_sent_again(chordage, rt):
    chordage("invoke", "hello")
    (answered,) = views.turns(rt.store)

    done = chordage("retry", answered.turn_id)

    assert (done.exit_code, "there is nothing to retry" in done.stderr) == (1, True)
    assert len(views.turns(rt.store)) == 1


@pytest.mark.parametrize("kind", ["turn", "run", "thread"])
def test_a_message_is_sent_into_a_run_that_is_at_work(chordage, rt, kind):
    turn_id = admit(rt, "hello", thread_id="t")
    due = local.begin(rt, views.turn(rt.store, turn_id))
    ids = {"turn": turn_id, "run": views.turn(rt.store, turn_id).run_id, "thread": "t"}

    sent = chordage("steer", ids[kind], "and in Porto?")
    local.carry_out(rt, due)

    steered = views.turn(rt.store, sent.stdout.strip())
    assert (sent.exit_code, steered.disposition, steered.text) == (0, "steered", "and in Porto?")
    assert steered.sender == "owner"


def test_what_is_not_at_work_is_not_steered(chordage, rt):
    queued = admit(rt, "hello", thread_id="q")
    chordage("invoke", "hello", "--thread", "t")

    for some_id, problem in (
        (queued, "has no run to steer"),
        ("t", "has no run to steer"),
        ("nope", "there is no turn"),
    ):
        done = chordage("steer", some_id, "x")
        assert (done.exit_code, problem in done.stderr) == (1, True), done.stderr
    assert len(views.turns(rt.store)) == 2


def test_a_turn_is_followed_to_its_end(chordage, rt):
    chordage("invoke", "hello", "--thread", "t")
    (turn,) = views.turns(rt.store)

    lines = [line.split("  ") for line in chordage("tail", "t").stdout.splitlines()]
    events = [json.loads(line) for line in chordage("tail", turn.run_id, "--json").stdout.splitlines()]

    kinds = ["turn.queued", "run.started", "model.replied", "run.finished", "turn.ended"]
    assert [line[1] for line in lines] == [event["kind"] for event in events] == kinds
    assert "You said: hello" in lines[2][-1]
    assert (events[-1]["turn_id"], events[-1]["data"]["disposition"]) == (turn.turn_id, "answered")


def test_what_happens_to_a_turn_later_is_followed_too(chordage, rt, monkeypatch):
    turn_id = admit(rt, "hello", thread_id="t")
    monkeypatch.setattr(tail.time, "sleep", lambda _: stages.cancel_turn(rt, turn_id, "changed my mind"))

    followed = chordage("tail", turn_id, "--json")

    events = [json.loads(line) for line in followed.stdout.splitlines()]
    assert [event["kind"] for event in events] == ["turn.queued", "turn.ended"]
    assert (followed.exit_code, events[1]["data"]["disposition"]) == (0, "cancelled")


def test_who_stops_following_reads_that_the_turn_continues(chordage, rt, monkeypatch):
    def stop(_):
        raise KeyboardInterrupt

    turn_id = admit(rt, "hello", thread_id="t")
    monkeypatch.setattr(tail.time, "sleep", stop)

    stopped = chordage("tail", turn_id)

    assert (stopped.exit_code, f"turn {turn_id} continues" in stopped.stderr) == (130, True)
    assert views.turn(rt.store, turn_id).status == "queued"
