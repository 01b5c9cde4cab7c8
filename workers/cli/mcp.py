"""`chordage mcp`: the MCP servers of the room, asked here and now."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import click

from chordage.workers.cli.output import busy, json_option, print_json, print_table, say

if TYPE_CHECKING:
    from chordage.orchestrator.gateways.mcp.tools import Probe
    from chordage.orchestrator.gateways.room.agents import Room

    Probed = tuple[str, Probe]  # the agent, and what came of one of its servers

SERVERS = ("server", "agent", "state", "tools", "took", "transport", "where", "says it is")
TOOLS = ("tool", "agent", "effect", "name there", "description")
EMPTY = "no agent here has MCP servers; an [mcp.NAME] table in agent.toml with `command` or `url` gives it one"


@click.command()
@click.option("--agent", help="Only of this agent.")
@click.option("--tools", "with_tools", is_flag=True, help="List the tools, as the model is offered them.")
@json_option
def mcp(agent: str | None, with_tools: bool, as_json: bool) -> None:
    """Connect to every MCP server of the room from here, and list what it offers.

    Programs are started, and ended again. Exit code 1 if one cannot be used, or an agent file is broken.
    """
    from chordage.workers.bootstrap import room_from
    from chordage.workers.cli.opened import settings_of_command

    room = room_from(settings_of_command())
    logging.getLogger("chordage.orchestrator.gateways.mcp").setLevel(logging.ERROR)  # it is all told below
    try:
        with busy("connecting …"):
            probed = _probed(room, room.names() if agent is None else [agent])
    finally:
        room.close()
    faults = [] if agent else [str(fault) for fault in room.faults]
    if as_json:
        print_json([_plain(*one) for one in probed])
    else:
        _print(probed, with_tools=with_tools)
    failed = [*faults, *(one.error for _, one in probed if one.error)]
    for text in [*failed, *_remarks(probed)]:
        say(f"chordage: {text}", err=True)
    raise click.exceptions.Exit(1 if failed else 0)


def _probed(room: Room, agents: Sequence[str]) -> list[Probed]:
    asked = [(name, server) for name in agents for server in room.servers_of(room.get(name))]
    found = room.servers.probe([server for _, server in asked])
    return [(name, one) for (name, _), one in zip(asked, found, strict=True)]


def _print(probed: Sequence[Probed], *, with_tools: bool) -> None:
    if with_tools:
        rows = [row for name, one in probed for row in _tool_rows(name, one)]
        print_table(TOOLS, rows, empty="no tools" if probed else EMPTY)
    else:
        print_table(SERVERS, [_server_row(*one) for one in probed], empty=EMPTY)


def _server_row(agent: str, one: Probe) -> tuple[object, ...]:
    address = one.server.address
    return (
        one.server.name, agent, _state(one), None if one.error else len(one.offers), f"{one.seconds:.1f} s",
        address.kind, address.shown, one.health.version,
    )  # fmt: skip


def _tool_rows(agent: str, one: Probe) -> Iterator[tuple[object, ...]]:
    for offer in one.offers:
        yield offer.name, agent, offer.effect, offer.tool, offer.description


def _state(one: Probe) -> str:
    return "failed" if one.error else one.health.state.value


def _remarks(probed: Sequence[Probed]) -> Iterator[str]:
    for _, one in probed:
        yield from (f"{one.server.place}: {remark}" for remark in one.remarks)


def _plain(agent: str, one: Probe) -> dict[str, Any]:
    server, health = one.server, one.health
    return {
        "server": server.name,
        "agent": agent,
        "state": _state(one),
        "error": one.error,
        "required": server.required,
        "transport": server.address.kind,
        "where": server.address.shown,
        "seconds": round(one.seconds, 3),
        "version": health.version,
        "protocol": health.protocol,
        "remarks": one.remarks,
        "tools": [
            {"name": offer.name, "tool": offer.tool, "effect": offer.effect, "description": offer.description}
            for offer in one.offers
        ],
    }
