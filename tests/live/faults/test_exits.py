"""A tool that ends the process ends its own call, and no worker."""

from __future__ import annotations

import pytest

from support.rig import Plan

pytestmark = [pytest.mark.redis, pytest.mark.slow]
SLOTS = 4
TOOLS = ("parses", "interrupts", "parses", "interrupts")


@pytest.mark.parametrize("pool", ["threads", "prefork"])
def test_as_many_exits_as_there_are_slots_are_as_many_tool_errors(pool, make_rig, migrated_database_url):
    rig = make_rig(migrated_database_url("sqlite"), lease=6, beat=2, sweep=1)
    agent = rig.room / "agent.toml"
    agent.write_text(agent.read_text().replace('tools = ["rig_tools"]', 'tools = ["rig_tools", "rig_exits"]'))
    worker = rig.worker("all", "--role", "all", "--pool", pool, "--concurrency", str(SLOTS))
    rig.ready()

    rig.submit(Plan(id="exits", tools=TOOLS))
    rig.wait_until_done()
    rig.submit(Plan(id="after", tools=("pure",) * SLOTS))
    rig.wait_until_done()

    calls = {row["place"]: row for row in rig.rows("calls") if row["tool"] in TOOLS}
    assert [(calls[n]["status"], calls[n]["code"]) for n in range(SLOTS)] == [("failed", "raised")] * SLOTS
    assert all("tried to end its process with" in row["content"] for row in calls.values())
    assert len([fact for fact in rig.facts(what="tool", phase="begin") if fact["name"] in TOOLS]) == SLOTS
    assert {row["disposition"] for row in rig.rows("turns")} == {"answered"}
    assert worker.alive
