"""The MCP servers of a room, as the room and the commands use them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from chordage.orchestrator.gateways.mcp.backoff import Rules
from chordage.orchestrator.gateways.mcp.connections import Connections
from chordage.orchestrator.gateways.mcp.health import Health
from chordage.orchestrator.gateways.mcp.offered import Offered
from chordage.orchestrator.gateways.mcp.probing import Probe, probe
from chordage.orchestrator.gateways.mcp.server import McpServer
from chordage.orchestrator.gateways.mcp.toolset import Toolset
from chordage.orchestrator.gateways.tools.declare import Tool


class Servers:
    """Safe to share between threads."""

    def __init__(self, room: Path, *, environ: Mapping[str, str], rules: Rules | None = None) -> None:
        self._connections = Connections(room, environ, rules or Rules())
        self._toolsets: dict[McpServer, Toolset] = {}

    def offered(self, own: Mapping[str, Tool], servers: Sequence[McpServer]) -> Mapping[str, Tool]:
        """With the functions of the room, all tools of an agent."""
        return Offered(own, [self.toolset(server) for server in servers]) if servers else own

    def toolset(self, server: McpServer) -> Toolset:
        return self._toolsets.setdefault(server, Toolset(server, self._connections))

    def check(self, server: McpServer) -> None:
        """Whether it could be reached, as far as one can tell without trying. Raises ConfigError."""
        self._connections.check(server)

    def health(self, server: McpServer) -> Health:
        """As far as this process knows; asks nobody."""
        return self._connections.health(server)

    def probe(self, servers: Sequence[McpServer]) -> list[Probe]:
        """Connect to all of them, and tell how that went."""
        return probe(self._connections, servers)

    def keep(self, servers: Collection[McpServer]) -> None:
        """The room was read again: connections that nothing in it names are left."""
        for gone in [known for known in list(self._toolsets) if known not in servers]:
            self._toolsets.pop(gone, None)
        self._connections.keep(servers)

    def close(self) -> None:
        self._connections.close()
