"""The tutorial, carried out: its files are saved and its commands run, in the order in which the page shows them."""

from __future__ import annotations

import json
import re
import shlex

import pytest

from support.fleet_folder import alive_in, call, kill
from support.plain_room import forget_settings
from support.repository import ROOT
from support.waiting import until

pytestmark = [pytest.mark.redis, pytest.mark.slow]

PAGE = (ROOT / "docs" / "tutorial" / "first-agent.md").read_text()
BLOCKS = re.findall(r"^```(bash|toml|yaml|python)\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
FILE = re.compile(r"# (\S+\.\w+)\n")


@pytest.fixture
def room(tmp_path, monkeypatch, valkey_program):
    forget_settings(monkeypatch)
    monkeypatch.setenv("CHORDAGE_PORT", "0")
    folder = tmp_path / "clerk"
    folder.mkdir()
    yield folder
    kill(alive_in(folder))


def questions(room):
    return [question["id"] for question in json.loads(call(room, "inbox", "--json").out)]


def run(room, line):
    """One command of the page. A reader sees what an agent does before the next command; the test waits for it."""
    program, command, *arguments = shlex.split(line)
    assert program == "chordage"
    if "ID" in arguments:
        arguments[arguments.index("ID")] = questions(room)[0]
    done = call(room, command, *arguments)
    assert done.code == 0, f"{line}\n{done.out}{done.err}"
    if command == "submit":
        until(lambda: questions(room), "the refund waits for approval")
    if command == "approve":
        until(lambda: "Done." in call(room, "show", "api:customer-4").out, "the agent answers")
    return done.out


def test_every_file_and_command_of_the_tutorial(room):
    printed = {}
    for language, block in BLOCKS:
        if language == "bash":
            printed.update({line: run(room, line) for line in block.splitlines()})
        else:
            (room / FILE.match(block)[1]).write_text(block)

    assert "Hello, which order is it about?" in printed['chordage invoke "Hello"']
    assert '{"number": 17, "cents": 4200}' in printed["chordage inbox"]
    assert "Paid back 42.00 for order 17." in printed["chordage show api:customer-4"]
    assert "disposition: answered" in printed["chordage trace api:customer-4"]
    assert alive_in(room) == []
