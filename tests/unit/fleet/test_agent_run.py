"""The summary of what runs in a room: written whole, read leniently, put right when its fleet was killed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from chordage.config.settings import load
from chordage.orchestrator.system import process_identity
from chordage.workers.fleet import agent_run, state_lock
from chordage.workers.fleet.agent_run import (
    AgentRunWriter,
    FleetStatus,
    FleetSummary,
    MemberState,
    MemberStatus,
    without_password,
)
from chordage.workers.fleet.member import Member, MemberRole
from support.plain_room import forget_settings

GONE = 999_999_999  # no process has this number


@pytest.fixture
def summary(monkeypatch, tmp_path):
    forget_settings(monkeypatch)
    now = datetime(2026, 1, 1, tzinfo=UTC)
    return FleetSummary(
        version="1", pid=os.getpid(), status=FleetStatus.RUNNING, loops=("server", "pulse"), endpoint="http://127.0.0.1:1",
        room=str(tmp_path), state=str(tmp_path / ".chordage"), database="sqlite:///x", started_at=now, heartbeat_at=now,
        members=(MemberStatus(name="web", pid=GONE, state=MemberState.RUNNING, restarts=2, restarted_at=now),),
    )  # fmt: skip


def test_summary_is_read_as_it_was_written_and_nothing_else_is_left(tmp_path, summary):
    agent_run.write(tmp_path, summary)

    assert agent_run.read(tmp_path) == summary
    assert [file.name for file in tmp_path.iterdir()] == ["agent.run"]
    told = json.loads((tmp_path / "agent.run").read_text())
    assert told.keys() >= {
        "version", "pid", "status", "loops", "endpoint", "room", "database", "started_at", "heartbeat_at",
    }  # fmt: skip
    assert (told["status"], told["started_at"]) == ("running", "2026-01-01T00:00:00+00:00")


@pytest.mark.parametrize("text", ["{", "[]", "{}", '{"pid": 1}', "\x00"])
def test_damaged_summary_counts_as_none(tmp_path, text):
    (tmp_path / "agent.run").write_text(text)

    assert agent_run.read(tmp_path) is None
    assert agent_run.corrected(tmp_path) is None


def test_summary_of_a_fleet_that_runs_stays_as_it_is(tmp_path, summary):
    with state_lock.lock_fleet(tmp_path / ".chordage"):
        agent_run.write(tmp_path, summary)

        assert agent_run.corrected(tmp_path) == summary


def test_summary_of_a_fleet_that_was_killed_is_put_right_for_everybody(tmp_path, summary):
    agent_run.write(tmp_path, replace(summary, pid=GONE))

    told = agent_run.corrected(tmp_path)

    assert (told.status, told.pid, told.loops, told.endpoint, told.members) == (FleetStatus.STOPPED, None, (), None, ())
    assert told.heartbeat_at == summary.heartbeat_at
    assert agent_run.read(tmp_path) == told


def test_number_that_another_process_has_by_now_is_not_taken_for_the_fleet(tmp_path, summary):
    agent_run.write(tmp_path, summary)  # of this very process, which holds no lock

    assert agent_run.corrected(tmp_path).status is FleetStatus.STOPPED


def test_lock_whose_holder_began_at_another_time_is_held_by_what_is_left_of_it(tmp_path):
    with state_lock.lock_fleet(tmp_path) as held:
        assert state_lock.fleet_pid(tmp_path) == os.getpid()
        held.truncate(0)
        held.write(f"{os.getpid()} 1\n")
        held.flush()

        assert state_lock.fleet_is_held(tmp_path)
        assert state_lock.fleet_pid(tmp_path) is None


def test_live_members_are_kept_so_that_they_can_be_ended(tmp_path, summary):
    born = process_identity.start_time(os.getpid())
    here = MemberStatus(name="turns", pid=os.getpid(), state=MemberState.RUNNING, born=born)
    later = replace(here, name="tools-1", born="1")
    agent_run.write(tmp_path, replace(summary, pid=GONE, members=(*summary.members, here, later)))

    assert agent_run.corrected(tmp_path).members == (here,)


@pytest.mark.parametrize("born", [None, ""])
def test_member_with_an_unknown_start_time_is_never_taken_for_a_live_process(born):
    assert not MemberStatus(name="web", pid=os.getpid(), state=MemberState.RUNNING, born=born).lives


def test_read_only_room_is_reported_once_and_stops_no_process(tmp_path, monkeypatch, summary):
    monkeypatch.chdir(tmp_path)
    said = []
    settings = load(room=tmp_path / "gone", database_url="postgresql://me:secret@db/x")
    writer = AgentRunWriter(settings, [], None, say=said.append)

    writer.begin()
    writer.update()
    writer.end()

    assert said == [f"{tmp_path / 'gone' / 'agent.run'} cannot be written: No such file or directory"]


def test_mirror_writes_at_the_start_on_a_change_and_at_the_end(tmp_path, monkeypatch, summary):
    monkeypatch.chdir(tmp_path)
    writer = AgentRunWriter(load(database_url="postgresql://me:secret@db/x"), [], None, say=pytest.fail)
    writer.begin()
    first = (tmp_path / "agent.run").stat().st_mtime_ns
    writer.update()

    assert (tmp_path / "agent.run").stat().st_mtime_ns == first, "nothing is new"
    assert agent_run.read(tmp_path).database == "postgresql://me:***@db/x"
    assert agent_run.read(tmp_path).pid == os.getpid()
    writer.end()
    assert agent_run.read(tmp_path).status is FleetStatus.STOPPED


def test_processes_that_were_started_again_are_counted_with_the_moment_of_the_last(tmp_path, monkeypatch, summary):
    monkeypatch.chdir(tmp_path)
    member = Member(MemberRole(name="web", arguments=(sys.executable, "-c", "")), tmp_path, {})
    member.start()
    writer = AgentRunWriter(load(), [member], None, say=pytest.fail)
    writer.begin()
    assert (agent_run.read(tmp_path).restarts, agent_run.read(tmp_path).restarted_at) == (0, None)

    for _ in range(2):
        member.kill_group()
        member.start()
        writer.update()
    told = agent_run.read(tmp_path)
    member.kill_group()

    assert told.members[0].restarts == told.restarts == 2
    assert told.started_at < told.members[0].restarted_at == told.restarted_at


def test_summary_of_a_version_that_did_not_count_is_read_all_the_same(tmp_path, summary):
    agent_run.write(tmp_path, summary)
    told = json.loads((tmp_path / "agent.run").read_text())
    del told["members"][0]["restarts"], told["members"][0]["restarted_at"]
    (tmp_path / "agent.run").write_text(json.dumps(told))

    assert agent_run.read(tmp_path).restarts == 0


def test_process_is_distinguished_from_a_later_one_with_its_number(tmp_path):
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    born = process_identity.start_time(process.pid)

    assert process_identity.is_alive(process.pid, born)
    assert not process_identity.is_alive(process.pid, f"{born}0")
    process.communicate(b"\n")
    assert process_identity.start_time(process.pid) is None
    assert process_identity.start_time(GONE) is None


def test_start_time_comes_from_ps_where_there_is_no_proc(tmp_path):
    first = process_identity.start_time(os.getpid(), proc=tmp_path)

    assert first
    assert process_identity.start_time(os.getpid(), proc=tmp_path) == first
    assert process_identity.start_time(GONE, proc=tmp_path) is None


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("redis://:pw@h:1/0", "redis://:***@h:1/0"),
        ("postgresql://u:p@ss@h/db", "postgresql://u:***@h/db"),
        ("postgresql://h/db?user=u&password=pw&x=1", "postgresql://h/db?user=u&password=***&x=1"),
        ("sqlite:////a.db", "sqlite:////a.db"),
        ("redis://h/0", "redis://h/0"),
    ],
)
def test_password_is_not_shown(url, shown):
    assert without_password(url) == shown
