"""All tools of an agent by name: its own at once, those of MCP servers only when they are asked for.

To look one name up asks nobody but the server it belongs to, if that: a server that is down must not keep the tools of
others from being called.
"""

from __future__ import annotations

from collections.abc import ItemsView, Iterator, Mapping, Sequence

from chordage.orchestrator.core.errors import RoomError
from chordage.orchestrator.gateways.mcp.toolset import Toolset
from chordage.orchestrator.gateways.tools.declare import Tool


class Offered(Mapping[str, Tool]):
    def __init__(self, own: Mapping[str, Tool], toolsets: Sequence[Toolset]) -> None:
        self._own = own
        self._toolsets = toolsets

    def __getitem__(self, name: str) -> Tool:
        if name in self._own:
            return self._own[name]
        for toolset in self._toolsets:
            if tool := toolset.tool(name):
                return tool
        raise KeyError(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self.all())

    def __len__(self) -> int:
        return len(self.all())

    def items(self) -> ItemsView[str, Tool]:
        return self.all().items()

    def all(self) -> dict[str, Tool]:
        """Asks every server. Raises RoomError where one that is required cannot be asked, and for a name that is taken
        twice.
        """
        found = dict(self._own)
        for toolset in self._toolsets:
            for name, tool in toolset.tools().items():
                if name in self._own:
                    raise RoomError(
                        f"{toolset.server.place}: a tool of the server would be called {name}, like a function in "
                        "`tools`; rename the function or the server's table, or leave the tool out with except"
                    )
                found[name] = tool
        return found
