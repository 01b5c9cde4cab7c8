"""What `chordage dev` and `chordage init` say before they start anything."""

from __future__ import annotations

import os
import socket
from types import SimpleNamespace

import pytest
from click.testing import CliRunner

from chordage.workers.cli import fleet, main
from chordage.workers.fleet import background, fleet_file, state_lock
from chordage.workers.fleet.fleet_file import FleetAddresses
from support.plain_room import forget_settings, write_room

FLEET = SimpleNamespace(pid=7, log="fleet.log")


@pytest.fixture
def run(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    forget_settings(monkeypatch)
    return lambda *arguments: CliRunner().invoke(main, list(arguments))


def test_folder_without_an_agent_is_reported_with_three_ways_out(run):
    result = run("dev")

    assert result.exit_code == 1
    assert all(way in result.stderr for way in ("chordage init", "chordage dev --demo", 'model = "'))


@pytest.mark.parametrize("command", ["dev", "run", "start"])
def test_broken_agent_is_reported_before_anything_starts_and_stops_nothing_else(run, tmp_path, monkeypatch, command):
    (tmp_path / "agent.toml").write_text("model = 3\n")
    (tmp_path / "hooks.toml").write_text("[hooks.one]\n")
    started = []
    monkeypatch.setenv("CHORDAGE_PORT", "0")  # any that is free
    monkeypatch.setattr(fleet, "hold", lambda *_given, **_named: started.append("held"))
    monkeypatch.setattr(background, "start", lambda *_given: started.append("began") or FLEET)

    result = run(command)

    assert (result.exit_code, len(started)) == (0, 1)
    assert "agent.toml:1: model: " in result.output
    assert "hooks.toml:1: " in result.output
    assert "a broken agent waits until it is repaired" in result.output


def test_taken_port_is_reported_with_the_option(run, tmp_path):
    write_room(tmp_path)
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        result = run("dev", "--port", str(other.getsockname()[1]))

    assert result.exit_code == 1
    assert "Address already in use" in result.stderr
    assert "--port" in result.stderr


def test_second_fleet_in_a_folder_is_refused_with_the_process_of_the_first(run, tmp_path):
    write_room(tmp_path)
    with state_lock.lock_fleet(tmp_path / ".chordage"):
        here = FleetAddresses(pid=os.getpid(), room=str(tmp_path), redis_url="redis://x", database_url="sqlite://")
        fleet_file.write(tmp_path / ".chordage", here)
        result = run("dev")

    assert result.exit_code == 1
    assert f"process {os.getpid()}: use that one, or stop it: `chordage stop`" in result.stderr


def test_init_puts_a_room_there_that_can_be_used(run, tmp_path):
    result = run("init", "room")

    assert result.exit_code == 0
    assert "cd room && chordage dev" in result.output
    assert {"agent.toml", "day_out.py", "script.yaml"} <= {file.name for file in (tmp_path / "room").iterdir()}


def test_init_overwrites_nothing(run, tmp_path):
    (tmp_path / "script.yaml").write_text("mine")

    result = run("init")

    assert result.exit_code == 1
    assert "script.yaml is there already; nothing was changed" in result.stderr
    assert [file.name for file in tmp_path.iterdir()] == ["script.yaml"]
