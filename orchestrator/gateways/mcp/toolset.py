"""The tools of one server as one agent has them: listed for the model, and called."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from concurrent.futures import Future
from typing import Any

from chordage.orchestrator.core.errors import ConfigError, UserError
from chordage.orchestrator.gateways.mcp import failing, naming
from chordage.orchestrator.gateways.mcp.connections import Connections
from chordage.orchestrator.gateways.mcp.listing import Listing
from chordage.orchestrator.gateways.mcp.offers import Offer, Offers, offers_of
from chordage.orchestrator.gateways.mcp.remote_tool import RemoteTool
from chordage.orchestrator.gateways.mcp.server import McpServer
from chordage.orchestrator.gateways.tools.context import Context
from chordage.orchestrator.gateways.tools.failures import Told, unknown

_log = logging.getLogger(__name__)


class Toolset:
    def __init__(self, server: McpServer, connections: Connections) -> None:
        self.server = server
        self._connections = connections
        self._offers: tuple[Listing, Offers] | None = None
        self._tools: tuple[Listing, dict[str, RemoteTool]] | None = None

    def tools(self) -> Mapping[str, RemoteTool]:
        """All that is offered. Asks the server if it has to; raises RoomError or ConfigError where the agent cannot do
        without.
        """
        try:
            return self._tools_in(self._connections.listed(self.server))
        except UserError as error:
            told = error
        except failing.OnTheWay as error:
            told = failing.ServerUnreachable(failing.unlisted(self.server, error))
        if self.server.required:
            raise told
        _log.warning("the agent does without: %s", told)
        return {}

    def tool(self, name: str) -> RemoteTool | None:
        """That may be called by this name; asks nobody. Whether there is one may come out only when it is called."""
        if not name.startswith(naming.prefix(self.server.name)):
            return None
        known = self._connections.known(self.server)
        tools = self._tools_in(known) if known is not None else {}
        return tools.get(name) or RemoteTool(name, self.server, self.call)

    def offers_in(self, listing: Listing) -> Offers:
        """Raises RoomError."""
        if self._offers is None or self._offers[0] is not listing:
            offers = offers_of(self.server, listing.tools)
            for remark in offers.remarks:
                _log.warning("%s: %s", self.server.place, remark)
            self._offers = listing, offers
        return self._offers[1]

    async def call(self, name: str, arguments: dict[str, Any], context: Context) -> Any:
        """From any event loop. What goes wrong is raised as `Told`."""
        try:
            offer = await self._offer(name)
        except (failing.OnTheWay, UserError) as error:
            raise failing.not_run(name, self.server.name, error) from error
        try:
            result = await _of(self._connections.call(self.server, offer.tool, arguments, context))
        except (failing.OnTheWay, ConfigError) as error:
            raise failing.told(error, self.server, name, offer.effect) from error
        from chordage.orchestrator.gateways.mcp import answers

        if result.is_error:
            raise Told("mcp_tool_error", answers.text_of(result))
        return answers.value_of(result)

    async def _offer(self, name: str) -> Offer:
        """From the list at hand; a server may have got the tool since."""
        listing = self._connections.known(self.server) or await _of(self._connections.listing(self.server))
        offers = self.offers_in(listing).by_name
        if name not in offers:
            listing = await _of(self._connections.listing(self.server, now=True))
            offers = self.offers_in(listing).by_name
        if name not in offers:
            raise Told("unknown_tool", unknown(name, list(offers)))
        return offers[name]

    def _tools_in(self, listing: Listing) -> dict[str, RemoteTool]:
        if self._tools is None or self._tools[0] is not listing:
            offers = self.offers_in(listing).by_name
            made = {name: RemoteTool(name, self.server, self.call, offer) for name, offer in offers.items()}
            self._tools = listing, made
        return self._tools[1]


async def _of(asked: Future[Any]) -> Any:
    try:
        return await asyncio.wrap_future(asked)
    except asyncio.CancelledError:
        here = asyncio.current_task()
        if here is not None and here.cancelling():
            raise
        raise failing.Lost(failing.GOING) from None
