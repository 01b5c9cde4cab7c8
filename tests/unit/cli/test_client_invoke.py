"""`chordage invoke`: a whole turn in one process, with nothing but a room."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
import time

import pytest

from chordage.config.settings import load
from chordage.orchestrator import stages, views
from chordage.orchestrator.core.status import TurnStatus
from chordage.orchestrator.gateways.room.agents import LOOK_AGAIN
from chordage.orchestrator.store.database import Store
from chordage.tasks.schema import request_from
from chordage.workers import local
from chordage.workers.bootstrap import runtime_from
from support import processes
from support.waiting import PATIENCE, until

COMMAND = [sys.executable, "-m", "chordage.workers.cli"]


@pytest.fixture
def rt(room):
    """Another process on the same database."""
    runtime = runtime_from(load(room=room), with_redis=False)
    yield runtime
    runtime.store.close()


def newest(room):
    store = Store(f"sqlite:///{room}/execution.db")
    try:
        return views.turn(store, views.turns(store, limit=1)[0].turn_id)
    finally:
        store.close()


def test_a_turn_is_carried_out_with_its_tools_and_the_answer_is_printed(chordage, room):
    done = chordage("invoke", "please add")

    assert (done.exit_code, done.stdout, done.stderr) == (0, "Sums: 3\n34\n", "")
    turn = newest(room)
    assert (turn.sender, turn.origin, turn.rounds) == ("owner", "invoke", 1)


def test_invoke_continues_a_thread(chordage):
    chordage("invoke", "one", "--thread", "t")
    chordage("invoke", "two", "--thread", "t", "--agent", "bob")

    said = json.loads(chordage("show", "t", "--json").stdout)["history"]

    assert [remark["text"] for remark in said] == ["one", "You said: one", "two", "You said: two"]
    assert [remark["name"] for remark in said] == ["owner", "ada", "owner", "bob"]


def test_text_comes_from_standard_input(chordage):
    assert chordage("invoke", "-", stdin="grüße\n").stdout == "You said: grüße\n"


def test_json_shows_the_whole_turn(chordage):
    done = chordage("invoke", "hi", "--json", "--meta", '{"ticket": 7}')

    turn = json.loads(done.stdout)
    assert (done.exit_code, turn["disposition"], turn["answer"]) == (0, "answered", "You said: hi")
    assert turn["meta"] == {"ticket": 7}


def test_failed_turn_gives_the_reason_and_has_its_own_exit_code(chordage, room):
    done = chordage("invoke", "fail")

    assert (done.exit_code, done.stdout) == (3, "")
    assert f"turn {newest(room).turn_id} failed (model_auth: " in done.stderr


def test_strategy_direct_offers_no_tools(chordage, room):
    chordage("invoke", "hi", "--strategy", "direct")

    assert newest(room).strategy == "direct"


def test_broken_script_is_reported_before_a_database_is_made(chordage, room):
    (room / "script.yaml").write_text("- text: x\n  bogus: y\n")

    done = chordage("invoke", "hi")

    assert done.exit_code == 1
    assert "script.yaml" in done.stderr
    assert not (room / "execution.db").exists()


def edited_meanwhile(room, edit):
    process = start(room, "invoke", "wait")
    until((room / "waiting").exists, "the tool runs")
    edit(room / "agent.toml")
    looked_at = time.monotonic()
    until(lambda: time.monotonic() > looked_at + LOOK_AGAIN, "the room looks at its files again", pause=0.1)
    (room / "gate").touch()
    out, err = process.communicate(timeout=PATIENCE)
    return process.returncode, out, err


def test_an_agent_that_breaks_while_it_runs_is_carried_to_its_end(room, rt):
    store_ready(rt)

    code, _out, err = edited_meanwhile(room, lambda file: file.write_text("name = 5"))

    assert (code, err) == (0, b"")
    assert views.turn(rt.store, views.turns(rt.store)[0].turn_id).disposition == "answered"


def test_an_agent_that_is_taken_away_while_it_runs_leaves_nothing_open(room, rt):
    store_ready(rt)

    code, out, err = edited_meanwhile(room, lambda file: file.unlink())

    assert (code, out) == (1, b"")
    assert b"there is no agent" in err
    assert views.turn(rt.store, views.turns(rt.store)[0].turn_id).disposition == "cancelled"


def test_it_waits_for_its_turn_on_a_busy_thread(room, rt):
    store_ready(rt)
    first = stages.admit(rt, request_from({"text": "first", "thread_id": "t"}, source="test", space=None))[0].turn_id
    due = local.begin(rt, views.turn(rt.store, first))
    process = start(room, "invoke", "second", "--thread", "t")
    until(lambda: b"waits: thread t or group chat is busy" in process.stderr.readline(), "it says that it waits")

    local.carry_out(rt, due)
    out, _ = process.communicate(timeout=PATIENCE)

    assert (process.returncode, out) == (0, b"You said: second\n")


def store_ready(rt):
    from chordage.orchestrator.store import schema_version

    schema_version.upgrade(rt.store)


def start(room, *arguments, **options):
    process = subprocess.Popen(
        [*COMMAND, *arguments],
        cwd=room,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
        **options,
    )
    processes.guard().watch(process.pid)
    return process


def test_it_carries_out_its_own_turn_only(chordage, rt):
    store_ready(rt)
    other = stages.admit(rt, request_from({"text": "other", "thread_id": "o"}, source="test", space=None))[0].turn_id

    done = chordage("invoke", "mine")

    assert done.stdout == "You said: mine\n"
    assert views.turn(rt.store, other).status is TurnStatus.QUEUED


def test_a_turn_that_another_process_carries_out_is_waited_for(room, rt):
    store_ready(rt)
    blocker = stages.admit(rt, request_from({"text": "first", "thread_id": "t"}, source="test", space=None))[0].turn_id
    due = local.begin(rt, views.turn(rt.store, blocker))
    process = start(room, "invoke", "second", "--thread", "t")
    until(lambda: b"waits" in process.stderr.readline(), "it waits")
    process.send_signal(signal.SIGSTOP)
    local.carry_out(rt, due)
    turn = views.turns(rt.store, thread_id="t", limit=1)[0]
    due = local.begin(rt, views.turn(rt.store, turn.turn_id))
    process.send_signal(signal.SIGCONT)
    local.carry_out(rt, due)
    out, _ = process.communicate(timeout=PATIENCE)

    assert (process.returncode, out) == (0, b"You said: second\n")


@pytest.mark.parametrize("text", ["wait", "linger"], ids=["in a tool", "in the model"])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_cancels_the_turn_wherever_it_is(room, rt, text, number):
    store_ready(rt)
    process = start(room, "invoke", text)
    until(lambda: views.turns(rt.store, status=TurnStatus.ACTIVE), "the run has begun")
    if text == "wait":
        until((room / "waiting").exists, "the tool runs")

    process.send_signal(number)
    out, err = process.communicate(timeout=PATIENCE)

    turn = views.turn(rt.store, views.turns(rt.store)[0].turn_id)
    assert (process.returncode, out) == (130, b"")
    assert f"turn {turn.turn_id} was cancelled" in err.decode()
    assert (turn.disposition, turn.detail) == ("cancelled", "interrupted at the terminal")
    assert b"Traceback" not in err


def test_a_cancel_from_elsewhere_ends_it(room, rt):
    store_ready(rt)
    process = start(room, "invoke", "wait")
    until((room / "waiting").exists, "the tool runs")
    turn_id = views.turns(rt.store)[0].turn_id

    stages.cancel_turn(rt, turn_id, "enough")
    out, err = process.communicate(timeout=PATIENCE)

    assert (process.returncode, out) == (3, b"")
    assert f"turn {turn_id} cancelled (enough)" in err.decode()


def test_a_long_call_is_kept_alive_by_heartbeats(room, rt):
    store_ready(rt)
    quick = {"CHORDAGE_LEASE": "20", "CHORDAGE_BEAT": "0.2"}
    process = start(room, "invoke", "wait", env={**os.environ, **quick})
    until((room / "waiting").exists, "the tool runs")
    (call,) = until(lambda: _calls(rt), "its call is on record")
    first = call.lease_until
    until(lambda: _calls(rt)[0].lease_until > first, "its lease is renewed")
    (room / "gate").touch()
    out, _ = process.communicate(timeout=PATIENCE)

    assert (process.returncode, out) == (0, b"It is over.\n")


def _calls(rt):
    from chordage.orchestrator.store import calls

    with rt.store.read() as tx:
        return calls.of_run(tx, views.turns(rt.store)[0].run_id)


def test_on_a_terminal_the_answer_is_shown_once_as_it_comes(room):
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(room)
        os.execv(COMMAND[0], [*COMMAND, "invoke", "please add"])
    shown = _all_of(terminal)
    _, status = os.waitpid(pid, 0)

    assert os.waitstatus_to_exitcode(status) == 0
    lines = shown.decode().splitlines()
    assert lines[0] == "Let me add."
    assert sum("· add" in line for line in lines) == 2
    assert lines[-2:] == ["Sums: 3", "34"]


def _all_of(terminal):
    shown = b""
    while True:
        try:
            piece = os.read(terminal, 4096)
        except OSError:  # Linux's way to report that no writer is left
            piece = b""
        if not piece:
            os.close(terminal)
            return shown
        shown += piece
