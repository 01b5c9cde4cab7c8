"""`chordage mcp`: the servers of the room, asked here and now."""

from __future__ import annotations

import json
import sys

import pytest

from support.mcp_kit import OLD, is_alive

KIT = f'[mcp.kit]\ncommand = "{sys.executable}"\nargs = ["{OLD}", "."]\n'
AWAY = '[mcp.away]\nurl = "http://127.0.0.1:9/mcp?key=secret"\n'


@pytest.fixture
def give(room):
    """Tables for the agent `bob`."""

    def write(tables):
        (room / "agents" / "bob.toml").write_text(f'name = "bob"\nmodel = "scripted:script.yaml"\n{tables}')

    return write


def test_servers_are_listed_with_their_state(chordage, give, room):
    give(KIT)

    done = chordage("mcp")

    assert (done.exit_code, done.stderr) == (0, "")
    cells = done.stdout.strip().split("\t")
    assert cells[:4] == ["kit", "bob", "connected", "6"]
    assert cells[5:] == ["stdio", sys.executable, "old 1"]
    assert not is_alive(int((room / "started").read_text()))


def test_tools_are_listed_as_the_model_is_offered_them(chordage, give):
    give(KIT + 'tools = ["add", "linger.long"]\neffect = "pure"')

    lines = [line.split("\t")[:4] for line in chordage("mcp", "--tools").stdout.splitlines()]

    assert lines == [["kit_add", "bob", "pure", "add"], ["kit_linger_long", "bob", "pure", "linger.long"]]


def test_failing_server_is_reported_and_the_others_are_listed(chordage, give):
    give(KIT + AWAY)

    done = chordage("mcp")

    assert done.exit_code == 1
    assert [line.split("\t")[2] for line in done.stdout.splitlines()] == ["connected", "failed"]
    assert done.stderr.startswith(
        "chordage: agents/bob.toml:6: mcp.away: the server did not list its tools: ConnectError"
    )
    assert "secret" not in done.stdout + done.stderr


def test_json_output_contains_everything(chordage, give):
    give(KIT + 'except = ["delete"]\n' + AWAY)

    done = chordage("mcp", "--agent", "bob", "--json")

    kit, away = json.loads(done.stdout)
    assert (kit["server"], kit["state"], kit["protocol"], len(kit["tools"])) == ("kit", "connected", "2025-06-18", 6)
    assert kit["tools"][0] == {"name": "kit_add", "tool": "add", "effect": "unsafe", "description": ""}
    (remark,) = kit["remarks"]
    assert (
        remark
        == "except names 'delete', and the server has no such tool; it has: add, die, gone, linger.long, odd, pid"
    )
    assert (away["state"], away["tools"]) == ("failed", [])
    assert "ConnectError" in away["error"]
    assert done.exit_code == 1


def test_a_broken_agent_file_is_a_failure(chordage, give):
    give("[mcp.kit]\n")

    done = chordage("mcp")

    assert (done.exit_code, done.stdout) == (1, "")
    assert "agents/bob.toml:3: mcp.kit: says neither; give `command`" in done.stderr


def test_a_room_without_servers_is_fine(chordage):
    done = chordage("mcp")

    assert (done.exit_code, done.stdout, done.stderr) == (0, "", "")


def test_unknown_agent_is_reported(chordage):
    done = chordage("mcp", "--agent", "nobody")

    assert done.exit_code == 1
    assert "there is no agent 'nobody'" in done.stderr


def test_invoke_finds_a_server_that_is_away_before_it_stores_anything(chordage, give, room):
    give(AWAY)

    done = chordage("invoke", "hi", "--agent", "bob")

    assert done.exit_code == 1
    assert "chordage: agents/bob.toml:3: mcp.away: the server did not list its tools" in done.stderr
    assert not (room / "execution.db").exists()
