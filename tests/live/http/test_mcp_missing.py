"""Without the package `mcp`, the path of its server says what to install."""

from __future__ import annotations

from typing import Any, cast

import anyio
import httpx
from starlette.applications import Starlette

from chordage.orchestrator.api.mcp import McpEndpoint
from support.web_server import PROBLEM


def test_the_path_answers_with_what_to_install():
    endpoint = McpEndpoint(cast("Any", None), has_package=lambda: False)
    transport = httpx.ASGITransport(app=Starlette(routes=[endpoint.route]))

    async def post():
        async with httpx.AsyncClient(transport=transport, base_url="http://here") as client:
            return await client.post("/mcp", json={})

    response = anyio.run(post)
    assert (response.status_code, response.headers["content-type"]) == (501, PROBLEM)
    assert "chordage[mcp]" in response.json()["detail"]
