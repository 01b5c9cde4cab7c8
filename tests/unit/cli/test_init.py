"""The example room: it runs as it is written, and every example in it holds when it is uncommented."""

from __future__ import annotations

import re
import sys
import tomllib

import pytest
import yaml
from click.testing import CliRunner

from chordage.orchestrator.gateways.room.agents import Room
from chordage.orchestrator.strategies.loading import names as strategies
from chordage.workers import example_room, room_check
from chordage.workers.cli import main
from support.plain_room import forget_settings

SECRETS = {
    "TELEGRAM_BOT_TOKEN": "12:abc",
    "TICKETS_SECRET": "whsec_eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHg=",
    "PUSHES_SECRET": "0123456789abcdef0123456789abcdef",
    "SEARCH_TOKEN": "abc",
}


@pytest.fixture
def room(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    forget_settings(monkeypatch)
    monkeypatch.setattr(sys, "path", sys.path[:])
    monkeypatch.delitem(sys.modules, "day_out", raising=False)  # of another room
    example_room.copy_to(tmp_path)
    return tmp_path


def uncomment(file) -> str:
    """An example is a line that begins with # and no blank behind it."""
    text = re.sub(r"(?m)^#(?=\S)", "", file.read_text())
    file.write_text(text)
    return text


def front_matter(file) -> dict[str, object]:
    _, told, body = file.read_text().split("---\n", 2)
    assert body.strip()
    return yaml.safe_load(told)


def test_init_explains_each_file_and_the_next_step(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(main, ["init", "room"])

    assert done.exit_code == 0
    assert all(f"room/{name} " in done.output for name in example_room.ROOM)
    assert "cd room && chordage dev" in done.output
    assert max(map(len, done.output.splitlines())) <= 80
    assert {
        path.relative_to(tmp_path / "room").as_posix() for path in (tmp_path / "room").rglob("*") if path.is_file()
    } == set(example_room.ROOM)


def test_gitignore_that_is_there_stays_as_it_is(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    (tmp_path / ".gitignore").write_text("mine\n")
    done = CliRunner().invoke(main, ["init"])

    assert done.exit_code == 0
    assert (tmp_path / ".gitignore").read_text() == "mine\n"


def test_nothing_is_wrong_with_it_and_nothing_is_switched_on(room):
    assert room_check.check().faults == []
    assert tomllib.loads((room / "channels.toml").read_text()) == {}
    assert tomllib.loads((room / "hooks.toml").read_text()) == {}
    assert front_matter(room / "tasks" / "example.md") == {
        "id": "example", "requester": "owner", "status": "todo", "paused": True,
    }  # fmt: skip
    for scheduled in (room / "chores" / "weather.md", room / "will.md"):
        told = front_matter(scheduled)
        assert told["paused"] is True
        assert len({"every", "cron", "rrule"} & told.keys()) == 1


def test_its_examples_hold_when_they_are_uncommented(room, monkeypatch):
    for name, value in SECRETS.items():
        monkeypatch.setenv(name, value)
    texts = {name: uncomment(room / name) for name in ("agent.toml", "channels.toml", "hooks.toml")}

    assert [fault.text for fault in room_check.check().faults] == []
    agent = Room(room, environ=SECRETS, strategies=strategies()).get(None)
    assert (agent.name, agent.limits.timeout, agent.compaction.threshold) == ("guide", 600, 80000)
    channel = tomllib.loads(texts["channels.toml"])["channels"]["telegram"]
    assert channel["plugin"] == "telegram"
    assert channel["config"].keys() == {"token_env", "owner_chat_id"}
    hooks = tomllib.loads(texts["hooks.toml"])["hooks"]
    assert {hook["signature"] for hook in hooks.values()} == {"standard", "github"}
    for hook in hooks.values():
        assert hook.keys() == {"path", "method", "signature", "secret_env", "config"}
        assert hook["config"].keys() == {"origin", "sender", "thread_field", "text_field"}


def test_every_variable_an_example_reads_is_reported_as_missing_by_its_name(room):
    named = {name for file in room.glob("*.toml") for name in re.findall(r'_env = "(\w+)"', file.read_text())}

    assert named == set(SECRETS)


def test_what_runs_there_is_ignored_by_git(room):
    ignored = (room / ".gitignore").read_text().splitlines()

    assert {".chordage/", "agent.run", "execution.db*", "pulse.json", "poll/"} <= set(ignored)
