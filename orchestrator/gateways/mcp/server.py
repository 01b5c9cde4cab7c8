"""One [mcp.<name>] table of an agent file, as it was meant."""

from __future__ import annotations

from dataclasses import dataclass, field
from fnmatch import fnmatchcase

from chordage.orchestrator.core.agent import Effect
from chordage.orchestrator.gateways.mcp.address import Address


@dataclass(frozen=True, kw_only=True, slots=True)
class McpServer:
    """Its tools as one agent has them. Agents with the same address share the connection, whatever else they say."""

    name: str
    address: Address
    place: str = field(compare=False)  # for messages: file, line and table
    timeout: float = 60.0  # seconds for one call
    connect_timeout: float = 30.0  # seconds until a server that was started has told its tools
    only: tuple[str, ...] | None = None  # patterns of names; None: all
    without: tuple[str, ...] = ()
    effect: Effect | None = None  # None: the server's word is taken
    effects: tuple[tuple[str, Effect], ...] = ()
    required: bool = True
    result_limit: int = 65_536

    @property
    def longest(self) -> float:
        """What a call may take, the way there included."""
        return self.connect_timeout + self.timeout

    def wants(self, tool: str) -> bool:
        if any(fnmatchcase(tool, pattern) for pattern in self.without):
            return False
        return self.only is None or any(fnmatchcase(tool, pattern) for pattern in self.only)
