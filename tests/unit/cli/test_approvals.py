"""`inbox`, `approve`, `deny` and `decide`: what waits, what is stored, and everything that can be wrong with it."""

from __future__ import annotations

import json
import re
import signal
import sqlite3
import subprocess

import pytest

from chordage.config.settings import load
from chordage.orchestrator import stages, views
from chordage.orchestrator.core.approvals import UNKNOWN_SCHEMA
from chordage.orchestrator.store import schema_version
from chordage.tasks.schema import request_from
from chordage.workers import local
from chordage.workers.bootstrap import runtime_from
from chordage.workers.cli.invoke import _Patience
from support import asking_room, processes
from support.on_terminal import COMMAND, on_a_terminal
from support.waiting import PATIENCE, until

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


def questions(chordage, *options):
    return json.loads(chordage("inbox", "--json", *options).stdout)


def answer_of(rt, turn):
    return views.turn(rt.store, turn.turn_id).answer


def test_inbox_prints_one_line_of_json_for_programs(chordage, rt):
    turn = asking_room.waiting_turn(rt, "deploy", thread_id="t")

    (line,) = chordage("inbox").stdout.splitlines()
    (question,) = questions(chordage)

    assert line.split("\t")[3:] == [
        "tool", "ada", "deploy", "t", '{"env": "prod"}', "May prod be deployed to?", '{"ok": true | false}',
        "ada", "t",
    ]  # fmt: skip
    assert line.startswith(question["id"])
    assert (question["run_id"], question["arguments"], question["overdue"]) == (turn.run_id, {"env": "prod"}, False)


def test_inbox_shows_people_how_to_answer(rt, room):
    asking_room.waiting_turn(rt, "deploy", thread_id="t")

    lines = on_a_terminal(room, "inbox")

    assert ", expires in 60 min (then it is overdue)" in " ".join(map(str.strip, lines[:2]))
    assert lines[2:5] == ['  ada wants deploy  {"env": "prod"}', "  May prod be", "  deployed to?"]
    assert '  answer with --payload: {"ok": true | false}' in lines
    assert max(map(len, lines)) <= 80 + len("\x1b[36m\x1b[0m")


def test_inbox_shows_people_where_a_plain_yes_suffices(rt, room):
    turn = asking_room.waiting_turn(rt, "wipe", thread_id="t")

    assert "  approve it, or answer with --payload: object | null" in on_a_terminal(room, "inbox")
    assert ", or with --payload object | null" in " ".join(on_a_terminal(room, "show", turn.turn_id))


@pytest.mark.parametrize(("tool", "payload", "told"), [("send", "true", False), ("deploy", '{"ok": true}', True)])
def test_time_of_a_call_is_shown_with_its_wait_where_it_began_before_its_question(chordage, rt, tool, payload, told):
    """An unsafe call keeps its first beginning, any other the last one."""
    turn = asking_room.waiting_turn(rt, tool, thread_id="t")
    chordage("approve", *[one["id"] for one in questions(chordage)], "--payload", payload)
    lines = [line for line in chordage("show", turn.turn_id).stdout.splitlines() if f"{tool}  succeeded, " in line]

    assert lines
    assert all(("with its wait" in line) is told for line in lines)


def test_the_inbox_can_be_narrowed_and_paged(chordage, rt):
    first = asking_room.waiting_turn(rt, "send", thread_id="t")
    asking_room.waiting_turn(rt, "deploy", thread_id="u")

    def tools(*options):
        return [question["tool"] for question in questions(chordage, *options)]

    assert tools() == ["send", "send", "deploy"]
    assert tools("--thread", "u") == ["deploy"]
    assert tools("--run", first.run_id) == ["send", "send"]
    assert tools("--agent", "bob") == tools("--why", "permission") == []
    assert tools("--limit", "1", "--after", questions(chordage)[1]["id"]) == ["deploy"]


def test_empty_inbox_prints_a_message(chordage, rt, room):
    assert (chordage("inbox").stdout, questions(chordage)) == ("", [])
    assert on_a_terminal(room, "inbox") == ["no call waits for a decision"]


def test_a_page_after_what_never_was_is_refused(chordage, rt):
    done = chordage("inbox", "--after", "gone")

    assert (done.exit_code, done.stdout) == (1, "")
    assert done.stderr.startswith("chordage: leave `after` out to start again: there is no suspension 'gone'")


def test_approved_call_continues_here_when_there_is_no_fleet(chordage, rt):
    turn = asking_room.waiting_turn(rt, "send")
    ids = [question["id"] for question in questions(chordage)]

    done = chordage("approve", *ids, "--reason", "fine")

    assert done.exit_code == 0
    assert [line.split(",")[0] for line in done.stdout.splitlines()] == [f"approved: suspension {one}" for one in ids]
    assert "the run resumes in this process" in done.stderr
    assert answer_of(rt, turn) == "It came to this: sent to bob\nsent to eve"
    assert questions(chordage) == []


def test_a_call_can_be_named_by_its_own_id_and_get_other_arguments(chordage, rt):
    turn = asking_room.waiting_turn(rt, "deploy")
    (question,) = questions(chordage)

    done = chordage("approve", question["call_id"], "--payload", '{"ok": true}', "--args", '{"env": "test"}', "--json")

    (stored,) = json.loads(done.stdout)
    assert (done.exit_code, stored["suspension_id"], stored["duplicate"]) == (0, question["id"], False)
    assert answer_of(rt, turn) == "It came to this: deployed to test"


def test_yes_alone_takes_no_text(chordage, rt):
    turn = asking_room.waiting_turn(rt, "wipe")

    chordage("approve", questions(chordage)[0]["id"])

    assert answer_of(rt, turn) == "It came to this: null"


def test_a_denial_reaches_the_model_with_its_reason(chordage, rt):
    turn = asking_room.waiting_turn(rt, "deploy")
    (question,) = questions(chordage)

    done = chordage("deny", question["id"], "--reason", "too late")

    assert (done.exit_code, done.stdout.split(",")[0]) == (0, f"denied: suspension {question['id']}")
    assert "too late" in answer_of(rt, turn)


@pytest.mark.parametrize("command", ["approve", "deny"])
def test_the_same_answer_again_changes_nothing_and_another_one_is_refused(chordage, rt, command):
    asking_room.waiting_turn(rt, "send")
    first, _ = questions(chordage)
    chordage(command, first["id"], "--key", "k")

    again = chordage(command, first["id"], "--key", "k")
    other = chordage(command, first["id"], "--key", "k", "--reason", "another")

    assert (again.exit_code, "before, with the same answer" in again.stdout) == (0, True)
    assert (other.exit_code, "with the same key 'k' and other content" in other.stderr) == (1, True)


def test_repeat_without_the_key_changes_nothing_and_another_answer_is_refused(chordage, rt):
    asking_room.waiting_turn(rt, "send")
    first, _ = questions(chordage)
    chordage("approve", first["id"], "--payload", '"x"', "--key", "k9")

    again = chordage("approve", first["id"], "--payload", '"x"')
    other = chordage("approve", first["id"], "--payload", '"y"')

    assert again.stdout.startswith(f"approved before, with the same answer: suspension {first['id']}")
    assert re.fullmatch(
        f"chordage: suspension {first['id']} was approved at .* UTC by cli; its call is succeeded\n", other.stderr
    )
    assert (again.exit_code, other.exit_code) == (0, 1)


def test_a_call_of_the_caller_is_approved_with_its_result_alone(chordage, rt):
    tool = {"name": "pick", "description": "Pick.", "parameters": {"type": "object"}}
    turn = asking_room.waiting_turn(rt, "pick", client_tools=[tool])
    (question,) = questions(chordage)

    plain = chordage("approve", question["id"])
    given = chordage("approve", question["id"], "--payload", '"red"')

    assert (plain.exit_code, "give it with --payload, or deny the call" in plain.stderr) == (2, True)
    assert given.exit_code == 0
    assert views.turn(rt.store, turn.turn_id).answer == "It came to this: red"


def test_list_and_show_say_that_a_turn_waits_for_a_decision(chordage, rt):
    turn = asking_room.waiting_turn(rt, "send")

    (line,) = chordage("turns").stdout.splitlines()
    (in_json,) = json.loads(chordage("turns", "--json").stdout)
    shown = chordage("show", turn.turn_id).stdout.splitlines()

    assert line.split("\t")[:2] == [turn.turn_id, "waiting for a decision"]
    assert "status    waiting for a decision" in shown
    assert (in_json["status"], in_json["reason"], in_json["open_questions"]) == ("active", "suspended", 2)


def test_answer_that_does_not_fit_is_refused_with_the_possible_answers(chordage, rt, room):
    asking_room.waiting_turn(rt, "send")
    first, _ = questions(chordage)
    with sqlite3.connect(room / "execution.db") as connection:
        changed = "UPDATE suspensions SET why = 'outcome_unknown', schema = ?"
        connection.execute(changed, (json.dumps(UNKNOWN_SCHEMA),))
    connection.close()

    refused = chordage("approve", first["id"])
    taken = chordage("approve", first["id"], "--payload", '{"answer": "retry"}')

    assert (refused.exit_code, taken.exit_code) == (2, 0)
    wants = '{"answer": "retry" | "result" | "failed", "result"?: anything, "reason"?: text}'
    assert f"answer {first['id']} with a payload such as {wants}" in refused.stderr


def test_a_batch_is_taken_whole(chordage, rt, room):
    turn = asking_room.waiting_turn(rt, "send")
    to = {question["arguments"]["to"]: question["id"] for question in questions(chordage)}
    first, second = to["bob"], to["eve"]
    batch = [
        {"target": first, "action": "resume", "payload": True},
        {"target": second, "action": "cancel", "reason": "no", "decision_key": "k"},
    ]
    (room / "batch.json").write_text(json.dumps(batch))

    stored = json.loads(chordage("decide", "batch.json", "--json").stdout)
    again = chordage("decide", stdin=json.dumps(batch))

    assert [one["suspension_id"] for one in stored] == [first, second]
    assert again.stdout.splitlines()[1].startswith(f"denied before, with the same answer: suspension {second}")
    assert answer_of(rt, turn).startswith("It came to this: sent to bob\nThis call was denied")


def test_batch_may_use_the_verbs_of_the_commands(chordage, rt, room):
    turn = asking_room.waiting_turn(rt, "send")
    to = {question["arguments"]["to"]: question["id"] for question in questions(chordage)}
    (room / "answers.json").write_text(
        json.dumps([
            {"id": to["bob"], "action": "approve", "payload": True},
            {"id": to["eve"], "action": "deny", "reason": "no"},
        ])
    )  # fmt: skip

    done = chordage("decide", "answers.json")

    assert [line.split(":")[0] for line in done.stdout.splitlines()] == ["approved", "denied"]
    assert answer_of(rt, turn).startswith("It came to this: sent to bob\nThis call was denied")


@pytest.mark.parametrize("command", ["approve", "deny", "decide"])
def test_help_explains_where_the_run_continues_without_a_fleet(chordage, command):
    assert "the run resumes in this process" in " ".join(chordage(command, "--help").stdout.split())


def test_of_a_batch_nothing_is_stored_when_one_of_it_is_wrong(chordage, rt):
    asking_room.waiting_turn(rt, "send")
    before = questions(chordage)

    done = chordage("approve", before[0]["id"], "nope")

    assert (done.exit_code, done.stdout) == (1, "")
    assert "there is no suspension and no call 'nope'; `chordage inbox` lists what waits" in done.stderr
    assert questions(chordage) == before


BATCHES = {
    "no JSON": (b"{", "give the decisions as JSON: "),
    "NaN": (b'[{"target": "x", "action": "resume", "payload": NaN}]', "give the decisions as JSON: NaN"),
    "deep": (b"[" * 100_000, "give the decisions as JSON: "),
    "no list": (b"{}", "give a list of decisions, such as "),
    "nothing": (b"[]", "there is no decision: give at least one"),
    "no UTF-8": (b"[\xff", "give the decisions in UTF-8: byte 1 is not"),
    "no object": (b"[1]", "0: Input should be a valid dictionary"),
    "no action": (b'[{"target": "x"}]', "0.action: is missing"),
    "unknown action": (b'[{"target": "x", "action": "go"}]', "0.action: Input should be 'resume' or 'cancel'"),
    "unknown field": (b'[{"target": "x", "action": "resume", "id": 1}]', "0.id: there is no such field"),
}


@pytest.mark.parametrize(("batch", "told"), BATCHES.values(), ids=BATCHES)
def test_invalid_batch_is_reported_in_one_line(chordage, rt, batch, told):
    done = chordage("decide", "-", stdin=batch)

    assert (done.exit_code, done.stdout) == (2, "")
    assert done.stderr.startswith(f"chordage: {told}")
    assert len(done.stderr.splitlines()) == 1


def test_a_batch_of_a_file_that_is_not_there_names_it(chordage, rt):
    done = chordage("decide", "gone.json")

    assert (done.exit_code, "gone.json: No such file" in done.stderr) == (2, True)


OPTIONS = {
    "payload": (("approve", "x", "--payload", "{"), "give --payload as JSON: "),
    "arguments": (("approve", "x", "--args", "no"), "give --args as JSON: "),
    "arguments no object": (("approve", "x", "--args", "[1]"), "give --args as a JSON object, such as"),
    "arguments of two": (("approve", "x", "y", "--args", "{}"), "give one ID with --args"),
    "approve nothing": (("approve",), "Missing argument 'ID...'"),
    "deny nothing": (("deny",), "Missing argument 'ID...'"),
    "unknown reason": (("inbox", "--why", "fun"), "'fun' is not one of 'permission'"),
}


@pytest.mark.parametrize(("arguments", "told"), OPTIONS.values(), ids=OPTIONS)
def test_wrong_option_is_reported_before_anything_is_stored(chordage, rt, arguments, told):
    done = chordage(*arguments)

    assert (done.exit_code, done.stdout) == (2, "")
    assert told in done.stderr


def test_arguments_that_do_not_fit_the_tool_are_refused(chordage, rt):
    asking_room.waiting_turn(rt, "send")
    first, _ = questions(chordage)

    done = chordage("approve", first["id"], "--args", '{"to": 5}')

    assert (done.exit_code, "edited_args do not fit tool 'send'" in done.stderr) == (2, True)


@pytest.mark.parametrize("command", ["approve", "deny"])
def test_without_redis_answering_nothing_is_stored(chordage, rt, command):
    asking_room.waiting_turn(rt, "send")
    before = questions(chordage)

    done = chordage(command, before[0]["id"], redis_url=DEAD)

    assert (done.exit_code, "Redis at redis://127.0.0.1:1/0 does not answer" in done.stderr) == (1, True)
    assert questions(chordage) == before


def test_ctrl_c_leaves_the_decision_stored(chordage, rt, room):
    asking_room.waiting_turn(rt, "hold")
    (question,) = questions(chordage)
    process = subprocess.Popen(
        [*COMMAND, "approve", question["id"]],
        cwd=room, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True,
    )  # fmt: skip
    processes.guard().watch(process.pid)
    until((room / "holding").exists, "the tool runs")

    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=PATIENCE)

    assert (process.returncode, out[:8]) == (130, b"approved")
    assert b"the decision is stored; `chordage dev` resumes the run" in err
    assert questions(chordage) == []


def test_invoke_prints_that_its_turn_waits_and_for_what(rt, capsys):
    says = _Patience()
    turn_id = stages.admit(rt, request_from({"text": "send"}, source="test", space=None))[0].turn_id
    due = local.begin(rt, views.turn(rt.store, turn_id))
    says(views.turn(rt.store, turn_id))
    local.carry_out(rt, due)
    for _ in range(2):
        says(views.turn(rt.store, turn_id))

    other, waits = capsys.readouterr().err.splitlines()
    run_id = views.turn(rt.store, turn_id).run_id
    assert f"runs in another process (run {run_id})" in other
    assert f"waits for a decision: `chordage inbox --run {run_id}` shows which" in waits
