"""Runs in real processes with tools of an MCP server: it dies in a call, its worker dies, and the work continues."""

from __future__ import annotations

import os
import signal
import sys

import pytest

from support.mcp_kit import SCRIPT, is_alive
from support.rig import Plan
from support.waiting import until

pytestmark = [pytest.mark.redis, pytest.mark.slow]

AGENT = """
model = "scripted:mcp.yaml"
[mcp.kit]
command = "{python}"
args = ["{script}", "{folder}"]
"""
MODEL = """
- {when: linger, tool_calls: [{name: kit_linger_long, arguments: {}}]}
- {when: linger, text: "It ended so: {results}"}
- {when: add, tool_calls: [{name: kit_add, arguments: {a: 20, b: 22}}]}
- {when: add, text: "The sum is {results}."}
"""


@pytest.fixture
def rig(make_rig, migrated_database_url):
    rig = make_rig(migrated_database_url("sqlite"))
    (rig.room / "agents").mkdir(exist_ok=True)
    text = AGENT.format(python=sys.executable, script=SCRIPT, folder=rig.folder)
    (rig.room / "agents" / "kit.toml").write_text(text)
    (rig.room / "mcp.yaml").write_text(MODEL)
    rig.worker("turns", "--role", "turns", "--concurrency", "4")
    rig.worker("tools", "--role", "tools", "--concurrency", "1")
    rig.ready()
    return rig


def servers(rig):
    return [int(line) for line in (rig.folder / "started").read_text().split()]


def test_a_server_that_dies_in_a_call_costs_a_tool_error_and_the_next_turn_works(rig):
    cut = rig.submit(Plan(id="linger"), "thread", agent="kit")
    lingering = rig.folder / "lingering"
    until(lambda: lingering.exists() and lingering.read_text(), "the server is in the call")

    os.kill(int(lingering.read_text()), signal.SIGKILL)
    rig.wait_until_done()
    after = rig.submit(Plan(id="add"), "thread", agent="kit")
    rig.wait_until_done()

    assert {row["disposition"] for row in rig.rows("turns")} == {"answered"}
    call = rig.row("calls", tool="kit_linger_long")
    assert (call["status"], call["code"], call["effect"]) == ("failed", "mcp_connection_lost", "unsafe")
    assert "It is not known whether it took effect: it may have." in rig.answer(cut)
    assert rig.answer(after) == "The sum is 42."
    assert len(servers(rig)) == 3, "one of the turns worker, two of a child of the tools worker, none of its parent"

    for worker in rig.workers.values():
        os.kill(worker.pid, signal.SIGTERM)
    until(lambda: not any(map(is_alive, servers(rig))), "no server outlives the workers")
