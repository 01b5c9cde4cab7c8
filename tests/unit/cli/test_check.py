"""`chordage check` names every fault at once, with its place, and connects to nothing."""

from __future__ import annotations

import itertools
import json

import pytest
from click.testing import CliRunner

from chordage.orchestrator.core.errors import ConfigError, RoomError
from chordage.workers import room_check
from chordage.workers.cli import main
from support.plain_room import forget_settings, write_room

NUMBERS = itertools.count()  # a module is imported once by its name
AGENT = """\
name = "ada"
model = "openai:gpt-4o-mini"
fallbacks = [
  "nobody:x",
  "scripted:gone.yaml",
]
tools = [
  "{slow}",
  "{broken}",
  "nowhere:search",
]
agents = ["zoe"]

[mcp.github]
command = "no-such-program"

[mcp.search]
url = "https://tools.example/mcp"
token_env = "SEARCH_TOKEN"
required = false
"""
SLOW = '''
from chordage import tool

@tool(effect="pure", timeout=2000)
def slow() -> str:
    """Slow."""
    return ""
'''


@pytest.fixture
def room(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    forget_settings(monkeypatch)
    for name in ("OPENAI_API_KEY", "SEARCH_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


@pytest.fixture
def broken(room):
    slow, broken = (f"checked_tools_{next(NUMBERS)}" for _ in range(2))
    (room / f"{slow}.py").write_text(SLOW)
    (room / f"{broken}.py").write_text("import not_there_at_all\n")
    (room / "agents").mkdir()
    (room / "agent.toml").write_text(AGENT.format(slow=slow, broken=broken))
    (room / "agents" / "bob.toml").write_text("model = 3\nlimts = 4\ntools = ['nowhere_either']\n")
    (room / "chordage.toml").write_text('lease = 30\nport = "x"\nfoo = 1\n')
    return room


def run(*options: str):
    return CliRunner().invoke(main, ["check", *options])


@pytest.mark.parametrize(
    "told",
    [
        "settings: chordage.toml:2: setting port",
        "settings: chordage.toml:3: setting foo (chordage.toml): there is no such setting",
        "agents: agents/bob.toml:1: model: must be a text",
        "agents: agents/bob.toml:2: limts: there is no such key; did you mean limits?",
        "agents: agent.toml:12: agents: there is no agent 'zoe'",
        "tools: agents/bob.toml:3: tools: 'nowhere_either': there is no module nowhere_either",
        "tools: agent.toml:8: tools: agent 'ada': tool 'slow' may take 2000 s",
        "raised ModuleNotFoundError: No module named 'not_there_at_all'",
        "tools: agent.toml:10: tools: 'nowhere:search': there is no module nowhere",
        pytest.param(
            "MCP: agent.toml:14: mcp.github.command: there is no program 'no-such-program'",
            marks=pytest.mark.mcp,
        ),
        "models: agent.toml:2: model: model provider 'openai' needs an API key: set OPENAI_API_KEY",
        "models: agent.toml:4: fallbacks: agent 'ada': model 'nobody:x': there is no provider 'nobody'",
        "models: agent.toml:5: fallbacks: ",
        pytest.param(
            "MCP: agent.toml:17: mcp.search.token_env: variable SEARCH_TOKEN is not set",
            marks=pytest.mark.mcp,
        ),
    ],
)
def test_all_faults_are_reported_at_once_with_their_places(broken, told):
    done = run()

    assert told in done.output
    assert done.exit_code == 1


def test_programs_get_each_fault_with_its_file_and_line(broken):
    told = json.loads(run("--json").output)

    places = {(one["kind"], one["file"], one["line"]) for one in told["faults"]}
    assert len(told["faults"]) == 13
    assert {("settings", "chordage.toml", 2), ("models", "agent.toml", 4), ("agents", "agents/bob.toml", 2)} <= places
    assert [one["line"] for one in told["remarks"]] == [17], "what is not required is no fault"


def test_valid_room_is_reported_with_what_was_checked(room):
    write_room(room)
    done = run()

    assert done.exit_code == 0
    assert "nothing is wrong" in done.output
    assert "1 agent: agent" in done.output
    assert "scripted:script.yaml" in done.output
    assert "hooks     no faults" in done.output


def test_fault_of_an_agents_file_is_reported_once(room):
    (room / "agent.toml").write_text('name = "a"\nmodel = "scripted:script.yaml"\nconcurency = 3\ntools = ["gone"]\n')
    told = [one["told"] for one in json.loads(run("--json").output)["faults"]]

    assert len([line for line in told if "concurency" in line]) == 1


def test_several_faults_of_an_agents_file_are_reported_once(room):
    (room / "agent.toml").write_text('model = "scripted:script.yaml"\nconcurency = 3\nstraem = true\n')
    told = json.loads(run("--json").output)["faults"]

    assert [(one["kind"], one["line"]) for one in told] == [("agents", 2), ("agents", 3)]


def test_invalid_variable_is_named_and_the_rest_is_checked(room, monkeypatch):
    write_room(room)
    monkeypatch.setenv("CHORDAGE_PORT", "99999999")
    done = run()

    assert "settings: variable CHORDAGE_PORT: setting port" in done.output
    assert done.exit_code == 1


def test_settings_that_are_no_toml_are_reported_with_their_line(room):
    write_room(room)
    (room / "chordage.toml").write_text("lease = 30\nbeat = = 1\n")

    assert "settings: chordage.toml:2: this is not TOML" in run().output


@pytest.mark.parametrize(
    ("name", "told"), [(".", "there is no agent: write an agent.toml"), ("gone", "no such folder")]
)
def test_folder_that_is_no_room_is_a_fault(room, monkeypatch, name, told):
    monkeypatch.setenv("CHORDAGE_ROOM", str(room / name))
    done = run()

    assert done.exit_code == 1
    assert told in done.output


def test_two_tools_of_one_name_are_reported(room):
    names = [f"checked_tools_{next(NUMBERS)}" for _ in range(2)]
    for name in names:
        (room / f"{name}.py").write_text(SLOW.replace(", timeout=2000", ""))
    (room / "s.yaml").write_text("- text: hi\n")
    (room / "agent.toml").write_text(f'model = "scripted:s.yaml"\ntools = ["{names[0]}", "{names[1]}"]\n')

    assert f"tools: agent.toml:2: tools: '{names[1]}' is called slow like '{names[0]}'" in run().output


def test_further_checkers_run_even_if_one_gives_up(room, monkeypatch):
    write_room(room)

    def finds(path, environ):
        return [RoomError(f"hooks.toml:{number}: path: in {path.name}") for number in (1, 2)]

    def gives_up(path, environ):
        raise ConfigError("channels.toml:3: token_env: variable X is not set")

    monkeypatch.setattr(room_check, "FURTHER", [("hooks", finds), ("channels", gives_up)])
    done = run()

    assert f"hooks: hooks.toml:1: path: in {room.name}\nhooks: hooks.toml:2: " in done.output
    assert "channels: channels.toml:3: token_env: " in done.output
    assert done.exit_code == 1


def test_all_faults_of_a_channel_are_reported_at_once_each_with_its_line(room):
    write_room(room)
    config = '[channels.phone.config]\ntoken_env = "NOT_THERE"\nownr = 3\npoll_timeout_sec = "x"\n'
    (room / "channels.toml").write_text(f'[channels.phone]\nplugin = "telegram"\nevry = 3\n{config}')

    found = [one for one in json.loads(run("--json").output)["faults"] if one["kind"] == "channels"]

    assert sorted(one["line"] for one in found) == [3, 5, 6, 7]
    assert not [one for one in found if "config.token: is missing" in one["told"]], "its variable is reported already"
