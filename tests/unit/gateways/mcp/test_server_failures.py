"""A server that dies, hangs, or was never there: a tool error each time, and the next call finds the way again."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest

from chordage.orchestrator.core.errors import Aborted, RoomError
from chordage.orchestrator.gateways.mcp.errors import ServerUnreachable
from chordage.orchestrator.gateways.mcp.link import ServerState
from support.mcp_kit import TRANSPORTS, is_alive
from support.waiting import PATIENCE, until


@contextmanager
def lingering(kit):
    """A call that does not end by itself; the server is in it."""
    (kit.folder / "lingering").unlink(missing_ok=True)
    with ThreadPoolExecutor(1) as threads:
        call = threads.submit(kit.call, "kit_linger_long")
        until((kit.folder / "lingering").exists, "the server is in the call", pause=0.02)
        yield call


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_server_that_dies_in_a_call_gives_a_tool_error_and_the_next_call_works(transport, make_kit):
    kit = make_kit(transport)
    kit.start()
    with lingering(kit) as call:
        kit.kill()
        outcome = call.result(PATIENCE)

    assert outcome.code == "mcp_connection_lost"
    assert "the connection to MCP server 'kit' was lost while kit_linger_long was running" in outcome.content
    assert outcome.content.endswith("whether it took effect: it may have. Find out before you call it again.")
    assert kit.health().state is ServerState.LOST
    kit.start()
    assert kit.call("kit_pid").content == str(kit.pids[1])
    assert (kit.health().state, kit.health().connections) == (ServerState.CONNECTED, 2)


def test_last_output_of_a_dying_server_is_reported_with_what_may_be_called_again(make_kit):
    kit = make_kit("old", '[mcp.kit.effects]\ndie = "pure"\n"linger.long" = "idempotent"')

    died = kit.call("kit_die", words="out of memory").content
    with lingering(kit) as call:
        kit.kill()

    assert "(the connection was closed; it said last: out of memory)" in died
    assert died.endswith("It changes nothing, so it may be called again.")
    assert call.result().content.endswith("calling it again with the same arguments does no harm.")


@pytest.mark.parametrize("transport", ["old", "http"])
def test_server_that_died_between_calls_does_not_disturb_the_next_call(transport, make_kit):
    kit = make_kit(transport)
    kit.start()
    kit.call("kit_pid")
    kit.kill()
    until(lambda: kit.health().state is not ServerState.CONNECTED, "the end of the connection is seen", pause=0.02)
    kit.start()

    assert kit.call("kit_add", a=1, b=1).content == "2"


@pytest.mark.parametrize("transport", ["old", "http"])
def test_hanging_server_gives_a_timeout_and_is_connected_to_again(transport, make_kit):
    kit = make_kit(transport)
    kit.agent("timeout = 0.4", file="agents/hasty.toml")
    kit.start()

    outcome = kit.call("kit_linger_long", agent="hasty")

    assert outcome.code == "timeout"
    assert "kit_linger_long did not answer within 0.4 s and was told to stop. It is not known" in outcome.content
    assert kit.health().error == "it did not answer within 0.4 s"
    assert kit.call("kit_add", a=1, b=1).content == "2"
    assert kit.health().connections == 2


def test_a_program_that_hangs_is_ended(make_kit):
    kit = make_kit("old", "timeout = 0.2")
    (kit.folder / "stubborn").touch()  # it does not mind that its input ends
    assert kit.call("kit_linger_long").code == "timeout"

    until(lambda: not is_alive(kit.pids[0]), "the program is gone")


def test_a_call_beside_one_that_is_too_late_is_not_cut(make_kit):
    kit = make_kit("old")
    kit.agent("timeout = 0.3", file="agents/hasty.toml")
    with lingering(kit) as call:
        assert kit.call("kit_linger_long", agent="hasty").code == "timeout"
        assert kit.health().connections == 1
        (kit.folder / "gate").touch()

        assert call.result(PATIENCE).content == "the gate is open"


def test_a_call_that_is_cancelled_ends_at_once_and_leaves_the_connection(make_kit):
    kit = make_kit("old")

    class Cancelled:
        def check(self):
            if (kit.folder / "lingering").exists():
                raise Aborted

    with pytest.raises(Aborted):
        kit.call("kit_linger_long", abort=Cancelled())

    (kit.folder / "gate").touch()
    assert kit.call("kit_add", a=1, b=1).content == "2"
    assert kit.health().connections == 1


def test_a_server_that_keeps_dying_is_not_hammered(make_kit):
    kit = make_kit("old")
    kit.rules(first=60, longest=60, patience=0)
    codes = [kit.call("kit_die").code for _ in range(2)]

    refused = kit.call("kit_die")

    assert codes == ["mcp_connection_lost"] * 2
    assert refused.code == "mcp_unavailable"
    assert "kit_die was not run, because MCP server 'kit' cannot be used: " in refused.content
    assert "it is not tried again for " in refused.content
    assert len(kit.pids) == 2


def test_required_server_that_cannot_be_listed_is_named_with_its_error(make_kit):
    kit = make_kit("old")
    (kit.folder / "broken").touch()

    with pytest.raises(ServerUnreachable) as refusal:
        kit.specs()

    said = str(refusal.value)
    assert said.startswith("agent.toml:3: mcp.kit: the server did not list its tools: ")
    assert "it said last: I am broken" in said
    assert "with `required = false` the agent works without it" in said
    assert kit.health().state is ServerState.UNREACHABLE


def test_address_without_a_listener_is_reported(make_kit):
    with pytest.raises(ServerUnreachable, match="ConnectError: All connection attempts failed"):
        make_kit("http").specs()


def test_without_an_optional_server_the_agent_has_its_other_tools(make_kit):
    kit = make_kit("http")
    kit.agent("required = false", ahead='tools = ["builtin:calculate"]')

    assert list(kit.specs()) == ["calculate"]


def test_a_server_that_is_down_hinders_no_other_tool(make_kit):
    kit = make_kit("http")
    kit.agent(ahead='tools = ["builtin:calculate"]')

    assert kit.call("calculate", expression="2 + 2").content == "4"
    assert kit.call("kit_add", a=1, b=1).code == "mcp_unavailable"


def test_the_last_known_tools_are_offered_while_a_server_is_away(make_kit):
    kit = make_kit("http")
    kit.start()
    before = kit.specs()
    kit.kill()

    assert kit.call("kit_add", a=1, b=1).code == "mcp_unavailable"
    assert kit.specs() == before


def test_server_that_does_not_answer_in_time_is_given_up(make_kit):
    kit = make_kit()
    (kit.folder / "agent.toml").write_text(
        'model = "m"\n[mcp.kit]\ncommand = "sleep"\nargs = ["60"]\nconnect_timeout = 0.2\n'
    )

    with pytest.raises(ServerUnreachable, match=r"did not list its tools: it did not answer within 0.2 s"):
        kit.specs()


def test_calls_of_many_threads_share_one_connection(make_kit):
    kit = make_kit("old")
    with ThreadPoolExecutor(8) as threads:
        results = list(threads.map(lambda n: kit.call("kit_add", a=n, b=1).content, range(24)))

    assert results == [str(n + 1) for n in range(24)]
    assert len(kit.pids) == kit.health().connections == 1


def test_tool_with_the_name_of_a_function_of_the_room_is_reported(make_kit):
    kit = make_kit("old")
    (kit.folder / "clashing.py").write_text(
        "from chordage import tool\n@tool(effect='pure')\ndef kit_add(a: int) -> str:\n    return 'ours'\n"
    )
    kit.agent(ahead='tools = ["clashing"]')

    with pytest.raises(RoomError, match=r"mcp.kit: a tool of the server would be called kit_add, like a function in"):
        kit.specs()

    kit.agent('except = ["add"]', ahead='tools = ["clashing"]')
    assert kit.specs()["kit_add"].schema["required"] == ["a"]
    assert kit.call("kit_add", a=1).content == "ours"


def test_the_connections_of_a_table_that_is_gone_are_left(make_kit):
    kit = make_kit("old")
    kit.call("kit_pid")
    (kit.folder / "agent.toml").write_text('model = "m"\n')

    kit.specs()

    until(lambda: kit.alive() == [], "the server has ended")


def test_closing_ends_the_server_and_what_comes_later_starts_anew(make_kit):
    kit = make_kit("old")
    kit.call("kit_pid")

    kit.room.close()

    assert kit.alive() == []
    assert kit.call("kit_add", a=1, b=1).content == "2"
