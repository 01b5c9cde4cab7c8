"""The tools of MCP servers as an agent has them: listed for the model, called, and in the shape of ours."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Collection, ItemsView, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from chordage.orchestrator.core.agent import Effect, ToolSpec
from chordage.orchestrator.core.errors import ConfigError, RoomError, UserError
from chordage.orchestrator.gateways.mcp import errors
from chordage.orchestrator.gateways.mcp.connections import Connections
from chordage.orchestrator.gateways.mcp.errors import ConnectionLost, ServerFailure, ServerUnreachable
from chordage.orchestrator.gateways.mcp.link import LinkRules, ServerHealth
from chordage.orchestrator.gateways.mcp.offers import Offer, Offers, SchemaArguments, ToolList, offers_of
from chordage.orchestrator.gateways.mcp.servers import Environ, McpServer, prefix
from chordage.orchestrator.gateways.tools.context import Context
from chordage.orchestrator.gateways.tools.declare import Options, Tool
from chordage.orchestrator.gateways.tools.outcomes import ToolError, unknown_tool
from chordage.orchestrator.gateways.tools.signature import Signature

TIMEOUT_MARGIN = 5.0  # seconds: the limits of the connection end a call first, for they know what to say
PROBES_AT_ONCE = 16

_log = logging.getLogger(__name__)


class McpServers(Connections):
    """The MCP servers of a room. Safe to share between threads."""

    def __init__(self, room: Path, *, environ: Environ, rules: LinkRules | None = None) -> None:
        super().__init__(room, environ, rules)
        self._toolsets: dict[McpServer, Toolset] = {}

    def with_own(self, own: Mapping[str, Tool], servers: Sequence[McpServer]) -> Mapping[str, Tool]:
        """All tools of an agent: the functions of the room, and those of its servers."""
        if not servers:
            return own
        return AgentTools(own, [self._toolsets.setdefault(server, Toolset(server, self)) for server in servers])

    def keep(self, configured: Collection[McpServer]) -> None:
        for server in [server for server in list(self._toolsets) if server not in configured]:
            self._toolsets.pop(server, None)
        super().keep(configured)

    def probe(self, servers: Sequence[McpServer]) -> list[Probe]:
        """Connect to all of them at once. Each takes at most its connect_timeout."""
        with ThreadPoolExecutor(min(PROBES_AT_ONCE, max(1, len(servers)))) as threads:
            return list(threads.map(self._probe, servers))

    def _probe(self, server: McpServer) -> Probe:
        began = time.monotonic()
        offers, why = Offers(), None
        try:
            offers = offers_of(server, self.listing(server, now=True).result().tools)
        except UserError as error:
            why = str(error)
        except ServerFailure as error:
            why = errors.not_listed(server, error)
        return Probe(
            server=server,
            health=self.health(server),
            seconds=time.monotonic() - began,
            error=why,
            offers=tuple(offers.by_name.values()),
            remarks=offers.remarks,
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Probe:
    """What came of connecting to a server."""

    server: McpServer
    health: ServerHealth
    seconds: float
    error: str | None = None
    offers: tuple[Offer, ...] = ()
    remarks: tuple[str, ...] = ()


class AgentTools(Mapping[str, Tool]):
    """All tools of an agent by name; those of MCP servers are listed only when all are asked for.

    To look up one name needs at most the server it belongs to: a server that is down must not keep the tools of others
    from being called.
    """

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
        return iter(self._all())

    def __len__(self) -> int:
        return len(self._all())

    def items(self) -> ItemsView[str, Tool]:
        return self._all().items()

    def _all(self) -> dict[str, Tool]:
        """Raises RoomError where a required server cannot be listed, and for two tools of one name."""
        tools = dict(self._own)
        for toolset in self._toolsets:
            for name, tool in toolset.tools().items():
                if name in self._own:
                    raise RoomError(
                        f"{toolset.server.place}: a tool of the server would be called {name}, like a function in "
                        "`tools`; rename the function or the server's table, or leave the tool out with except"
                    )
                tools[name] = tool
        return tools


class Toolset:
    """The tools of one server as one agent has them."""

    def __init__(self, server: McpServer, connections: Connections) -> None:
        self.server = server
        self._connections = connections
        self._latest: tuple[ToolList, dict[str, RemoteTool]] | None = None

    def tools(self) -> Mapping[str, RemoteTool]:
        """Connects if it must. Raises RoomError or ConfigError where the agent requires the server."""
        failure: UserError
        try:
            return self._tools_in(self._connections.listed(self.server))
        except UserError as error:
            failure = error
        except ServerFailure as error:
            failure = ServerUnreachable(errors.not_listed(self.server, error))
        if self.server.required:
            raise failure
        _log.warning("the agent works without a server: %s", failure)
        return {}

    def tool(self, name: str) -> RemoteTool | None:
        """The tool of this name; does not connect. Whether the server has it may show only when it is called."""
        if not name.startswith(prefix(self.server.name)):
            return None
        known = self._connections.known(self.server)
        tools = self._tools_in(known) if known is not None else {}
        return tools.get(name) or RemoteTool(name, self.server, self.call)

    async def call(self, name: str, arguments: dict[str, Any], context: Context) -> Any:
        """From any event loop. Raises ToolError."""
        try:
            offer = await self._offer(name)
        except (ServerFailure, UserError) as error:
            raise errors.not_run(name, self.server.name, error) from error
        try:
            return await _answer(self._connections.call(self.server, offer.tool, arguments, context))
        except (ServerFailure, ConfigError) as error:
            raise errors.tool_error(error, self.server, name, offer.effect) from error

    async def _offer(self, name: str) -> Offer:
        """From the known list; else from a new one, for the server may have got the tool since."""
        known = self._connections.known(self.server) or await _answer(self._connections.listing(self.server))
        tools = self._tools_in(known)
        if name not in tools:
            tools = self._tools_in(await _answer(self._connections.listing(self.server, now=True)))
        if name not in tools or (offer := tools[name].offer) is None:
            raise ToolError("unknown_tool", unknown_tool(name, list(tools)))
        return offer

    def _tools_in(self, listed: ToolList) -> dict[str, RemoteTool]:
        """Raises RoomError."""
        if self._latest is None or self._latest[0] is not listed:
            offers = offers_of(self.server, listed.tools)
            for remark in offers.remarks:
                _log.warning("%s: %s", self.server.place, remark)
            tools = {name: RemoteTool(name, self.server, self.call, offer) for name, offer in offers.by_name.items()}
            self._latest = listed, tools
        return self._latest[1]


async def _answer(future: Future[Any]) -> Any:
    try:
        return await asyncio.wrap_future(future)
    except asyncio.CancelledError:
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise
        raise ConnectionLost(errors.SHUTTING_DOWN) from None


class RemoteTool(Tool):
    """A server's tool in the shape of ours: the executor sees no difference.

    `offer` None: the server's list is not known yet; it is asked for when the tool is called.
    """

    def __init__(
        self,
        name: str,
        server: McpServer,
        call: Callable[[str, dict[str, Any], Context], Awaitable[Any]],
        offer: Offer | None = None,
    ) -> None:
        options = Options(
            name=name,
            effect=offer.effect if offer else Effect.UNSAFE,
            timeout=server.longest + TIMEOUT_MARGIN,
            retries=0,  # a second call needs to know whether the first one took effect
            result_limit=server.result_limit,
        )
        super().__init__(self._run, options, {})
        self._server = server
        self._call = call
        self.offer = offer

    @property
    def place(self) -> str:
        return f"{self._server.place}: tool {self.name}"

    @cached_property
    def wants(self) -> Signature:
        return Signature(parameters=(), context=("context",))

    @cached_property
    def arguments(self) -> SchemaArguments:
        return SchemaArguments(self.offer.schema if self.offer else None, self.name)

    @cached_property
    def spec(self) -> ToolSpec:
        described = self.options.spec(self.offer.description if self.offer else "", self.arguments.schema)
        return replace(described, is_remote=True)

    async def _run(self, *, arguments: dict[str, Any], context: Context) -> Any:
        return await self._call(self.name, arguments, context)
