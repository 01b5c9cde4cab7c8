"""A tool that an MCP server carries out, in the shape of one of ours: the executor sees no difference."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import cached_property
from typing import TYPE_CHECKING, Any

from chordage.orchestrator.core.agent import Effect, ToolSpec
from chordage.orchestrator.gateways.mcp.offers import Offer
from chordage.orchestrator.gateways.mcp.server import McpServer
from chordage.orchestrator.gateways.tools.context import Context
from chordage.orchestrator.gateways.tools.declare import Tool
from chordage.orchestrator.gateways.tools.options import Options
from chordage.orchestrator.gateways.tools.signature import Signature

if TYPE_CHECKING:
    from chordage.orchestrator.gateways.tools.arguments import Arguments

Call = Callable[[str, dict[str, Any], Context], Awaitable[Any]]

MARGIN = 5.0  # seconds: the limits of the connection come first, for they know what to say


class RemoteTool(Tool):
    """`offer` None: the server's list is not at hand; it is asked for when the tool is called."""

    def __init__(self, name: str, server: McpServer, call: Call, offer: Offer | None = None) -> None:
        options = Options(
            name=name,
            effect=offer.effect if offer else Effect.UNSAFE,
            timeout=server.longest + MARGIN,
            retries=0,  # whoever calls a server again must know whether it has done it already
            retry_on=(Exception,),
            result_limit=server.result_limit,
            reconcile=None,
        )
        super().__init__(self._carry_out, options, {})
        self._server = server
        self._call = call
        self._offer = offer

    @property
    def place(self) -> str:
        return f"{self._server.place}: tool {self.name}"

    @cached_property
    def wants(self) -> Signature:
        return Signature(parameters=(), context=("context",))

    @cached_property
    def arguments(self) -> Arguments:
        from chordage.orchestrator.gateways.mcp.schema_arguments import SchemaArguments  # pydantic is heavy

        return SchemaArguments(self._offer.schema if self._offer else None, self.name)

    @cached_property
    def spec(self) -> ToolSpec:
        return ToolSpec(
            name=self.name,
            description=self._offer.description if self._offer else "",
            schema=self.arguments.schema,
            effect=self.options.effect,
            timeout=self.options.timeout,
            retries=self.options.retries,
            result_limit=self.options.result_limit,
        )

    async def _carry_out(self, *, arguments: dict[str, Any], context: Context) -> Any:
        return await self._call(self.name, arguments, context)
