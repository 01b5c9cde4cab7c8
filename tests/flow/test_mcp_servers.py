"""Turns of an agent with an MCP server: the cost of an absent server, and no connection held during a call."""

from __future__ import annotations

import pytest

from chordage.orchestrator.core.client_tools import ClientTool
from chordage.orchestrator.core.errors import RoomError
from chordage.orchestrator.gateways.mcp.link import LinkRules
from chordage.orchestrator.gateways.mcp.tools import McpServers
from chordage.orchestrator.gateways.room.agents import Room
from chordage.orchestrator.store.database import Store
from support.fakes import FakeModels, asking, spoken
from support.old_mcp_server import OldHttpServer
from support.world import World


@pytest.fixture
def server():
    one = OldHttpServer()
    yield one
    one.close()


@pytest.fixture
def world(database_url, tmp_path, server):
    (tmp_path / "agent.toml").write_text(f'model = "m"\nname = "agent"\n[mcp.shop]\nurl = "{server.url}"\n')
    room = Room(tmp_path, environ={})
    room.servers = McpServers(tmp_path, environ={}, rules=LinkRules(patience=0.0, longest=0.01))
    made = World(Store(database_url), agents=room, tools=room.toolbox, models=FakeModels())
    yield made
    made.close()
    room.close()


def carry_on(world):
    """As long as something is left to do; rescue sends again what could not be done."""
    for _ in range(12):
        while world.pending:
            try:
                world.deliver(world.pending.pop(0))
            except RoomError:
                world.forget_the_dead()
        if not world.unfinished():
            return
        world.sweep(seconds=2000)


def test_a_required_server_that_stays_away_ends_the_run_and_is_named(world, server):
    server.status = 503
    turn = world.submit()

    carry_on(world)

    run = world.row("runs")
    assert (run["code"], world.row("turns", id=turn)["disposition"]) == ("agent", "failed")
    assert "agent.toml:3: mcp.shop: the server did not list its tools" in run["detail"]
    assert "HTTP 503 Service Unavailable" in run["detail"]


def test_a_required_server_that_comes_back_in_time_costs_nothing_but_time(world, server):
    server.status = 503
    turn = world.submit()
    with pytest.raises(RoomError):
        world.run_dry()
    server.status = 200
    world.forget_the_dead()

    carry_on(world)

    assert world.row("turns", id=turn)["disposition"] == "answered"


def test_message_with_tools_of_its_caller_waits_for_a_server_like_any_other(world, server):
    server.status = 503
    turn = world.submit(client_tools=(ClientTool(name="pick", description="", schema={"type": "object"}),))
    server.status = 200
    world.forget_the_dead()

    carry_on(world)

    assert world.row("turns", id=turn)["disposition"] == "answered"
    assert {"pick", "shop_add"} <= {offer.name for offer in world.models.prompts[0].offers}


def test_no_database_connection_is_held_during_a_server_call(world, server):
    held = []
    server.on_post = lambda: held.append(
        [engine.pool.checkedout() for engine in (world.store.engine, world.store.plain)]
    )
    replies = iter([asking(("shop_add", {"a": 1, "b": 2})), spoken("three")])
    world.models.script = lambda prompt: next(replies)

    world.submit()
    world.run_dry()

    assert world.row("calls")["content"] == "3"
    assert len(held) > 4
    assert set(map(tuple, held)) == {(0, 0)}
