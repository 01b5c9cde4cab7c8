"""`chordage status` and `stop` where nothing runs, and what a path looks like on a terminal."""

from __future__ import annotations

import json
import os
import re
from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import update

from chordage.config.settings import load
from chordage.orchestrator.core.presence import Process
from chordage.orchestrator.store import processes, schema
from chordage.workers.cli.context import open_store
from chordage.workers.fleet import agent_run, background, state_lock
from chordage.workers.fleet.agent_run import FleetStatus, FleetSummary, MemberState, MemberStatus
from support.span_truth import spans_in


def test_without_processes_it_prints_so_exits_with_three_and_leaves_nothing_behind(chordage, room):
    done = chordage("status")

    assert done.exit_code == 3
    assert done.output == f"nothing runs on {room / '.chordage'}; `chordage start` starts a fleet\n"
    assert not (room / ".chordage").exists()
    assert not (room / "execution.db").exists()


def test_where_redis_is_set_workers_of_a_supervisor_are_mentioned(chordage):
    done = chordage("status", redis_url="redis://:secret@127.0.0.1:1/0")

    assert "workers that a supervisor started are not looked for here: `celery -A chordage status`" in done.output


def test_help_explains_the_exit_codes(chordage):
    words = {name: " ".join(chordage(name, "--help").output.split()) for name in ("status", "stop")}

    assert "3 nothing runs here" in words["status"]
    assert "1 none was running here" in words["stop"]


def test_queues_are_shown_even_while_nothing_runs(chordage):
    chordage("invoke", "hello")
    told = json.loads(chordage("status", "--json").output)

    assert (told["status"], told["running"], told["pid"]) == ("stopped", False, None)
    assert [(one["group"], one["queued"], one["running"]) for one in told["groups"]] == [
        (group, 0, 0) for group in ("chat", "task", "chore", "will")
    ]
    assert told["health"] == {"database": None}


def test_processes_at_work_are_listed_with_their_host_and_what_they_hold(chordage, room):
    chordage("invoke", "add")
    now = datetime.now(UTC)
    with open_store(load(room=room)) as store, store.write() as tx:
        processes.show(tx, [a_process("far/1:7"), a_process("far/2:8"), a_process("far/3:9")], now)
        processes.mark_ended(tx, ["far/2:8"], now)
        processes.mark_ended(tx, ["far/3:9"], now - timedelta(minutes=11))
        tx.execute(update(schema.calls).values(status="running", ended_at=None, worker="far/1:7", lease_until=now))
    lines = chordage("status").output
    told = json.loads(chordage("status", "--json").stdout)["processes"]

    assert re.search(r"^far/1:7\tfar\t(now|\d+ s ago)\t2 calls", lines, re.MULTILINE)
    assert "far/2:8\tfar\tgone " in lines
    assert [(one["process"], one["host"], one["pid"], one["runs"], one["calls"]) for one in told] == [
        ("far/1:7", "far", 7, 0, 2), ("far/2:8", "far", 7, 0, 0),
    ]  # fmt: skip
    assert (told[0]["gone_at"], told[0]["seen_at"]) == (None, now.isoformat())


def a_process(name):
    return Process(id=name, machine="far:boot:4026531836:1000", pid=7, born="then")


def test_fleet_that_is_not_up_yet_is_shown_as_starting(chordage, room):
    with state_lock.lock_fleet(room / ".chordage"):
        done = chordage("status")

    assert f"chordage starts, process {os.getpid()}" in done.output
    assert done.exit_code == 1, "no Redis of it is known yet"


@pytest.mark.parametrize(("times", "told"), [(1, "restarted once 5 min ago"), (3, "restarted 3 times, last 5 min ago")])
def test_restarted_processes_are_shown_with_how_often_and_when(chordage, room, times, told):
    now = datetime.now(UTC)
    then = now - timedelta(minutes=5)
    member = MemberStatus(name="web", pid=1, state=MemberState.RUNNING, restarts=times, restarted_at=then)
    summary = FleetSummary(
        version="1", pid=os.getpid(), status=FleetStatus.RUNNING, loops=(), endpoint=None, room=str(room),
        state=str(room / ".chordage"), database="", started_at=now, heartbeat_at=now, members=(member,),
    )  # fmt: skip
    agent_run.write(room, summary)

    with state_lock.lock_fleet(room / ".chordage"):
        lines = chordage("status").output
        programs = json.loads(chordage("status", "--json").stdout)

    assert f"  {told}: a process had died; the logs say why" in lines
    assert f"web\t1\trunning\t{told.removeprefix('restarted ')}" in lines
    assert (programs["restarts"], programs["members"][0]["restarts"]) == (times, times)
    assert programs["restarted_at"] == then.isoformat()


def test_fleet_whose_room_has_no_agent_run_is_shown_all_the_same(chordage, room):
    now, state = datetime.now(UTC), room / ".chordage"
    summary = FleetSummary(
        version="1", pid=os.getpid(), status=FleetStatus.RUNNING, loops=("pulse",), endpoint=None, room=str(room),
        state=str(state), database="", started_at=now, heartbeat_at=now, members=(),
    )  # fmt: skip
    with state_lock.lock_fleet(state):
        agent_run.write(state, summary)
        assert f"chordage 1 runs, process {os.getpid()}" in chordage("status").output


def test_address_of_redis_is_shown_without_its_password(chordage, room):
    now, state = datetime.now(UTC), room / ".chordage"
    summary = FleetSummary(
        version="1", pid=os.getpid(), status=FleetStatus.RUNNING, loops=(), endpoint=None,
        room=str(room), state=str(state), database="", started_at=now, heartbeat_at=now, members=(),
    )  # fmt: skip
    with state_lock.lock_fleet(state):
        agent_run.write(room, summary)
        lines = chordage("status", redis_url="redis://:secret@127.0.0.1:1/0").output
        told = json.loads(chordage("status", "--json", redis_url="redis://:secret@127.0.0.1:1/0").stdout)
    assert "  Redis     redis://:***@127.0.0.1:1/0\n" in lines
    assert (told["redis"], "secret" in lines) == ("redis://:***@127.0.0.1:1/0", False)


def test_what_is_broken_of_the_room_is_counted(chordage, room):
    assert json.loads(chordage("status", "--json").stdout)["faults"] == []
    (room / "agents").mkdir(exist_ok=True)
    (room / "agents" / "bad.toml").write_text("model = 3\n")
    (room / "hooks.toml").write_text("[hooks.one]\n")
    done = chordage("status")
    assert "chordage: agents/bad.toml:1: model: must be a text" in done.stderr
    assert "chordage: hooks.toml:1: " in done.stderr
    faults = json.loads(chordage("status", "--json").stdout)["faults"]
    assert f"chordage: the room has {len(faults)} faults; what is broken waits until it is repaired" in done.stderr


def test_stop_without_a_fleet_is_an_error_with_what_to_do(chordage):
    done = chordage("stop")

    assert done.exit_code == 1
    assert "no fleet runs on" in done.stderr
    assert "`chordage start` starts one" in done.stderr


@pytest.mark.parametrize(
    ("in_a_hurry", "told"),
    [(False, "has ended; nothing is left running"), (True, "is still ending; `chordage stop` waits for that")],
)
def test_interrupted_start_lists_what_is_left(chordage, room, monkeypatch, in_a_hurry, told):
    def interrupted(state, *_):
        if in_a_hurry:
            held.append(state_lock.lock_fleet(state))
        raise KeyboardInterrupt

    held = []
    monkeypatch.setattr(background, "start", interrupted)
    done = chordage("start")
    for lock in held:
        lock.close()

    assert done.stderr == f"chordage: interrupted; the fleet that was starting {told}\n"
    assert done.exit_code == 130


def test_second_start_is_refused_with_the_process_of_the_first(chordage, room):
    with state_lock.lock_fleet(room / ".chordage"):
        done = chordage("start")

    assert done.exit_code == 1
    assert f"already, process {os.getpid()}: use that one, or stop it: `chordage stop`" in done.stderr


def test_path_of_a_message_is_one_line_per_point_without_a_terminal(chordage):
    turn = json.loads(chordage("invoke", "add", "--json").output)["turn_id"]
    lines = chordage("trace", turn).output.splitlines()

    kinds = [line[13:25].strip() for line in lines[6:-2]]
    assert kinds == [
        "received",
        "queued",
        "ready",
        "started",
        "model",
        "call",
        "call",
        "round",
        "model",
        "checkpoint",
        "ended",
    ]
    assert "invoke from owner by cli" in lines[6]
    assert lines[-1] == "disposition: answered"


def test_path_of_a_message_for_programs_has_ids_workers_and_positions(chordage):
    turn = json.loads(chordage("invoke", "add", "--json").output)["turn_id"]
    told = json.loads(chordage("trace", turn[:20], "--json").output)

    assert told["turn"]["turn_id"] == turn
    assert (told["disposition"], told["source"], told["arrival"]) == ("answered", "cli", 1)
    positions = [number for event in told["events"] for number in event["journal"]]
    assert len(set(positions)) == len(positions) >= 5
    assert all(event["worker"] for event in told["events"] if event["kind"] == "model")


def test_missing_message_is_reported_with_possible_reasons(chordage):
    chordage("invoke", "hello")
    done = chordage("trace", "nowhere", "--agent", "ada")

    assert done.exit_code == 1
    assert "no message with the dedupe key 'nowhere' of agent 'ada'" in done.stderr
    assert "its sender got the reason as an error" in done.stderr


def test_spans_of_a_message_are_one_document_whatever_names_it(chordage):
    turn = json.loads(chordage("invoke", "add", "--json").output)
    by_turn, by_run = (chordage("trace", turn[name], "--otlp").output for name in ("turn_id", "run_id"))

    (root, *below) = spans_in(by_turn)
    assert by_turn == by_run
    assert (root["name"], root.of["chordage.run.id"]) == ("invoke_agent ada", turn["run_id"])
    assert "gen_ai.tool.call.arguments" not in by_turn
    assert "gen_ai.tool.call.arguments" in chordage("trace", turn["turn_id"], "--otlp", "--contents").output
    assert below


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--contents",), "--contents goes with --otlp: the events of a message have its texts anyway"),
        (("--otlp", "--json"), "--otlp prints JSON of its own: leave --json out"),
    ],
)
def test_options_that_do_not_go_together_are_refused(chordage, options, words):
    done = chordage("trace", "x", *options)

    assert done.exit_code == 2
    assert words in done.stderr


def test_spans_of_a_message_that_is_not_there_are_an_error(chordage):
    chordage("invoke", "hello")
    done = chordage("trace", "nowhere", "--otlp")

    assert done.exit_code == 1
    assert "there is no turn, run, thread or dedupe key 'nowhere'" in done.stderr
