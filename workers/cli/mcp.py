"""`chordage mcp`: connect to the MCP servers of the room from here."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import click

from chordage.workers.cli.context import command_settings
from chordage.workers.cli.output import busy, json_option, print_json, print_table, say

if TYPE_CHECKING:
    from chordage.orchestrator.gateways.mcp.tools import Probe

SERVERS = ("server", "agent", "state", "tools", "took", "transport", "where", "says it is")
TOOLS = ("tool", "agent", "effect", "name there", "description")
EMPTY = "no agent here has MCP servers; an [mcp.NAME] table in agent.toml with `command` or `url` gives it one"


@click.command()
@click.option("--agent", help="Only of this agent.")
@click.option("--tools", "with_tools", is_flag=True, help="List the tools, as they are offered to the model.")
@json_option
def mcp(agent: str | None, with_tools: bool, as_json: bool) -> None:
    """Connect to every MCP server of the room from here, and list what it offers.

    Server programs are started, and ended again. Exit code 1 if a server cannot be used, or an agent file is broken.
    """
    from chordage.workers.bootstrap import room_from

    room = room_from(command_settings())
    logging.getLogger("chordage.orchestrator.gateways.mcp").setLevel(logging.ERROR)  # printed below
    try:
        with busy("connecting …"):
            agents = room.names() if agent is None else [agent]
            servers = [(name, server) for name in agents for server in room.servers_of(room.get(name))]
            probes = room.servers.probe([server for _, server in servers])
            probed = [(name, probe) for (name, _), probe in zip(servers, probes, strict=True)]
    finally:
        room.close()
    faults = [] if agent else [str(fault) for fault in room.faults]
    if as_json:
        print_json([_plain(name, probe) for name, probe in probed])
    elif with_tools:
        tools = [
            (offer.name, name, offer.effect, offer.tool, offer.description)
            for name, probe in probed
            for offer in probe.offers
        ]
        print_table(TOOLS, tools, empty="no tools" if probed else EMPTY)
    else:
        print_table(SERVERS, [_row(name, probe) for name, probe in probed], empty=EMPTY)
    failed = [*faults, *(probe.error for _, probe in probed if probe.error)]
    remarks = [f"{probe.server.place}: {remark}" for _, probe in probed for remark in probe.remarks]
    for text in [*failed, *remarks]:
        say(f"chordage: {text}", err=True)
    raise click.exceptions.Exit(1 if failed else 0)


def _row(agent: str, probe: Probe) -> tuple[object, ...]:
    address = probe.server.address
    return (
        probe.server.name, agent, _state(probe), None if probe.error else len(probe.offers), f"{probe.seconds:.1f} s",
        address.kind, address.shown, probe.health.version,
    )  # fmt: skip


def _state(probe: Probe) -> str:
    return "failed" if probe.error else probe.health.state.value


def _plain(agent: str, probe: Probe) -> dict[str, Any]:
    server, health = probe.server, probe.health
    return {
        "server": server.name,
        "agent": agent,
        "state": _state(probe),
        "error": probe.error,
        "required": server.required,
        "transport": server.address.kind,
        "where": server.address.shown,
        "seconds": round(probe.seconds, 3),
        "version": health.version,
        "protocol": health.protocol,
        "remarks": probe.remarks,
        "tools": [
            {"name": offer.name, "tool": offer.tool, "effect": offer.effect, "description": offer.description}
            for offer in probe.offers
        ],
    }
