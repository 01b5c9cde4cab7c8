"""The digest of an agent, from the files of its room: what changes it, what does not, and what is never in it."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from dataclasses import replace

import pytest

from chordage.orchestrator.gateways.room.agents import Room

AGENT = """\
model = "local:small"
instructions_file = "ada.md"
tools = ["{module}:search", "{module}:count"]
[params]
temperature = 0.5
[models.local]
base_url = "http://user:hunter2@models.example/v1?key=hunter2"
api_key_env = "LOCAL_KEY"
headers = {{ Trace = "hunter2", Team_env = "TEAM" }}
[mcp.shop]
command = "/bin/true"
args = ["--token", "hunter2"]
env = {{ REGION = "hunter2", KEY_env = "SHOP_KEY" }}
[mcp.web]
url = "https://tools.example/mcp/hunter2"
token_env = "WEB_TOKEN"
[prices]
"local:small" = {{ input = 1, output = 2 }}
"""


@pytest.fixture
def module(request):
    """Python keeps a module of a name: each test has its own."""
    return f"digest_tools_{abs(hash(request.node.name)) % 10**8}"


@pytest.fixture
def ada(folder, module):
    folder.write(f"{module}.py", _TOOLS)
    folder.write("ada.md", "Be kind.\n")
    folder.agent(AGENT.format(module=module))
    return folder


_TOOLS = '''
from chordage import tool

@tool
def search(query: str) -> str:
    """Search the archive."""
    return query

@tool(effect="pure")
def count(text: str) -> int:
    return len(text)
'''


def digest(room: Room) -> str:
    return room.version(room.get("agent")).digest


def changed(folder, old: str, new: str, name: str = "agent.toml") -> None:
    text = (folder.path / name).read_text()
    assert old in text
    folder.write(name, text.replace(old, new))


def test_the_same_files_have_the_same_digest_in_another_folder_and_process(ada, tmp_path):
    other = tmp_path / "elsewhere"
    shutil.copytree(ada.path, other)
    script = """
import sys
from pathlib import Path
from chordage.orchestrator.gateways.room.agents import Room
room = Room(Path(sys.argv[1]))
print(room.version(room.get("agent")).digest)
"""
    made = [
        subprocess.run(
            [sys.executable, "-c", script, str(path)], env={"PYTHONHASHSEED": seed}, capture_output=True, text=True,
            check=True,
        ).stdout.strip()
        for path, seed in ((ada.path, "1"), (other, "2"))
    ]  # fmt: skip

    assert made == [digest(ada.open())] * 2


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("temperature = 0.5", "temperature = 0.6"),
        ('"local:small"\ninstructions', '"local:large"\ninstructions'),
        ("models.example", "models2.example"),
        ("?key=hunter2", "?key=hunter3"),
        ('"--token"', '"--secret"'),
        ('REGION = "hunter2"', 'REGION = "hunter3"'),
        ('"SHOP_KEY"', '"OTHER_KEY"'),
        ("mcp/hunter2", "mcp/hunter3"),
        ("[mcp.web]", "[limits]\nmax_rounds = 3\n[mcp.web]"),
        ('Trace = "hunter2"', 'Trace = "hunter3"'),
    ],
)  # fmt: skip
def test_what_the_file_says_changes_it(ada, old, new):
    room = ada.open()
    before = digest(room)

    changed(ada, old, new)

    assert digest(room) != before


def test_instructions_in_a_file_of_their_own_change_it(ada):
    room = ada.open()
    before = digest(room)

    ada.write("ada.md", "Be brief.\n")

    assert digest(room) != before


@pytest.mark.parametrize(
    ("old", "new"),
    [("query: str", "query: str, limit: int = 5"), ('effect="pure"', 'effect="unsafe"'), ("the archive", "the web")],
    ids=["schema", "effect", "description"],
)
def test_what_a_tool_declares_changes_it(ada, module, old, new):
    before = digest(ada.open())

    changed(ada, old, new, f"{module}.py")
    del sys.modules[module]  # as in a process that starts now

    assert digest(ada.open()) != before


def test_neither_comments_nor_the_order_of_keys_nor_prices_nor_variables_change_it(ada):
    before = digest(ada.open())

    changed(
        ada,
        'model = "local:small"\ninstructions_file = "ada.md"',
        'instructions_file="ada.md" # x\nmodel="local:small"',
    )
    changed(ada, "input = 1, output = 2", "input = 9, output = 9")

    assert digest(ada.open(environ={"SHOP_KEY": "other", "LOCAL_KEY": "other"})) == before


def test_another_agent_of_the_room_does_not_change_it(ada):
    room = ada.open()
    before = digest(room)

    ada.agent('model = "m"', "agents/bob.toml")

    assert digest(room) == before


def test_no_secret_is_in_the_definition(ada):
    environ = {"SHOP_KEY": "from-env", "LOCAL_KEY": "from-env", "WEB_TOKEN": "from-env", "TEAM": "from-env"}
    room = ada.open(environ=environ)

    text = json.dumps(room.version(room.get("agent")).definition)

    assert "hunter2" not in text
    assert "from-env" not in text
    assert all(variable in text for variable in environ)


def test_an_agent_has_its_digest_where_turns_are_carried_out(ada):
    room = ada.open()
    assert (room.get("agent").digest, room.digests()) == ("", {})

    room.require(lambda _agent: None)

    assert room.get("agent").digest == digest(room)
    assert room.digests() == {"agent": digest(room)}


def test_an_agent_is_the_same_object_while_no_file_changes(ada):
    room = ada.open()
    room.require(lambda _agent: None)

    assert room.get("agent") is room.get("agent")


def test_a_broken_file_leaves_the_version_that_serves(ada):
    room = ada.open()
    room.require(lambda _agent: None)
    before = room.get("agent").digest

    ada.agent("no toml at all")

    assert room.get("agent").digest == before


def test_an_agent_that_is_gone_leaves_the_digests(ada):
    ada.agent('model = "m"', "agents/bob.toml")
    room = ada.open()
    room.require(lambda _agent: None)
    room.get("bob")
    room.get("agent")
    assert sorted(room.digests()) == ["agent", "bob"]

    (ada.path / "agents" / "bob.toml").unlink()
    room.get("agent")

    assert sorted(room.digests()) == ["agent"]


def test_a_stored_version_has_the_tools_it_names_as_far_as_the_code_has_them(ada, module):
    ada.agent(
        f'model = "local:small"\ntools = ["{module}:search", "{module}:count"]\n[models.local]\nwire = "openai"\n'
    )
    room = ada.open()
    today = room.get(None)
    names = ("search", "gone")
    pinned = replace(today, tools=(f"{module}:search", f"{module}:gone"), digest="d" * 32, pinned_tools=names)

    assert set(room.toolbox.specs(pinned)) == {"search"}
    assert room.toolbox.invalid(pinned, "search", {"query": "x"}) is None
    told = room.toolbox.invalid(pinned, "gone", {})
    assert told == (
        f"gone was not run: it belongs to version {'d' * 12} of agent agent, with which this run began, and today's "
        "code does not have it. Operators: `chordage agents agent --adopt`, or put the tool back."
    )
    assert "search" in (room.toolbox.invalid(pinned, "count", {}) or "")
