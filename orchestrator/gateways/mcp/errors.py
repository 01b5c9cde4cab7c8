"""What can go wrong between us and the tool of an MCP server, and the tool errors that the model reads.

What matters to the model is whether the call may have taken effect. So three cases are kept apart: the call was never
sent; it was sent and its fate is unknown; it was answered.
"""

from __future__ import annotations

import asyncio
from typing import Any

from chordage.orchestrator.core.agent import Effect
from chordage.orchestrator.core.errors import RoomError
from chordage.orchestrator.gateways.mcp.servers import McpServer
from chordage.orchestrator.gateways.tools.outcomes import ToolError

CLOSED = "the connection was closed"
SHUTTING_DOWN = "this process is ending"


class ServerFailure(Exception):
    """The base of all below."""


class Unreachable(ServerFailure):
    """There is no connection, and the call was not sent."""

    def __init__(self, why: str, again_in: float = 0.0) -> None:
        super().__init__(why)
        self.again_in = again_in  # seconds


class ConnectionLost(ServerFailure):
    """The connection broke during the call."""


class SessionForgotten(ServerFailure):
    """The server was restarted and does not know our session: it has refused the call unread."""


class AnswerTimeout(ServerFailure):
    """The server did not answer in time."""


class ProtocolError(ServerFailure):
    """The server answered with an error of the protocol."""


class BadAnswer(ServerFailure):
    """The server answered, but not in the form it promises."""


class ToolFailed(ServerFailure):
    """The tool ran, and reports an error."""


class ServerUnreachable(RoomError):
    """A required MCP server cannot list its tools."""


_EFFECT = {
    Effect.PURE: "It changes nothing, so it may be called again.",
    Effect.IDEMPOTENT: "It may have taken effect; calling it again with the same arguments does no harm.",
}
_UNKNOWN = "It is not known whether it took effect: it may have. Find out before you call it again."


def tool_error(error: Exception, server: McpServer, tool: str, effect: Effect) -> ToolError:
    """The failure of a call, as the model reads it."""
    at = f"MCP server {server.name!r}"
    effect_known = _EFFECT.get(effect, _UNKNOWN)
    match error:
        case ToolFailed():
            return ToolError("mcp_tool_error", str(error))
        case ConnectionLost():
            why = f"the connection to {at} was lost while {tool} was running ({error})"
            return ToolError("mcp_connection_lost", f"{why}. {effect_known}")
        case AnswerTimeout():
            why = f"{tool} did not answer within {server.timeout:g} s and was told to stop"
            return ToolError("timeout", f"{why}. {effect_known}")
        case ProtocolError():
            return ToolError("mcp_error", f"{at} answered {tool} with an error: {error}")
        case BadAnswer():
            why = f"{tool} was run, but the answer of {at} is not what it promises: {error}"
            return ToolError("mcp_bad_answer", why)
        case _:
            return not_run(tool, server.name, error)


def not_run(tool: str, server: str, error: Exception) -> ToolError:
    why = f"{tool} was not run, because MCP server {server!r} cannot be used: {_reason(error)}"
    return ToolError("mcp_unavailable", why)


def not_listed(server: McpServer, error: Exception) -> str:
    """For the person who runs the server."""
    optional = "; with `required = false` the agent works without it" if server.required else ""
    remedy = f"Start it or correct its table{optional}"
    return f"{server.place}: the server did not list its tools: {_reason(error)}. {remedy}"


def _reason(error: Exception) -> str:
    wait = error.again_in if isinstance(error, Unreachable) else 0.0
    return f"{error}; it is not tried again for {wait:.1f} s" if wait else str(error)


def leaf(error: BaseException | None) -> BaseException | None:
    """The first error inside the exception groups that task groups raise."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def in_words(error: BaseException | None) -> str | None:
    cause = leaf(error)
    if cause is None:
        return None
    text = str(cause)
    return f"{type(cause).__name__}: {text}" if text else type(cause).__name__


def retrieve_error(task: asyncio.Task[Any]) -> None:
    """A callback for tasks whose caller may be gone at their end: asyncio would log their error as never retrieved."""
    if not task.cancelled():
        task.exception()
