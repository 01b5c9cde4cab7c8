"""What can go wrong with a call on its way, as the layers below tell it, and in words for the model.

What matters to whoever reads it is whether the call may have taken effect. So three things are told apart: it was never
sent; it was sent and nobody knows; it was answered.
"""

from __future__ import annotations

from chordage.orchestrator.core.agent import Effect
from chordage.orchestrator.core.errors import RoomError
from chordage.orchestrator.gateways.mcp.server import McpServer
from chordage.orchestrator.gateways.tools.failures import Told

CLOSED = "the connection was closed"
GOING = "this process is ending"


class OnTheWay(Exception):
    """Something between us and the server's tool."""


class Unreachable(OnTheWay):
    """There is no connection, and the call was not sent."""

    def __init__(self, why: str, again_in: float = 0.0) -> None:
        super().__init__(why)
        self.again_in = again_in


class Lost(OnTheWay):
    """The connection broke while the call was under way."""


class Forgotten(OnTheWay):
    """The server has been restarted and does not know our session: it has refused the call unread."""


class TooLate(OnTheWay):
    """The server did not answer in time."""


class Refused(OnTheWay):
    """The server answered with an error of the protocol."""


class Unreadable(OnTheWay):
    """The server answered, and the answer is not what it promised."""


class ServerUnreachable(RoomError):
    """A required MCP server cannot be asked for its tools."""


_AFTERWARDS = {
    Effect.PURE: "It changes nothing, so it may be called again.",
    Effect.IDEMPOTENT: "It may have taken effect; calling it again with the same arguments does no harm.",
}
_UNKNOWN = "It is not known whether it took effect: it may have. Find out before you call it again."


def told(error: Exception, server: McpServer, tool: str, effect: Effect) -> Told:
    """The failure of a call as the executor passes it on to the model."""
    at = f"MCP server {server.name!r}"
    unknown = _AFTERWARDS.get(effect, _UNKNOWN)
    match error:
        case Lost():
            why = f"the connection to {at} was lost while {tool} was running ({error})"
            return Told("mcp_connection_lost", f"{why}. {unknown}")
        case TooLate():
            return Told("timeout", f"{tool} did not answer within {server.timeout:g} s and was told to stop. {unknown}")
        case Refused():
            return Told("mcp_error", f"{at} answered {tool} with an error: {error}")
        case Unreadable():
            return Told("mcp_bad_answer", f"{tool} was run, but the answer of {at} is not what it promises: {error}")
        case _:
            return not_run(tool, server.name, error)


def not_run(tool: str, server: str, error: Exception) -> Told:
    return Told("mcp_unavailable", f"{tool} was not run, because MCP server {server!r} cannot be used: {_why(error)}")


def unlisted(server: McpServer, error: Exception) -> str:
    """For whoever runs the server."""
    without = "; with `required = false` the agent does without" if server.required else ""
    return f"{server.place}: the server has not told its tools: {_why(error)}. Start it or put its table right{without}"


def _why(error: Exception) -> str:
    later = error.again_in if isinstance(error, Unreachable) else 0.0
    return f"{error}; it is not tried again for {later:.1f} s" if later else str(error)


def leaf(error: BaseException | None) -> BaseException | None:
    """What it was in the end: task groups wrap what happens in them."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def in_words(error: BaseException | None) -> str | None:
    found = leaf(error)
    if found is None:
        return None
    text = str(found)
    return f"{type(found).__name__}: {text}" if text else type(found).__name__
