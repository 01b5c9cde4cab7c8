"""A file that is made to break its parser is a fault of that file, with its line; the rest of the room works."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from chordage.orchestrator.core.errors import RoomError
from chordage.orchestrator.gateways import text_files
from chordage.orchestrator.gateways.schedules import documents
from support.plain_room import forget_settings

CHORDAGE = (sys.executable, "-P", "-m", "chordage.workers.cli")
BRACKETS = "[" * 2000
FILES = {
    "tasks/deep.md": ("---\nid: deep\nnotes: " + "[" * 100_000 + "\n---\nDo it.\n", "tasks/deep.md:3"),
    "chores/blocks.md": ("---\n" + "- " * 100_000 + "\n---\nDo it.\n", "chores/blocks.md:2"),
    "chores/cron.md": ('---\ncron: "' + "1," * 5000 + '1 * * * *"\n---\nDo it.\n', "chores/cron.md:2"),
    "chores/rule.md": ("---\nrrule: FREQ=DAILY;BYHOUR=" + "1," * 5000 + "1\n---\nDo it.\n", "chores/rule.md:2"),
    "will.md": ("---\na: " + "{b: " * 50_000 + "\n---\n", "will.md:2"),
    "agents/deep.toml": (f'name = "deep"\nmodel = {BRACKETS}', "agents/deep.toml:2"),
    "agents/dots.toml": (f'name = "dots"\nmodel = "scripted:s.yaml"\n{".".join("k" * 2000)} = 1', "agents/dots.toml:3"),
    "agents/long.toml": ("#" * 2_000_000, "agents/long.toml"),
    "agents/number.toml": ('name = "number"\n\nconcurrency = ' + "1" * 5000, "agents/number.toml:3"),
    "agents/output.toml": ('name = "output"\nmodel = "scripted:s.yaml"\noutput = "deep.json"', "agents/output.toml:3"),
    "channels.toml": (f"a = {BRACKETS}", "channels.toml:1"),
    "hooks.toml": (f"\na = {BRACKETS}", "hooks.toml:2"),
}


@pytest.fixture
def room(tmp_path, monkeypatch):
    forget_settings(monkeypatch)
    for folder in ("tasks", "chores", "agents"):
        (tmp_path / folder).mkdir()
    (tmp_path / "agent.toml").write_text('name = "ada"\nmodel = "scripted:s.yaml"\n')
    (tmp_path / "s.yaml").write_text("[{text: fine}]")
    (tmp_path / "deep.json").write_text("[" * 100_000)
    for name, (text, _) in FILES.items():
        (tmp_path / name).write_text(text)
    return tmp_path


def call(room, *words):
    return subprocess.run(
        [*CHORDAGE, *words],
        cwd=room,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
        stdin=subprocess.DEVNULL,
    )


def test_check_names_every_one_of_them_with_its_line(room):
    done = call(room, "check")

    assert done.returncode == 1, done.stderr
    told = done.stdout + done.stderr
    assert [place for _, place in FILES.values() if place not in told] == []
    assert "Traceback" not in told


def test_rest_of_the_room_works(room):
    done = call(room, "invoke", "hello")

    assert (done.returncode, done.stdout.strip()) == (0, "fine"), done.stderr


def test_too_deep_settings_are_reported(tmp_path, monkeypatch):
    forget_settings(monkeypatch)
    (tmp_path / "agent.toml").write_text('name = "ada"\nmodel = "scripted:s.yaml"\n')
    (tmp_path / "chordage.toml").write_text(f"room = {BRACKETS}")

    for command in ("check", "turns"):
        done = call(tmp_path, command)
        assert done.returncode != 0
        assert "chordage.toml" in done.stdout + done.stderr
        assert "Traceback" not in done.stderr


def test_a_pipe_is_no_file_and_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "pipe")

    with pytest.raises(OSError, match="it is no file"):
        text_files.read(tmp_path / "pipe")


def test_a_schedule_has_a_longest():
    with pytest.raises(RoomError, match="chores/a.md:2: rrule: it has 1[0-9]{3} characters, the limit is 1000"):
        documents.read_item("chores/a.md", b"---\nrrule: FREQ=DAILY;BYHOUR=" + b"1," * 600 + b"1\n---\n")


def test_file_with_very_many_faults_is_read_soon_and_some_are_reported(tmp_path, monkeypatch):
    forget_settings(monkeypatch)
    (tmp_path / "s.yaml").write_text("[{text: fine}]")
    keys = "".join(f"key{number} = 1\n" for number in range(20_000))
    (tmp_path / "agent.toml").write_text(f'name = "ada"\nmodel = "scripted:s.yaml"\n{keys}')

    done = call(tmp_path, "check")

    assert done.returncode == 1
    assert "there is more wrong than these 100" in done.stdout + done.stderr
