"""What every test gets: the `support` package on the path, its fixtures, the network guard, the rule about skips."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog
from celery import _state

HERE = Path(__file__).parent
NEED_MCP = ("unit/gateways/mcp", "unit/cli/test_mcp.py", "flow/test_mcp_servers.py", "live/faults/test_mcp_live.py")
LONGEST = "test_lowest_versions.py"
sys.path.append(str(HERE))

pytest_plugins = ("support.skips", "support.network", "support.postgres", "support.valkey", "support.databases")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--both-ways", action="store_true", help="run all of tests/flow without the pipeline too")
    parser.addoption("--placement", help="where calls run in the tests of tests/flow that draw it")


def pytest_configure() -> None:
    """A background job of a shell ignores Ctrl-C, and so would every process that the tests start.

    A logger that a test of a command has used would keep its processors, and no later test could capture its lines.
    """
    signal.signal(signal.SIGINT, signal.default_int_handler)
    configure = structlog.configure
    structlog.configure = lambda *args, **kwargs: configure(*args, **{**kwargs, "cache_logger_on_first_use": False})


@pytest.fixture(autouse=True)
def default_celery_app() -> Iterator[None]:
    """An app that a test makes is not the default of the next."""
    before = _state.default_app
    yield
    _state.default_app = before


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Live tests kill processes and measure recoveries: under xdist they stay together on one worker. The file that
    takes longest comes first, or one worker would wait for it at the end.
    """
    items.sort(key=lambda item: item.path.name != LONGEST)
    for item in items:
        if item.path.is_relative_to(HERE / "live"):
            item.add_marker(pytest.mark.xdist_group("live"))
        if any(item.path.is_relative_to(HERE / path) for path in NEED_MCP):
            item.add_marker(pytest.mark.mcp)
