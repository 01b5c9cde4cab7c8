"""Rooms with a real MCP server."""

from __future__ import annotations

import pytest

from support.mcp_kit import TRANSPORTS, Kit


@pytest.fixture
def make_kit(tmp_path):
    """`make_kit("stdio", "timeout = 1")`: not started yet, and closed afterwards."""
    made = []

    def make(transport="stdio", more=""):
        folder = tmp_path / f"room{len(made)}"
        folder.mkdir()
        made.append(Kit(folder, transport, more))
        return made[-1]

    yield make
    for kit in made:
        kit.close()


@pytest.fixture(scope="module", params=TRANSPORTS)
def kit(request, tmp_path_factory):
    """For tests that leave the server as it was."""
    one = Kit(tmp_path_factory.mktemp("room"), request.param)
    one.start()
    yield one
    one.close()
