"""MCP servers of a room as toolsets: where they are, what they offer, and how a call gets there and back.

Only `session`, `paging`, `wires` and `answers` import the package `mcp`, and they are imported when a server is first
used: whoever uses none needs neither the package nor the second that its import takes.
"""

from chordage.orchestrator.gateways.mcp.health import Health, State
from chordage.orchestrator.gateways.mcp.probing import Probe
from chordage.orchestrator.gateways.mcp.server import McpServer
from chordage.orchestrator.gateways.mcp.servers import Servers

__all__ = ["Health", "McpServer", "Probe", "Servers", "State"]
