"""What an [mcp.<name>] table may say, and how each mistake in it is reported: file, line, key, and what to do."""

from __future__ import annotations

import pytest

from chordage.orchestrator.core.agent import Effect
from chordage.orchestrator.core.errors import RoomError
from chordage.orchestrator.gateways.mcp.servers import Endpoint, McpServer, Program
from chordage.orchestrator.gateways.room.agents import Room

PROGRAM = """model = "m"

[mcp.files]
command = "files-server"
args = ["--root", "/srv"]
cwd = "data"
env = { LOG = "debug", TOKEN_env = "FILES_TOKEN" }
timeout = 5
connect_timeout = 9.5
tools = ["read_*", "list"]
except = ["read_all"]
effect = "idempotent"
required = false
result_limit = 1000

[mcp.files.effects]
list = "pure"
"""
ENDPOINT = """model = "m"
[mcp.search]
url = "https://tools.example/mcp"
token_env = "SEARCH_TOKEN"
headers = { X-Team = "shop", X-Key_env = "SEARCH_KEY" }
"""


def read(folder, text):
    (folder / "agent.toml").write_text(text)
    room = Room(folder)
    return room.servers_of(room.get(None))


def fault(folder, text):
    with pytest.raises(RoomError) as refusal:
        read(folder, text)
    return str(refusal.value)


def test_every_key_of_a_program_reaches_the_definition(tmp_path):
    address = Program(
        command="files-server", args=("--root", "/srv"), env=(("LOG", "debug"),),
        env_from=(("TOKEN", "FILES_TOKEN"),), cwd="data",
    )  # fmt: skip
    assert read(tmp_path, PROGRAM) == (
        McpServer(
            name="files", address=address, place="", timeout=5.0, connect_timeout=9.5, only=("read_*", "list"),
            without=("read_all",), effect=Effect.IDEMPOTENT, effects=(("list", Effect.PURE),), required=False,
            result_limit=1000,
        ),
    )  # fmt: skip


def test_every_key_of_an_address_reaches_the_definition(tmp_path):
    (server,) = read(tmp_path, ENDPOINT)

    assert server.address == Endpoint(
        url="https://tools.example/mcp", headers=(("X-Team", "shop"),), headers_from=(("X-Key", "SEARCH_KEY"),),
        token_from="SEARCH_TOKEN",
    )  # fmt: skip
    assert server.place == "agent.toml:2: mcp.search"
    assert (server.timeout, server.connect_timeout, server.only, server.effect, server.required) == (
        60.0, 30.0, None, None, True,
    )  # fmt: skip


def test_address_may_come_from_the_environment(tmp_path):
    (server,) = read(tmp_path, 'model = "m"\nmcp.zap.url_env = "ZAP_URL"')

    assert server.address == Endpoint(url_from="ZAP_URL")
    assert server.address.shown == "$ZAP_URL"


def test_what_is_shown_holds_no_secret():
    endpoint = Endpoint(url="https://user:pw@tools.example:8443/key-123/mcp?token=x")

    assert endpoint.shown == "https://tools.example:8443"
    assert Program(command="npx", args=("--token", "x")).shown == "npx"


def test_agents_may_have_different_servers_of_one_name(tmp_path):
    (tmp_path / "agents").mkdir()
    (tmp_path / "agents" / "other.toml").write_text('model = "m"\nmcp.search.url = "http://127.0.0.1:1"')
    (tmp_path / "agent.toml").write_text(ENDPOINT)
    room = Room(tmp_path)

    assert [room.servers_of(room.get(name))[0].address.shown for name in room.names()] == [
        "https://tools.example",
        "http://127.0.0.1:1",
    ]


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ("", "2: mcp.x: says neither; give `command` for a server to start here, or `url` (or `url_env`) for one"),
        ('command = "a"\nurl = "http://b"', "2: mcp.x: says command and url; give `command` for a server to start"),
        ('command = "a"\nheaders = {}', "4: mcp.x.headers: does not go with command; take it out"),
        ('url = "http://b"\ncwd = "c"', "4: mcp.x.cwd: does not go with url; take it out"),
        ('url = "b.example"', "3: mcp.x.url: must start with http:// or https://; got 'b.example'"),
        ('command = "a"\nargs = "b"', '4: mcp.x.args: must be a list of texts, like ["one", "two"], or leave it out'),
        ('command = "a"\nenv = { A = 1 }', "4: mcp.x.env: must be a table of texts, or leave it out; got {'A': 1}"),
        ('command = "a"\n[mcp.x.env]\nA = "b"\nA_env = "C"', "6: mcp.x.env.A_env: A is there too; keep one of the"),
        ('command = "a"\ntimeout = 0', "4: mcp.x.timeout: must be a number of seconds, more than 0, or leave it out"),
        ('command = "a"\ntools = []', "4: mcp.x.tools: is empty; name some tools, or leave it out"),
        ('command = "a"\ntools = ["t"]\nexcept = ["t"]', "5: mcp.x.except: 't' is in tools too; keep one of the"),
        ('command = "a"\neffect = "safe"', "4: mcp.x.effect: must be one of pure, idempotent, unsafe; got 'safe'"),
        (
            'command = "a"\n[mcp.x.effects]\nt = "reconcilable"',
            "5: mcp.x.effects.t: must be one of pure, idempotent, unsafe; what became of a call cannot be asked of an",
        ),
        ('command = "a"\ntimeuot = 5', "4: mcp.x.timeuot: there is no such key; did you mean timeout?"),
        ('command = "a"\nrequired = "no"', "4: mcp.x.required: must be true or false, or leave it out; got 'no'"),
    ],
)
def test_mistake_is_reported_with_its_place(table, said, tmp_path):
    assert f"agent.toml:{said}" in fault(tmp_path, f'model = "m"\n[mcp.x]\n{table}\n')


def test_invalid_name_is_reported(tmp_path):
    assert "agent.toml:2: mcp.my server: the name of a server is 1 to 32 letters, digits, _ or -; rename it" in fault(
        tmp_path, 'model = "m"\n[mcp."my server"]\ncommand = "a"\n'
    )


def test_names_whose_tools_would_be_ambiguous_are_reported(tmp_path):
    said = fault(tmp_path, 'model = "m"\n[mcp.shop]\ncommand = "a"\n[mcp.shop_new]\ncommand = "b"\n')

    assert (
        said == "agent.toml:4: mcp.shop_new: its tools could have the names of those of mcp.shop; rename one of the two"
    )


def test_server_that_is_no_table_is_reported(tmp_path):
    assert "agent.toml:2: mcp.x: must be a table" in fault(tmp_path, 'model = "m"\nmcp.x = "npx"\n')


def test_all_mistakes_of_a_file_are_reported_at_once(tmp_path):
    said = fault(tmp_path, '[mcp.x]\ntimeout = 0\n[mcp.y]\nurl = "b"\n')

    assert [line.split(": ")[1] for line in said.splitlines()] == ["model", "mcp.x", "mcp.x.timeout", "mcp.y.url"]
