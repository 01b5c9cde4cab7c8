"""All pages of a server's list of tools, in values of ours."""

from __future__ import annotations

from mcp import Client
from mcp.types import Tool

from chordage.orchestrator.gateways.mcp.listing import Listed

MOST_PAGES = 100  # a list without an end is cut


async def all_tools(client: Client) -> tuple[Listed, ...]:
    if client.server_capabilities.tools is None:
        return ()
    found: list[Listed] = []
    cursor: str | None = None
    for _ in range(MOST_PAGES):
        page = await client.list_tools(cursor=cursor)
        found += [_listed(tool) for tool in page.tools]
        cursor = page.next_cursor
        if cursor is None:
            break
    return tuple(found)


def _listed(tool: Tool) -> Listed:
    hints = tool.annotations
    return Listed(
        name=tool.name,
        description=tool.description or tool.title or (hints.title if hints else None) or "",
        schema=tool.input_schema,
        output=tool.output_schema,
        read_only=hints.read_only_hint if hints else None,
        idempotent=hints.idempotent_hint if hints else None,
    )
