"""What is found wrong with a server before anything is started: the package, variables, programs, folders."""

from __future__ import annotations

import subprocess
import sys

import pytest

from chordage.orchestrator.core.errors import ConfigError, RoomError
from chordage.orchestrator.gateways.mcp.servers import check
from chordage.orchestrator.gateways.room.agents import Room
from chordage.workers.bootstrap import check_agent, models_of
from support.plain_room import agent_faults

PATH = {"PATH": "/usr/bin:/bin"}


def server(folder, table, environ=PATH):
    (folder / "agent.toml").write_text(f'model = "scripted:s.yaml"\n[mcp.x]\n{table}\n')
    (folder / "s.yaml").write_text("- text: hi\n")
    room = Room(folder, environ=environ)
    return room, room.servers_of(room.get(None))[0]


def fault(folder, table, environ=PATH):
    room, one = server(folder, table, environ)
    with pytest.raises(ConfigError) as refusal:
        room.servers.check(one)
    return str(refusal.value)


def test_missing_package_is_reported_with_its_extra(tmp_path):
    def without(_name):
        raise ModuleNotFoundError("No module named 'mcp'")

    _room, one = server(tmp_path, 'command = "sh"')
    with pytest.raises(ConfigError) as refusal:
        check(one, PATH, tmp_path, load=without)

    assert str(refusal.value) == (
        "agent.toml:2: mcp.x: MCP servers need the package mcp, 2.3 or newer (No module named 'mcp'): "
        "install chordage with its extra, as in `pip install 'chordage[mcp]'`"
    )


@pytest.mark.parametrize(
    ("table", "key", "variable"),
    [
        ('command = "sh"\nenv = { TOKEN_env = "NOT_THERE" }', "env.TOKEN_env", "NOT_THERE"),
        ('url = "http://a"\ntoken_env = "NO_TOKEN"', "token_env", "NO_TOKEN"),
        ('url = "http://a"\nheaders = { X-Key_env = "NO_KEY" }', "headers.X-Key_env", "NO_KEY"),
        ('url_env = "NO_URL"', "url_env", "NO_URL"),
    ],
)
def test_missing_variable_is_reported_with_file_key_and_name(table, key, variable, tmp_path):
    said = fault(tmp_path, table, PATH | {variable: " "})

    assert said == f"agent.toml:2: mcp.x.{key}: variable {variable} is not set; set it in the environment"


def test_variable_that_cannot_be_sent_is_reported_without_its_value(tmp_path):
    said = fault(tmp_path, 'url = "http://a"\ntoken_env = "TOKEN"', {"TOKEN": "abc\n"})

    assert said == "agent.toml:2: mcp.x.token_env: TOKEN holds characters that cannot be sent; set it anew"


def test_variable_without_an_address_is_reported(tmp_path):
    said = fault(tmp_path, 'url_env = "URL"', {"URL": "tools.example"})

    assert said == "agent.toml:2: mcp.x.url_env: URL must hold an address with http:// or https://"


def test_missing_program_is_reported(tmp_path):
    assert fault(tmp_path, 'command = "no-such-program"') == (
        "agent.toml:2: mcp.x.command: there is no program 'no-such-program' on the PATH; install it"
    )
    assert f"there is no program './serve' at {tmp_path / 'serve'}" in fault(tmp_path, 'command = "./serve"')


def test_a_program_is_looked_for_where_the_server_will_look(tmp_path):
    tools = tmp_path / "bin"
    tools.mkdir()
    (tools / "serve").write_text("#!/bin/sh\n")
    (tools / "serve").chmod(0o755)
    room, one = server(tmp_path, f'command = "serve"\nenv = {{ PATH = "{tools}" }}')

    room.servers.check(one)


def test_missing_folder_is_reported(tmp_path):
    assert fault(tmp_path, 'command = "sh"\ncwd = "data"') == (
        f"agent.toml:2: mcp.x.cwd: there is no folder {tmp_path / 'data'}; a path is relative to the room"
    )


def check_worker(room, time_limit):
    check_agent(room, models_of(room), room.get(None), time_limit=time_limit)


def test_a_room_is_checked_without_starting_anything(tmp_path):
    room, _one = server(tmp_path, f'command = "touch"\nargs = ["{tmp_path / "started"}"]')

    assert agent_faults(tmp_path, PATH) == []
    check_worker(room, 900)

    assert not (tmp_path / "started").exists()


def test_what_a_required_server_lacks_is_a_fault_of_the_room_and_of_an_optional_one_is_not(tmp_path):
    room, _one = server(tmp_path, 'command = "no-such-program"')
    assert ["there is no program" in fault for fault in agent_faults(tmp_path, PATH)] == [True]

    room, _one = server(tmp_path, 'command = "no-such-program"\nrequired = false')
    assert agent_faults(tmp_path, PATH) == []
    assert room.toolbox.specs(room.get(None)) == {}


def test_a_call_of_a_server_that_lacks_something_is_a_tool_error(tmp_path):
    room, _one = server(tmp_path, 'command = "no-such-program"')
    with pytest.raises(ConfigError, match="there is no program"):
        room.toolbox.specs(room.get(None))


def test_call_limit_above_that_of_the_worker_is_refused_at_the_start(tmp_path):
    room, _one = server(tmp_path, 'command = "sh"\ntimeout = 890')

    with pytest.raises(RoomError, match=r"agent.toml:2: mcp.x: a call may take 920 s .* ends a call after 900 s"):
        check_worker(room, 900)
    check_worker(room, 921)


def test_the_package_is_not_loaded_by_a_room_without_servers(tmp_path):
    (tmp_path / "agent.toml").write_text('model = "m"')
    script = (
        "import sys; from pathlib import Path; from chordage.orchestrator.gateways.room.agents import Room;"
        "room = Room(Path(sys.argv[1])); room.check_tools(room.get(None)); print({'mcp', 'httpx2'} & set(sys.modules))"
    )

    done = subprocess.run([sys.executable, "-c", script, tmp_path], capture_output=True, text=True, check=True)

    assert done.stdout == "set()\n"
