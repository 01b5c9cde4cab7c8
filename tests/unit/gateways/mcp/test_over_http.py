"""What is peculiar to HTTP, with a server of an older protocol: sessions, status codes, headers, pages of tools."""

from __future__ import annotations

import threading

import pytest

from chordage.orchestrator.core.errors import Aborted
from chordage.orchestrator.gateways.mcp.errors import ServerUnreachable
from support.mcp_kit import Kit
from support.old_mcp_server import OldHttpServer
from support.waiting import until

TABLE = """model = "m"
[mcp.kit]
url_env = "KIT_URL"
token_env = "KIT_TOKEN"
[mcp.kit.headers]
X-Team = "shop"
X-Key_env = "KIT_KEY"
"""


@pytest.fixture
def server():
    one = OldHttpServer()
    yield one
    one.close()


@pytest.fixture
def kit(server, tmp_path, monkeypatch):
    for name, value in {"URL": server.url, "TOKEN": "token-1", "KEY": "key-1"}.items():
        monkeypatch.setenv(f"KIT_{name}", value)
    one = Kit(tmp_path, "http")
    (tmp_path / "agent.toml").write_text(TABLE)
    yield one
    one.close()


def test_all_pages_of_the_list_are_read(kit):
    assert list(kit.specs()) == ["kit_add", "kit_pid", "kit_linger_long", "kit_die", "kit_odd", "kit_gone"]
    assert kit.health().protocol == "2025-06-18"


def test_what_the_environment_holds_is_sent(kit, server):
    kit.specs()

    assert server.headers["Authorization"] == "Bearer token-1"
    assert (server.headers["X-Team"], server.headers["X-Key"]) == ("shop", "key-1")


def test_server_that_lost_the_session_is_called_once_more_in_a_new_one(kit, server):
    assert kit.call("kit_add", a=1, b=1).content == "2"
    server.session = "second"

    assert kit.call("kit_add", a=2, b=2).content == "4"

    assert server.calls == 2
    assert kit.health().connections == 2


def test_refusal_is_reported_with_its_status(kit, server):
    server.status = 401

    with pytest.raises(ServerUnreachable, match="HTTP 401 Unauthorized") as refusal:
        kit.specs()

    assert "secret" not in str(refusal.value)


def test_an_error_of_the_protocol_is_a_tool_error(kit):
    outcome = kit.call("kit_gone")

    assert outcome.code == "mcp_error"
    assert "MCP server 'kit' answered kit_gone with an error: Unknown tool: gone (-32602)" in outcome.content


def test_unexpected_answer_is_a_tool_error_that_warns_that_the_tool_was_run(kit):
    outcome = kit.call("kit_odd")

    assert outcome.code == "mcp_bad_answer"
    assert "kit_odd was run, but the answer of MCP server 'kit' is not what it promises: " in outcome.content


def test_stale_list_is_requested_again(kit, server):
    kit.rules(listing_lives=0.0)
    before = kit.specs()
    server.names = ("add", "new")

    assert list(kit.specs()) == ["kit_add", "kit_new"] != list(before)


def test_a_list_that_is_long_in_coming_holds_no_turn_up(kit, server):
    kit.rules(listing_lives=0.0, news_patience=0.1)
    before = kit.specs()
    goes_on = threading.Event()
    server.on_post = goes_on.wait

    assert kit.specs() == before

    goes_on.set()


def test_a_call_that_is_cancelled_while_it_connects_ends_at_once(kit, server):
    asked, goes_on = threading.Event(), threading.Event()
    server.on_post = lambda: asked.set() or goes_on.wait()

    class Cancelled:
        def check(self):
            if asked.is_set():
                raise Aborted

    with pytest.raises(Aborted):
        kit.call("kit_add", abort=Cancelled(), a=1, b=1)

    goes_on.set()
    assert kit.call("kit_add", a=1, b=1).content == "2"


def test_an_optional_server_that_hangs_holds_no_turn_up_twice(kit, server):
    (kit.folder / "agent.toml").write_text(f'model = "m"\n[mcp.kit]\nurl = "{server.url}"\nrequired = false\n')
    kit.rules(news_patience=0.1)
    server.status = 500
    assert kit.specs() == {}
    goes_on = threading.Event()
    server.status, server.on_post = 200, goes_on.wait

    assert kit.specs() == {}

    goes_on.set()
    until(lambda: kit.specs() != {}, "the server is connected to beside")


def test_error_in_a_call_is_reported_with_its_status(kit, server):
    kit.specs()
    server.status = 503

    outcome = kit.call("kit_add", a=1, b=1)

    assert outcome.code == "mcp_error"
    assert "HTTP 503 Service Unavailable" in outcome.content
