"""What a server is asked, from any thread: its tools, a call, how it is. Connects when it must."""

from __future__ import annotations

import time
from collections.abc import Collection
from concurrent.futures import CancelledError, Future
from importlib.metadata import version
from pathlib import Path
from typing import Any

from chordage.orchestrator.gateways.mcp import checking
from chordage.orchestrator.gateways.mcp.address import Address, Environ
from chordage.orchestrator.gateways.mcp.backoff import Rules
from chordage.orchestrator.gateways.mcp.failing import GOING, Unreachable
from chordage.orchestrator.gateways.mcp.health import Health
from chordage.orchestrator.gateways.mcp.hub import Hub
from chordage.orchestrator.gateways.mcp.link import Link
from chordage.orchestrator.gateways.mcp.listing import Listing
from chordage.orchestrator.gateways.mcp.server import McpServer
from chordage.orchestrator.gateways.tools.context import Context


class Connections:
    def __init__(self, room: Path, environ: Environ, rules: Rules) -> None:
        self._room = room
        self._environ = environ
        self._rules = rules
        self._hub = Hub(self._new_link)
        self._checked: set[McpServer] = set()

    def check(self, server: McpServer) -> None:
        """Asks nobody. Raises ConfigError."""
        checking.check(server, self._environ, self._room)
        self._checked.add(server)

    def health(self, server: McpServer) -> Health:
        """As far as this process knows; asks nobody."""
        link = self._hub.link(server.address)
        return link.health if link else Health()

    def known(self, server: McpServer) -> Listing | None:
        """What it said last that it offers; asks nobody."""
        link = self._hub.link(server.address)
        return link.known if link else None

    def listed(self, server: McpServer) -> Listing:
        """Raises Unreachable, and what else a server may answer with."""
        try:
            return self.listing(server).result()
        except CancelledError:
            raise Unreachable(GOING) from None

    def listing(self, server: McpServer, *, now: bool = False) -> Future[Listing]:
        """`now`: an older list will not do."""
        self._check_once(server)
        within, required = server.connect_timeout, server.required
        return self._hub.begin(
            server.address, lambda link: link.list_now(within) if now else link.listing(within, required=required)
        )

    def call(self, server: McpServer, tool: str, arguments: dict[str, Any], context: Context) -> Future[Any]:
        """Whoever cancels the future tells the server."""
        self._check_once(server)

        async def on_progress(progress: float, total: float | None, message: str | None) -> None:
            if total:
                context.progress(progress / total, message or "")
            else:
                context.progress(message or f"{progress:g}")

        return self._hub.begin(
            server.address,
            lambda link: link.call(
                tool,
                arguments,
                within=server.connect_timeout,
                limit=server.timeout,
                key=context.idempotency_key,
                on_progress=on_progress,
            ),
        )

    def keep(self, servers: Collection[McpServer]) -> None:
        self._hub.keep({server.address for server in servers})

    def close(self) -> None:
        self._hub.close()

    def _check_once(self, server: McpServer) -> None:
        if server not in self._checked:
            self.check(server)

    def _new_link(self, address: Address) -> Link:
        from chordage.orchestrator.gateways.mcp.session import Session  # these need the package
        from chordage.orchestrator.gateways.mcp.wires import wire_to

        def new_session(watcher: Link) -> Session:
            return Session(wire_to(address, self._environ, self._room), watcher, me=version("chordage"))

        return Link(address.shown, new_session, self._rules, time.monotonic)
