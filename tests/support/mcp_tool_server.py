"""An MCP server of the package `mcp`, as others write one: run as `mcp_tool_server.py FOLDER [PORT]`.

Without a port it talks over its standard input and output. What it does is noted down in the folder.
"""

from __future__ import annotations

import base64
import os
import sys
import time
from pathlib import Path
from typing import Any

from mcp.server.mcpserver import Context, MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp.types import CallToolResult, ImageContent, TextContent, ToolAnnotations

FOLDER = Path(sys.argv[1])
READS = ToolAnnotations(read_only_hint=True)

server = MCPServer("kit", version="7", log_level="WARNING")


@server.tool(annotations=READS)
def add(a: int, b: int) -> int:
    """The sum of two numbers."""
    return a + b


@server.tool(annotations=READS)
def weather(city: str) -> dict[str, Any]:
    """How it is there."""
    return {"city": city, "degrees": 21}


@server.tool(annotations=ToolAnnotations(idempotent_hint=True))
def pid() -> int:
    """Which process this is."""
    return os.getpid()


@server.tool()
def key(ctx: Context) -> str:
    """What the caller says this call is known by."""
    return str((ctx.request_context.meta or {}).get("chordage/idempotency-key"))


@server.tool()
def fail() -> str:
    """Does not work."""
    raise ToolError("no luck today")


@server.tool(structured_output=False)
def picture() -> CallToolResult:
    """A text and an image."""
    image = ImageContent(type="image", data=base64.b64encode(b"x" * 300).decode(), mime_type="image/png")
    return CallToolResult(content=[TextContent(type="text", text="a cat"), image])


@server.tool()
async def steps(ctx: Context) -> str:
    """Tells how far it is."""
    await ctx.report_progress(1, 4, "one of four")
    return "done"


@server.tool(name="linger.long")
def linger() -> str:
    """Waits for a gate to be opened, and says who waits."""
    (FOLDER / "lingering").write_text(str(os.getpid()))
    while not (FOLDER / "gate").exists():
        time.sleep(0.02)
    return "the gate is open"


@server.tool()
async def grow(ctx: Context) -> str:
    """Brings another tool, and says so."""
    server.add_tool(add, name="late_add")
    await ctx.notify_tools_changed()
    return "grown"


(FOLDER / "started").open("a").write(f"{os.getpid()}\n")
if len(sys.argv) > 2:
    server.run("streamable-http", host="127.0.0.1", port=int(sys.argv[2]))
else:
    server.run("stdio")
